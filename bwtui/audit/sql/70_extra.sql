-- Records that no message accounts for. `judged` says of each that is no copy whether it is the relay's own
-- make, and which change its headers name.
create table extra as
select free.t, free.p, free.o, free.ts, free.kd, free.vd,
       coalesce(free.o < since.o, free.ts < getvariable('first_received_us') // 1000) as is_before,
       coalesce(free.o > since.last_o, true) and free.ts > getvariable('last_commit_us') // 1000 as is_behind
  from free left join since using (t, p);

create table copied as
select distinct x.t, x.p, x.o, true as here
  from extra x join e on e.t = x.t and e.kd is not distinct from x.kd and e.vd is not distinct from x.vd;

insert into copied
select distinct x.t, x.p, x.o, false
  from extra x anti join copied using (t, p, o)
  join e on e.t <> x.t and e.kd = x.kd and e.vd = x.vd;

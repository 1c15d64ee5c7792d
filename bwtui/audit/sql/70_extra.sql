-- Records that no message accounts for. `judged` says of each whether it is the relay's own make, and which
-- change its headers name; of copies only of those that a relay may have sent which went on.
create table extra as
select free.t, free.p, free.o, free.ts, free.kd, free.vd,
       coalesce(free.o < since.o, free.ts < getvariable('first_received_us') // 1000) as is_before,
       -- A segment may end within a transaction, whose rest has the same time.
       coalesce(free.o > since.last_o, true) and free.ts >= getvariable('last_commit_us') // 1000 as is_behind,
       is_behind and free.ts > getvariable('last_commit_us') // 1000 as is_later,
       coalesce(free.o > since.last_o, true) as is_after
  from free left join since using (t, p);

create table copied as
select x.t, x.p, x.o, true as here, same.comes_again
  from extra x
  join (select e.t, e.kd, e.vd, bool_or(may_come_again(e.op, e.lsn, pass.is_confirmed)) as comes_again
          from e left join passes_in as pass using (pass)
          semi join extra on extra.t = e.t and extra.kd is not distinct from e.kd
           and extra.vd is not distinct from e.vd
         group by all) as same
    on same.t = x.t and same.kd is not distinct from x.kd and same.vd is not distinct from x.vd;

insert into copied
select distinct x.t, x.p, x.o, false, false
  from extra x anti join copied using (t, p, o)
  join e on e.t <> x.t and e.kd = x.kd and e.vd = x.vd;

-- Records that no message accounts for. `judged` says of each whether it is the relay's own make, and which
-- change its headers name; of copies only of those that a relay may have sent which went on.
create table tail as
select min(commit_us) as first_us, list(distinct ms(commit_us)) filter (where without is not null) as without_ms
  from e where op not in ('snapshot', 'cleanup') and may_come_again(op, lsn, true);

create table extra as
select free.t, free.p, free.o, free.ts, free.kd, free.vd,
       coalesce(free.o < since.o, free.ts < getvariable('first_received_us') // 1000) as is_before,
       coalesce(free.o > since.last_o, true) as is_after,
       -- A segment may end within a transaction, whose rest has the same time; and what was not confirmed comes
       -- again, perhaps in other bytes.
       is_after and free.ts >= ms(coalesce(tail.first_us, getvariable('last_commit_us'))) as is_behind,
       is_after and free.ts > ms(getvariable('last_commit_us')) as is_later,
       -- A change of which there was no message may have one when it comes again.
       is_after and coalesce(list_contains(tail.without_ms, free.ts), false) as is_made_up_for
  from free left join since using (t, p) cross join tail;

create table copied as
select x.t, x.p, x.o, true as here, same.comes_again, list_contains(same.times, x.ts) as at_its_time
  from extra x
  join (select e.t, e.kd, e.vd, bool_or(may_come_again(e.op, e.lsn, pass.is_confirmed)) as comes_again,
               list(distinct ms(e.commit_us)) as times
          from e left join passes_in as pass using (pass)
          semi join extra on extra.t = e.t and extra.kd is not distinct from e.kd
           and extra.vd is not distinct from e.vd
         group by all) as same
    on same.t = x.t and same.kd is not distinct from x.kd and same.vd is not distinct from x.vd;

insert into copied
select distinct x.t, x.p, x.o, false, false, false
  from extra x anti join copied using (t, p, o)
  join e on e.t <> x.t and e.kd is not distinct from x.kd and e.vd is not distinct from x.vd
 where x.kd is not null or x.vd is not null;

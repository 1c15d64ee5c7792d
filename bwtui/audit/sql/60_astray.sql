-- Where the first message of the recording stands in each partition; the ledger counts what was lost, too. The
-- last one must be there: a broker that lost its end gives the offsets to what the relay sent later. A message of
-- which no word came may have been found where a later session sent it again.
create table since as
select t, p, min(o) as o, max(o) filter (where is_there) as last_o
  from (select t, p, o, false as is_there from e where state = 'acknowledged' and t is not null
        union all
        select hit.t, hit.p, hit.o, hit.how <> 'word' or not may_come_again(s.op, s.lsn, pass.is_confirmed)
          from hit join s using (id) left join passes_in as pass using (pass) where hit.how <> 'moved')
 group by t, p;

-- What is still missing without a proven excuse may stand in another partition, or in another topic; but there not
-- as a copy of that topic's own message. In JSON the tombstones of two tables may be the same bytes.
create table lost as
select id, t, p, kd, vd from excuse anti join hit using (id)
 where class in ('lost_acked', 'indeterminate') and reason <> 'open'
union all
select s.id, s.t, home.p, s.kd, s.vd
  from s left join home using (id) anti join hit using (id)
 where s.state = 'unknown' and s.op not in ('snapshot', 'cleanup') and s.lsn <= getvariable('confirmed');

create table stray as
select lost.id, free.t, free.p, free.o, free.t = lost.t as is_near
  from lost
  join free on free.kd = lost.kd and free.vd is not distinct from lost.vd
   and (free.t <> lost.t or free.p <> lost.p)
  anti join (select distinct e.t, e.kd, e.vd from e semi join lost on lost.kd = e.kd) as own
    on free.t <> lost.t and own.t = free.t and own.kd = free.kd and own.vd is not distinct from free.vd
  left join since on since.t = free.t and since.p = free.p
 where free.o >= coalesce(since.o, 0);

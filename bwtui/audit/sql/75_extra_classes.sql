-- Changes that were relayed and not recorded lie, in each partition, between what was sent before and after.
create table unrecorded as
select part.t, part.p, g.gap,
       coalesce(max(e.o) filter (where e.id < g.before_id), -1) as low,
       coalesce(min(e.o) filter (where e.id >= g.before_id), 9223372036854775807) as high
  from gaps_in g cross join part
  left join e on e.t = part.t and e.p = part.p and e.state = 'acknowledged'
 group by part.t, part.p, g.gap;

create table extra_class as
select x.t, x.p, x.o, x.kd, x.vd, j.lsn, j.ordinal,
       case
         when x.is_before then 'outside_window'
         when copied.here and not coalesce(homes.is_known and sent.hash31 % topic.partitions <> x.p, false)
           then 'duplicated'
         when copied.here is not null then 'misrouted'
         when not coalesce(j.ours, false) then 'foreign'
         when j.lsn is not null and (j.lsn < getvariable('first_lsn') or j.lsn > getvariable('last_lsn'))
           then 'outside_window'
         when j.lsn is null and (x.is_behind or gap.t is not null) then 'outside_window'
         else 'phantom' end as class
  from extra x
  join topic using (t) join homes using (t)
  left join copied using (t, p, o)
  left join judged j using (t, p, o)
  left join (select distinct unrecorded.t, unrecorded.p, extra.o from unrecorded join extra
               on extra.t = unrecorded.t and extra.p = unrecorded.p
              and extra.o > unrecorded.low and extra.o < unrecorded.high) as gap using (t, p, o)
  left join (select kd, any_value(hash31) as hash31 from e semi join extra using (kd) group by kd) as sent
    on sent.kd = x.kd;

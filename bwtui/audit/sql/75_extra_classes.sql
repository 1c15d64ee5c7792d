-- Changes that were relayed and not recorded lie, in each partition, between what was sent before and after.
create table unrecorded as
select part.t, part.p, g.gap,
       coalesce(max(e.o) filter (where e.id < g.before_id), -1) as low,
       coalesce(min(e.o) filter (where e.id >= g.before_id), 9223372036854775807) as high
  from gaps_in g cross join part
  left join e on e.t = part.t and e.p = part.p and e.state = 'acknowledged'
 group by part.t, part.p, g.gap;

-- What the headers of a record name that no recorded change can be, the rest of the last transaction too.
create table named as
select j.*, coalesce(j.lsn < getvariable('first_lsn') or j.lsn > getvariable('last_lsn')
                     or (j.lsn = getvariable('last_lsn') and j.ordinal > ends.ordinal), false) as is_outside,
       coalesce(j.lsn > least(getvariable('confirmed'), getvariable('resumed')), false) as is_again
  from judged j
 cross join (select max(ordinal) as ordinal from e
              where lsn = getvariable('last_lsn') and op not in ('snapshot', 'cleanup')) as ends;

-- Whether the relay has sent anything since the recording ended.
create table went_on as
select distinct true as for_sure
  from extra x join named j using (t, p, o) anti join copied using (t, p, o)
 where j.ours and coalesce(j.lsn > getvariable('last_lsn'), x.is_later);

create table extra_class as
select x.t, x.p, x.o, x.kd, x.vd, j.lsn, j.ordinal,
       case
         when x.is_before then 'outside_window'
         when copied.here and not coalesce(homes.is_known and not list_contains(sent.homes, x.p), false)
           then case
             -- By a run that was not recorded: the tail once more, or a later change to what was before.
             when gap.t is not null or (x.is_after and copied.comes_again) then 'outside_window'
             when (x.is_later and coalesce(j.is_outside, false)) or (x.is_after and coalesce(j.is_again, false))
               then 'outside_window'
             when x.is_made_up_for and j.lsn is null and not copied.at_its_time then 'outside_window'
             when x.is_later and j.lsn is null and (select count(*) from went_on) > 0 then 'outside_window'
             else 'duplicated' end
         when copied.here or (copied.here is not null and not coalesce(j.ours, false)) then 'misrouted'
         -- Gone since the scan, so that nobody can look at it.
         when j.t is null and x.is_behind then 'outside_window'
         when not coalesce(j.ours, false) then 'foreign'
         when j.is_outside or (x.is_after and j.is_again) then 'outside_window'
         when j.lsn is null and (x.is_behind or gap.t is not null) then 'outside_window'
         -- What looks like the topic's own may be a copy of another topic's message all the same.
         when copied.here is not null then 'misrouted'
         else 'phantom' end as class
  from extra x
  join topic using (t) join homes using (t)
  left join copied using (t, p, o)
  left join named j using (t, p, o)
  left join (select distinct unrecorded.t, unrecorded.p, extra.o from unrecorded join extra
               on extra.t = unrecorded.t and extra.p = unrecorded.p
              and extra.o > unrecorded.low and extra.o < unrecorded.high) as gap using (t, p, o)
  left join (select e.t, e.kd,
                    list_concat(list(distinct e.hash31 % topic.partitions),
                                list(distinct e.hash31 % n.n) filter (where n.n > 0)) as homes
               from e semi join extra using (kd) join topic using (t)
               left join narrower n on n.t = e.t and e.id < n.before_id
              where e.hash31 is not null
              group by e.t, e.kd) as sent
    on sent.t = x.t and sent.kd = x.kd;

-- Why an acknowledged message does not stand at its place: a proven excuse, or a loss.
create table missing as
select s.*, topic.* exclude (t, topic),
       case when part.p is null then 'truncated'
            when s.o < part.low then 'expired'
            when s.o >= part.high then 'truncated'
            when f.o is not null then 'replaced'
            else 'gap' end as place_reason,
       case when topic.log_append then s.received_us else s.commit_us end // 1000 as written_ms
  from (select * from s anti join hit using (id) where state = 'acknowledged') as s
  join topic using (t)
  left join part on part.t = s.t and part.p = s.p
  left join f on f.t = s.t and f.p = s.p and f.o = s.o;

create table reasoned as
select m.*, case when place_reason = 'gap' and m.o < hole.o_end then hole.kind else place_reason end as reason
  from missing m
  asof left join hole on hole.t = m.t and hole.p = m.p and m.o >= hole.o;

-- For each missing key the last records that survive, and the last ones that are old enough to have taken others
-- away: the cleaner does not come to those of the last min.compaction.lag.ms. A record that nothing accounts for
-- proves nothing to the message that it is a copy of, so the last one with other bytes is kept too.
create table survivor as
select f.t, f.p, f.kd, case when hit.id is null then f.vd end as copy_of, hit.id is null as is_free,
       max(f.o) as last_o, min(f.o) as first_o,
       max(f.o) filter (where min_compaction_lag_ms = 0 or f.ts <= getvariable('now_ms') - min_compaction_lag_ms)
         as ripe_o
  from f semi join missing using (t, p, kd)
  join topic using (t)
  left join hit on hit.t = f.t and hit.p = f.p and hit.o = f.o
 group by all;

create table survivors as
select t, p, kd, min(first_o) as first_o,
       max(last_o) filter (where nth = 1) as last_o,
       bool_or(is_free) filter (where nth = 1) as is_free,
       max(copy_of) filter (where nth = 1) as copy_of,
       max(last_o) filter (where nth = 2) as next_o,
       max(ripe_o) filter (where nth_ripe = 1) as ripe_o,
       bool_or(is_free) filter (where nth_ripe = 1) as ripe_is_free,
       max(copy_of) filter (where nth_ripe = 1) as ripe_copy_of,
       max(ripe_o) filter (where nth_ripe = 2) as ripe_next_o
  from (select *, row_number() over (partition by t, p, kd order by last_o desc) as nth,
               row_number() over (partition by t, p, kd order by ripe_o desc nulls last) as nth_ripe
          from survivor)
 group by t, p, kd;

create table excuse as
select m.id, m.t, m.p, m.o, m.kd, m.vd, m.reason,
       case when v.is_free and v.copy_of is not distinct from m.vd then v.next_o else v.last_o end > m.o
         as has_later,
       case when v.ripe_is_free and v.ripe_copy_of is not distinct from m.vd then v.ripe_next_o else v.ripe_o end > m.o
         as has_ripe,
       case
         when reason = 'expired' then case
           when not settings_known then 'indeterminate'
           when deletes and (retention_bytes >= 0
                             or (retention_ms >= 0 and getvariable('now_ms') - written_ms >= retention_ms))
             then 'expired'
           else 'lost_acked' end
         when reason = 'open' then 'indeterminate'
         when reason <> 'gap' then 'lost_acked'
         when not settings_known then 'indeterminate'
         when not compacts or m.kd is null then 'lost_acked'
         when has_later and getvariable('now_ms') - written_ms < min_compaction_lag_ms then 'lost_acked'
         when has_ripe then 'compacted'
         when m.vd is not null then 'unproven'
         when v.first_o < m.o or getvariable('now_ms') - received_us // 1000 < delete_retention_ms
           -- What took it away may have been taken away itself since.
           then case when has_later then 'indeterminate' else 'lost_acked' end
         else 'tombstone_expired' end as class
  from reasoned m left join survivors v on v.t = m.t and v.p = m.p and v.kd = m.kd;

-- What a tombstone replaced that has gone itself by now was compacted; what a lost message replaced, or a
-- tombstone of which no word came, may have been.
create table later as
select t, p, kd, max(o) filter (where class = 'tombstone_expired') as tombstone_o,
       max(o) filter (where reason = 'gap') as gap_o,
       max(u.id) as unheard_id
  from excuse
  left join (select t, kd, max(s.id) as id from s anti join hit using (id)
              where s.state = 'unknown' and s.vd is null group by all) as u using (t, kd)
 where kd is not null group by t, p, kd;

update excuse set class = case when later.tombstone_o > excuse.o then 'compacted'
                               when excuse.class = 'tombstone_expired' then excuse.class
                               when later.gap_o > excuse.o or later.unheard_id > excuse.id or excuse.has_later
                                 then 'indeterminate'
                               else 'lost_acked' end
  from later
 where excuse.class in ('unproven', 'tombstone_expired') and later.t = excuse.t and later.p = excuse.p and later.kd = excuse.kd;

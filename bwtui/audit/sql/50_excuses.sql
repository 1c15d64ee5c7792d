-- Why an acknowledged message is not at its offset: a proven excuse, or a loss.
create table missing as
select suspect.*, topic.* exclude (topic_id, topic),
       case when partition_range.partition_id is null then 'truncated'
            when suspect.log_offset < partition_range.low then 'expired'
            when suspect.log_offset >= partition_range.high then 'truncated'
            when suspect_record.log_offset is not null then 'replaced'
            else 'gap' end as place_reason,
       case when topic.log_append then suspect.received_us else suspect.commit_us end // 1000 as written_ms
  from (select * from suspect anti join match using (id) where state = 'acknowledged') as suspect
  join topic using (topic_id)
  left join partition_range using (topic_id, partition_id)
  left join suspect_record using (topic_id, partition_id, log_offset);

create table missing_reason as
select m.*,
       case when place_reason = 'gap' and m.log_offset < hole.end_offset then hole.kind
         else place_reason end as reason
  from missing m
  asof left join hole
    on hole.topic_id = m.topic_id and hole.partition_id = m.partition_id and m.log_offset >= hole.log_offset;

-- For each missing key the last surviving records, and the last that are eligible: old enough to have replaced
-- others, since the cleaner leaves the last min.compaction.lag.ms alone. An unmatched record proves nothing for the
-- message whose copy it is, so the last one with other bytes is kept, too.
create table surviving_record as
select suspect_record.topic_id, suspect_record.partition_id, suspect_record.key_digest,
       case when match.id is null then suspect_record.value_digest end as copy_of_digest,
         match.id is null as is_unmatched,
       max(suspect_record.log_offset) as last_offset, min(suspect_record.log_offset) as first_offset,
       max(suspect_record.log_offset) filter (
         where min_compaction_lag_ms = 0
            or suspect_record.timestamp_ms <= getvariable('now_ms') - min_compaction_lag_ms) as eligible_offset
  from suspect_record semi join missing using (topic_id, partition_id, key_digest)
  join topic using (topic_id)
  left join match using (topic_id, partition_id, log_offset)
 group by all;

create table surviving_key as
select topic_id, partition_id, key_digest, min(first_offset) as first_offset,
       max(last_offset) filter (where nth = 1) as last_offset,
       bool_or(is_unmatched) filter (where nth = 1) as is_unmatched,
       max(copy_of_digest) filter (where nth = 1) as copy_of_digest,
       max(last_offset) filter (where nth = 2) as second_offset,
       max(eligible_offset) filter (where nth_eligible = 1) as eligible_offset,
       bool_or(is_unmatched) filter (where nth_eligible = 1) as eligible_is_unmatched,
       max(copy_of_digest) filter (where nth_eligible = 1) as eligible_copy_of,
       max(eligible_offset) filter (where nth_eligible = 2) as eligible_second_offset
  from (select *,
               row_number() over (partition by topic_id, partition_id, key_digest order by last_offset desc) as nth,
               row_number() over (partition by topic_id, partition_id,
                                  key_digest order by eligible_offset desc nulls last) as nth_eligible
          from surviving_record)
 group by topic_id, partition_id, key_digest;

create table excuse as
select m.id, m.topic_id, m.partition_id, m.log_offset, m.key_digest, m.value_digest, m.reason,
       case when v.is_unmatched and v.copy_of_digest is not distinct from m.value_digest then v.second_offset
         else v.last_offset end > m.log_offset
         as has_later,
       case when v.eligible_is_unmatched and v.eligible_copy_of is not distinct from m.value_digest
         then v.eligible_second_offset else v.eligible_offset end > m.log_offset
         as has_eligible,
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
         when not compacts or m.key_digest is null then 'lost_acked'
         when has_later and getvariable('now_ms') - written_ms < min_compaction_lag_ms then 'lost_acked'
         when has_eligible then 'compacted'
         when m.value_digest is not null then 'unproven'
         -- Whatever replaced it may itself have been removed since, but not before an older record of the key.
         when v.first_offset < m.log_offset then case when has_later then 'indeterminate' else 'lost_acked' end
         when getvariable('now_ms') - received_us // 1000 < delete_retention_ms
           then case when has_later then 'indeterminate' else 'unproven' end
         else 'tombstone_expired' end as class
  from missing_reason m left join surviving_key v
    on v.topic_id = m.topic_id and v.partition_id = m.partition_id and v.key_digest = m.key_digest;

-- What was replaced by a tombstone that has since been removed was compacted; what was replaced by a lost message, or
-- by an unacknowledged tombstone, may have been.
create table later_loss as
select topic_id, partition_id, key_digest,
       max(log_offset) filter (where class = 'tombstone_expired') as tombstone_offset,
       max(log_offset) filter (where reason = 'gap') as gap_offset,
       max(u.id) as unacknowledged_id
  from excuse
  left join (select topic_id, key_digest, max(suspect.id) as id from suspect anti join match using (id)
              where suspect.state = 'unknown' and suspect.value_digest is null
               group by all) as u using (topic_id, key_digest)
 where key_digest is not null group by topic_id, partition_id, key_digest;

update excuse set class = case when later_loss.tombstone_offset > excuse.log_offset then 'compacted'
                               when excuse.class = 'tombstone_expired' then excuse.class
                               when later_loss.gap_offset > excuse.log_offset
                                 or later_loss.unacknowledged_id > excuse.id or excuse.has_later
                                 then 'indeterminate'
                               else 'lost_acked' end
  from later_loss
 where excuse.class in ('unproven', 'tombstone_expired') and later_loss.topic_id = excuse.topic_id
   and later_loss.partition_id = excuse.partition_id and later_loss.key_digest = excuse.key_digest;

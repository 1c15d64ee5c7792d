-- A message missing from its offset without a proven excuse may be at another, in a log that was restored or
-- repaired. Where its own offset can't be read, any other would be a guess.
create or replace temp table sought as
select excuse.id, suspect.pass, excuse.topic_id, excuse.key_digest, excuse.value_digest, excuse.partition_id,
       false as is_bounded, null::bigint as timestamp_ms,
       partition_order.first_offset as from_offset
  from excuse join suspect using (id) join partition_order
    on partition_order.topic_id = excuse.topic_id and partition_order.partition_id = excuse.partition_id
 where excuse.class in ('lost_acked', 'indeterminate') and excuse.reason <> 'open';

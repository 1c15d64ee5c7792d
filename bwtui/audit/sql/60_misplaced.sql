-- The offsets that the recording covers in each partition. For the first, an acknowledged message counts even if it
-- is lost; for the last, only those that exist, since a broker that lost the end of its log assigns those offsets
-- again to what the relay sends later. An unacknowledged message may have been found where a later session sent it
-- again.
create table recorded_range as
select topic_id, partition_id, min(log_offset) as first_offset,
       max(log_offset) filter (where is_present) as last_offset
  from (select topic_id, partition_id, log_offset, false as is_present from message
         where state = 'acknowledged' and topic_id is not null
        union all
        select match.topic_id, match.partition_id, match.log_offset,
               match.how <> 'searched' or not may_come_again(suspect.op, suspect.lsn, pass.is_confirmed,
                                                             pass.reached_lsn, suspect.id < pass.committed_id)
          from match join suspect using (id) left join passes_in as pass using (pass) where match.how <> 'moved')
 group by topic_id, partition_id;

-- What is still missing without a proven excuse may be in another partition, or in another topic; but there not as a
-- copy of that topic's own message. In JSON the tombstones of two tables may be the same bytes.
create table lost as
select id, topic_id, partition_id, key_digest, value_digest from excuse anti join match using (id)
 where class in ('lost_acked', 'indeterminate') and reason <> 'open'
union all
select suspect.id, suspect.topic_id, home_partition.partition_id, suspect.key_digest, suspect.value_digest
  from suspect left join home_partition using (id) anti join match using (id)
 where suspect.state = 'unknown' and in_transaction(suspect.op) and suspect.lsn < getvariable('confirmed');

create table misplaced as
select lost.id, unmatched.topic_id, unmatched.partition_id, unmatched.log_offset,
       unmatched.topic_id = lost.topic_id as is_own_topic
  from lost
  join unmatched
    on unmatched.key_digest = lost.key_digest and unmatched.value_digest is not distinct from lost.value_digest
   and (unmatched.topic_id <> lost.topic_id or unmatched.partition_id <> lost.partition_id)
  anti join (select distinct message.topic_id, message.key_digest, message.value_digest from message semi join lost
               on lost.key_digest = message.key_digest) as own
    on unmatched.topic_id <> lost.topic_id and own.topic_id = unmatched.topic_id
   and own.key_digest = unmatched.key_digest and own.value_digest is not distinct from unmatched.value_digest
  left join recorded_range
    on recorded_range.topic_id = unmatched.topic_id and recorded_range.partition_id = unmatched.partition_id
 where unmatched.log_offset >= coalesce(recorded_range.first_offset, 0);

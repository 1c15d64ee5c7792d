-- Matches by acknowledged offset: the strongest evidence there is.
create table suspect as
select message.* exclude (is_repeat, no_message_reason)
  from message semi join suspect_partition using (topic_id, partition_id)
 where message.state = 'acknowledged'
union all by name
select message.* exclude (is_repeat, no_message_reason) from message semi join unacknowledged using (id);

create table suspect_record as select record.* from record semi join suspect_partition using (topic_id, partition_id);

-- One row for each message and the record that holds it. If several messages were acknowledged at one offset, the
-- last one gets it: a broker that lost the end of its log assigns the same offsets again.
create table match as
select suspect.id, suspect.topic_id, suspect.partition_id, suspect.log_offset, 'place' as how
  from suspect join suspect_record
    on suspect_record.topic_id = suspect.topic_id and suspect_record.partition_id = suspect.partition_id
   and suspect_record.log_offset = suspect.log_offset
   and suspect.key_digest is not distinct from suspect_record.key_digest
   and suspect.value_digest is not distinct from suspect_record.value_digest
 where suspect.state = 'acknowledged'
qualify row_number() over (partition by suspect.topic_id, suspect.partition_id,
                           suspect.log_offset order by suspect.id desc) = 1;

create view unmatched as select suspect_record.* from suspect_record
  anti join match using (topic_id, partition_id, log_offset);

-- The contents that unmatched messages should have. A record at a message's offset with the same key, or the same
-- value under another key, is that message in other bytes; unless it is what another unmatched message of the
-- partition, or an unacknowledged one, should contain: then the two have changed places. Two null keys, or two
-- tombstones, prove nothing by being equal; then the timestamps must be equal, too.
create table awaited_bytes as
select distinct suspect.topic_id, case when state = 'acknowledged' then partition_id end as partition_id,
       coalesce(key_digest, 0) as key_digest,
       key_digest is null as has_no_key, coalesce(value_digest, 0) as value_digest,
         value_digest is null as has_no_value
  from suspect anti join match using (id);

-- Records at a message's offset that are copies of another message, not this one with a changed key: another key with
-- that key's own value, or the same key where the message itself is at another offset. A record there that may be an
-- unacknowledged message with the same bytes, such as a later tombstone of the key, does not prove that.
create table copied_over as
select distinct unmatched.topic_id, unmatched.partition_id, unmatched.log_offset
  from suspect
  join unmatched using (topic_id, partition_id, log_offset)
  join message
    on message.topic_id = unmatched.topic_id and message.key_digest = unmatched.key_digest
   and message.value_digest is not distinct from unmatched.value_digest
  left join (select distinct u.topic_id, u.partition_id, u.key_digest, u.value_digest
               from unmatched as u join topic using (topic_id)
               left join (select topic_id, key_digest, value_digest, commit_ms(commit_us) as commit_ms from suspect
                           where state <> 'acknowledged') as unheard
                 on unheard.topic_id = u.topic_id and unheard.key_digest = u.key_digest
                and unheard.value_digest is not distinct from u.value_digest
                and (topic.log_append or unheard.commit_ms = u.timestamp_ms)
              where unheard.topic_id is null) as itself
    on itself.topic_id = suspect.topic_id and itself.partition_id = suspect.partition_id
   and itself.key_digest = suspect.key_digest and itself.value_digest is not distinct from suspect.value_digest
 where suspect.state = 'acknowledged' and (suspect.key_digest <> unmatched.key_digest or itself.topic_id is not null);

create table different_bytes as
select suspect.id, suspect.topic_id, suspect.partition_id, suspect.log_offset,
       suspect.key_digest is distinct from unmatched.key_digest as has_other_key
  from suspect
  join unmatched using (topic_id, partition_id, log_offset)
  join topic using (topic_id)
  anti join match on match.id = suspect.id
  anti join copied_over c using (topic_id, partition_id, log_offset)
  anti join awaited_bytes w
    on w.topic_id = unmatched.topic_id and coalesce(w.partition_id, unmatched.partition_id) = unmatched.partition_id
   and w.key_digest = coalesce(unmatched.key_digest, 0) and w.has_no_key = (unmatched.key_digest is null)
   and w.value_digest = coalesce(unmatched.value_digest, 0) and w.has_no_value = (unmatched.value_digest is null)
 where suspect.state = 'acknowledged'
   and (suspect.key_digest = unmatched.key_digest or suspect.value_digest = unmatched.value_digest
        or ((suspect.key_digest is null and unmatched.key_digest is null or suspect.key_digest is not null
             and unmatched.key_digest is not null and suspect.value_digest is null and unmatched.value_digest is null)
            and (topic.log_append or unmatched.timestamp_ms = commit_ms(suspect.commit_us))))
qualify row_number() over (partition by suspect.topic_id, suspect.partition_id,
                           suspect.log_offset order by suspect.id desc) = 1;

insert into match select id, topic_id, partition_id, log_offset, 'differs' from different_bytes;

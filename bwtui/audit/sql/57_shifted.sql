-- In a shifted log another message with the same bytes may have landed on this one's offset. Then its neighbours, and
-- a record with its bytes, are all displaced by the same distance.
create table coincidence as
select beside.id, beside.topic_id, beside.partition_id, beside.log_offset + beside.before as log_offset
  from (select match.id, match.topic_id, match.partition_id, match.log_offset, match.how, suspect.key_digest,
               suspect.value_digest,
               lag(match.log_offset - suspect.log_offset) over w as before,
                 lead(match.log_offset - suspect.log_offset) over w as after
          from match join suspect using (id)
           where suspect.state = 'acknowledged' and match.partition_id = suspect.partition_id
        window w as (partition by match.topic_id, match.partition_id order by suspect.log_offset)) as beside
  join unmatched
    on unmatched.topic_id = beside.topic_id and unmatched.partition_id = beside.partition_id
   and unmatched.log_offset = beside.log_offset + beside.before
   and unmatched.key_digest is not distinct from beside.key_digest
   and unmatched.value_digest is not distinct from beside.value_digest
  semi join (select topic_id, partition_id, key_digest, value_digest from suspect where state = 'acknowledged'
              group by all having count(*) > 1) as twin
    on twin.topic_id = beside.topic_id and twin.partition_id = beside.partition_id
   and twin.key_digest is not distinct from beside.key_digest
   and twin.value_digest is not distinct from beside.value_digest
 where beside.how = 'place' and beside.before <> 0 and coalesce(beside.after, beside.before) = beside.before;

update match set log_offset = coincidence.log_offset, how = 'moved' from coincidence where match.id = coincidence.id;

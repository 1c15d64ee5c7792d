-- If messages with the same bytes are in one partition and one of them has moved, they can't be told apart: they get
-- their records in the order of sending.
create table reassigned as
select id, log_offset, nth_o.nth_at as new_offset
  from (select match.id, match.log_offset, match.topic_id, match.partition_id, suspect.key_digest,
               suspect.value_digest,
               row_number() over (partition by match.topic_id, match.partition_id, suspect.key_digest,
                                  suspect.value_digest order by match.id) as nth
          from match join suspect using (id) where match.how in ('place', 'moved')) as nth_id
  join (select match.topic_id, match.partition_id, suspect.key_digest, suspect.value_digest,
               match.log_offset as nth_at,
               row_number() over (partition by match.topic_id, match.partition_id, suspect.key_digest,
                                  suspect.value_digest order by match.log_offset) as nth,
               bool_or(match.how = 'moved') over (partition by match.topic_id, match.partition_id,
                                                  suspect.key_digest, suspect.value_digest) as has_moved
          from match join suspect using (id) where match.how in ('place', 'moved')) as nth_o
    on nth_o.topic_id = nth_id.topic_id and nth_o.partition_id = nth_id.partition_id
   and nth_o.key_digest is not distinct from nth_id.key_digest
   and nth_o.value_digest is not distinct from nth_id.value_digest and nth_o.nth = nth_id.nth
 where nth_o.has_moved and nth_o.nth_at <> nth_id.log_offset;

update match set log_offset = reassigned.new_offset,
  how = case when suspect.log_offset = reassigned.new_offset then 'place' else 'moved' end
  from reassigned join suspect using (id) where match.id = reassigned.id;

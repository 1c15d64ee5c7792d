-- Looks for the messages in `sought` among unmatched records: the same bytes in the partition. If `is_bounded`, a
-- record must also have the same timestamp or come after what was sent to the partition before, and it must come
-- before the next acknowledged message with the same bytes, which may be the same change sent again. While a relay is
-- still running, what comes after a later session's messages belongs to that session, of which the audit does not
-- have everything.
create or replace temp table candidate as
select c.id, c.topic_id, c.partition_id, c.log_offset, c.key_digest, c.value_digest
  from (select w.id, w.pass, w.timestamp_ms, w.is_bounded, unmatched.topic_id, unmatched.partition_id,
               unmatched.log_offset, w.key_digest, w.value_digest
          from sought w
          join unmatched on unmatched.topic_id = w.topic_id and unmatched.key_digest is not distinct from w.key_digest
           and unmatched.value_digest is not distinct from w.value_digest
           and (w.partition_id is null or w.partition_id = unmatched.partition_id)
           and (w.timestamp_ms is null or w.timestamp_ms = unmatched.timestamp_ms)
           and unmatched.log_offset >= w.from_offset) as c
  asof left join (select id, topic_id, partition_id, log_offset from suspect where state = 'acknowledged') as sent
    on sent.topic_id = c.topic_id and sent.partition_id = c.partition_id and c.id > sent.id
  asof left join (select id, topic_id, partition_id, key_digest, value_digest, log_offset from suspect
                   where state = 'acknowledged') as next
    on next.topic_id = c.topic_id and next.partition_id = c.partition_id
   and next.key_digest is not distinct from c.key_digest
   and next.value_digest is not distinct from c.value_digest and c.id < next.id
  asof left join (select topic_id, partition_id, pass, min(log_offset) as log_offset from suspect
                   where state = 'acknowledged' group by all) as later
    on later.topic_id = c.topic_id and later.partition_id = c.partition_id and c.pass < later.pass
 where not c.is_bounded
    or ((c.timestamp_ms is not null or c.log_offset > coalesce(sent.log_offset, -1))
        and not coalesce(c.log_offset > next.log_offset, false)
        and not coalesce(c.log_offset > later.log_offset and getvariable('resumed') < 9223372036854775807, false));

-- One message and one record with its bytes: there is nothing to choose.
create or replace temp table choice as
select c.*,
       count(*) over (partition by id) > 1
         or count(*) over (partition by topic_id, partition_id, log_offset) > 1 as is_ambiguous
  from candidate c;

insert into match select id, topic_id, partition_id, log_offset, getvariable('how') from choice
 where not is_ambiguous;

-- Of several records the one displaced as far as its neighbours: a restored log is shifted as a whole, or from some
-- record on.
create or replace temp table displacement as
select match.topic_id, match.partition_id, suspect.log_offset as at_offset,
       match.log_offset - suspect.log_offset as distance
  from match join suspect using (id)
   where suspect.state = 'acknowledged' and match.partition_id = suspect.partition_id;

create or replace temp table ambiguous_choice as
select c.id, c.topic_id, c.partition_id, c.log_offset, coalesce(exact_copy.first_id, c.id) as first_id,
       coalesce(exact_copy.has_later, false) as has_later, coalesce(c.id < pass.committed_id, false) as is_committed,
       coalesce(abs(c.log_offset - suspect.log_offset - coalesce(before.distance, after.distance)), 0) as deviation
  from choice c join suspect using (id) left join exact_copy using (id)
  left join passes_in as pass on pass.pass = suspect.pass
  asof left join displacement as before
    on before.topic_id = c.topic_id and before.partition_id = c.partition_id and suspect.log_offset > before.at_offset
  asof left join displacement as after
    on after.topic_id = c.topic_id and after.partition_id = c.partition_id and suspect.log_offset < after.at_offset
 where c.is_ambiguous;

-- What was sent again after a restart. By itself first, so that DuckDB knows how few these mostly are.
create temporary table again as
select id, lsn, ordinal, part, topic_id from message where is_repeat and in_transaction(op);

create table repeat_of as
select again.id, first.id as first_id
  from again join message as first
    on first.lsn = again.lsn and first.ordinal = again.ordinal and first.part = again.part
   and first.topic_id = again.topic_id and first.id < again.id
   and in_transaction(first.op);

drop table again;

-- Of the copies of a change that --exactly-once sent again, Kafka has committed none but the last: it leaves out of the
-- stream what is in.
create table exact_copy as
select copy.id, min(copy.first_id) as first_id, bool_or(copy.has_later) as has_later
  from (select unnest([r.id, r.first_id]) as id, r.first_id, unnest([false, true]) as has_later
          from repeat_of r
          join message as again on again.id = r.id
          join message as first on first.id = r.first_id
          semi join (select pass from passes_in where is_exactly_once) as later_pass on later_pass.pass = again.pass
          semi join (select pass from passes_in where is_exactly_once) as first_pass on first_pass.pass = first.pass)
    as copy
  semi join unacknowledged using (id)
 group by copy.id;

-- A change without an acknowledgement, of which a later pass had a reason to make no message: its row was gone by then
-- (deleted, under another key, or truncated), or it was dropped.
create table unmade_repeat as
select distinct first.id as first_id
  from message as first join message as again
    on again.lsn = first.lsn and again.ordinal = first.ordinal and first.id < again.id
   and in_transaction(first.op) and in_transaction(again.op)
  semi join unacknowledged on unacknowledged.id = first.id
 where again.is_repeat and again.topic_id is null and again.no_message_reason is not null;

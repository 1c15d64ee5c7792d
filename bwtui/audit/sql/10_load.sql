-- Loads both sides, with each topic as a small number. 00_dictionary.md explains every table and column.
create table topic as
select (row_number() over (order by topic) - 1)::smallint as topic_id, * from topics_in;

create table message as
select i.id, i.pass, i.is_repeat, i.lsn, i.ordinal, i.part, i.op, i.xid, i.commit_us, i.received_us,
       topic.topic_id, i.partition as partition_id, i."offset" as log_offset, i.state, i.no_message_reason,
         i.key_digest, i.value_digest, i.key_hash, i.headers_digest
  from expected_in i left join topic on topic.topic = i.topic;

create table record as
select topic.topic_id, i.partition as partition_id, i."offset" as log_offset, i.timestamp_ms, i.key_digest,
       i.value_digest, i.headers_digest
  from actual_in i join topic on topic.topic = i.topic
 where i.kind = 'record';

create table hole as
select topic.topic_id, i.partition as partition_id, i."offset" as log_offset, i.offset_end as end_offset, i.kind
  from actual_in i join topic on topic.topic = i.topic
 where i.kind <> 'record';

create table partition_range as
select topic.topic_id, i.partition as partition_id, i.low, i.high
  from partitions_in i join topic on topic.topic = i.topic;

-- The timestamp that a message was sent with, in milliseconds; under LogAppendTime the broker sets its own.
create macro commit_ms(commit_us) as commit_us // 1000;

-- What a transaction has made, and not a row of a table as it was, or a tombstone beside those.
create macro in_transaction(op) as op not in ('snapshot', 'cleanup', 'backfill');

-- The last LSN and the last time of all, and those of transactions; without any, of all.
set variable last_change_lsn =
  (select coalesce(max(lsn) filter (in_transaction(op)), max(lsn)) from message);
set variable last_change_us =
  (select coalesce(max(commit_us) filter (in_transaction(op)), max(commit_us)) from message);

-- The next run sends again what was not confirmed, and starts an abandoned snapshot anew. A transaction's LSN is where
-- its commit begins: one that is confirmed ends at or before the LSN that is. What was put into the stream has the LSN
-- at which the stream stood, and only the pass that put it says that it came further. `is_committed`: --exactly-once has
-- found it in Kafka when the next pass began.
create macro is_unconfirmed(op, lsn, of_pass, reached_lsn, is_committed) as
  case when coalesce(is_committed, false) then false
       when in_transaction(op) then lsn >= getvariable('confirmed')
       else not coalesce(of_pass and (reached_lsn is null or lsn < reached_lsn), false) end;

-- A confirmed change is sent again too, if a server that never received the confirmation resumed before it.
create macro may_come_again(op, lsn, of_pass, reached_lsn, is_committed) as
  is_unconfirmed(op, lsn, of_pass, reached_lsn, is_committed) or (in_transaction(op) and lsn >= getvariable('resumed'));

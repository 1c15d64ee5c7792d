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

-- The next run sends again what was not confirmed, and starts an abandoned snapshot anew.
create macro is_unconfirmed(op, lsn, of_pass) as
  case when op in ('snapshot', 'cleanup') then not coalesce(of_pass, false)
       else lsn > getvariable('confirmed') end;

-- A confirmed change is sent again too, if a server that never received the confirmation resumed before it.
create macro may_come_again(op, lsn, of_pass) as
  is_unconfirmed(op, lsn, of_pass) or (op not in ('snapshot', 'cleanup') and lsn > getvariable('resumed'));

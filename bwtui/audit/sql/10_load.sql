-- Both sides with the topics as small numbers. A null digest is a null key, or a tombstone's value.
create table topic as
select (row_number() over (order by topic) - 1)::smallint as t, * from topics_in;

create table e as
select i.id, i.pass, i.is_repeat, i.lsn, i.ordinal, i.part, i.op, i.xid, i.commit_us, i.received_us,
       topic.t, i.partition as p, i."offset" as o, i.state, i.without, i.kd, i.vd, i.hash31, i.hd
  from expected_in i left join topic on topic.topic = i.topic;

create table r as
select topic.t, i.partition as p, i."offset" as o, i.ts, i.kd, i.vd, i.hd
  from actual_in i join topic on topic.topic = i.topic
 where i.kind = 'record';

create table hole as
select topic.t, i.partition as p, i."offset" as o, i.offset_end as o_end, i.kind
  from actual_in i join topic on topic.topic = i.topic
 where i.kind <> 'record';

create table part as
select topic.t, i.partition as p, i.low, i.high
  from partitions_in i join topic on topic.topic = i.topic;

-- The time that a message was sent with; a broker that sets times itself keeps its own.
create macro ms(commit_us) as commit_us // 1000;

-- What was not confirmed comes again with the next run; a snapshot that was given up is made again.
create macro is_unconfirmed(op, lsn, of_pass) as
  case when op in ('snapshot', 'cleanup') then not coalesce(of_pass, false)
       else lsn > getvariable('confirmed') end;

-- What was confirmed comes again too, where a server that had not heard of it began before it.
create macro may_come_again(op, lsn, of_pass) as
  is_unconfirmed(op, lsn, of_pass) or (op not in ('snapshot', 'cleanup') and lsn > getvariable('resumed'));

-- Keys for which a reader that keeps the latest value may now hold a wrong one.
create table affected_key as
select distinct topic_id, key_digest from message_class
 where class not in ('matched', 'redelivered', 'repeated') and key_digest is not null
union select topic_id, key_digest from message_class where how in ('moved', 'searched') and key_digest is not null
union select topic_id, key_digest from extra_class where class <> 'outside_window' and key_digest is not null
union select topic_id, key_digest from disordered_key;

create table expected_latest as
select suspect.topic_id, suspect.key_digest, suspect.id, suspect.value_digest,
       case when message_class.class = 'misrouted' then coalesce(suspect.partition_id, message_class.at_partition_id)
            else message_class.at_partition_id end as partition_id
  from suspect join message_class using (id)
  semi join affected_key on affected_key.topic_id = suspect.topic_id and affected_key.key_digest = suspect.key_digest
  anti join undetermined_key
    on undetermined_key.topic_id = suspect.topic_id and undetermined_key.key_digest = suspect.key_digest
 where message_class.class not in ('pending', 'resent', 'refused')
qualify row_number() over (partition by suspect.topic_id, suspect.key_digest order by suspect.id desc) = 1;

create table actual_latest as
select suspect_record.topic_id, suspect_record.partition_id, suspect_record.key_digest, suspect_record.log_offset,
       suspect_record.value_digest, match.how
  from suspect_record
  semi join affected_key
    on affected_key.topic_id = suspect_record.topic_id and affected_key.key_digest = suspect_record.key_digest
  anti join (select topic_id, partition_id, log_offset from extra_class where class = 'outside_window') as outside
    using (topic_id, partition_id, log_offset)
  left join match using (topic_id, partition_id, log_offset)
qualify row_number() over (partition by suspect_record.topic_id, suspect_record.partition_id,
                           suspect_record.key_digest order by suspect_record.log_offset desc) = 1;

create table wrong_latest as
select due.id, l.topic_id, l.partition_id, l.log_offset, l.key_digest,
       case when due.value_digest is null and message_class.how is null then 'resurrected'
         else 'regressed' end as class
  from expected_latest due
  join message_class using (id)
  join actual_latest l
    on l.topic_id = due.topic_id and l.partition_id = due.partition_id and l.key_digest = due.key_digest
  -- It may be in the log after an open transaction, where readers wait for it.
  anti join (select id from excuse where reason = 'open') as hidden on hidden.id = due.id
 where due.value_digest is distinct from l.value_digest and l.how is distinct from 'equivalent';

-- Transactions of which a reader will only ever see a part.
create table torn_transaction as
select message.lsn, any_value(message.xid) as xid, min(message.id) as id
  from message
  semi join (select message.lsn from message join message_class using (id)
              where message_class.class like 'lost%' and in_transaction(message.op)
             union select lsn from without_message semi join (select id from message where in_transaction(op)) using (id)
                    where class = 'lost_unsent') as hurt using (lsn)
  left join message_class on message_class.id = message.id
 where in_transaction(message.op) and message.topic_id is not null
 group by message.lsn
having bool_or(coalesce(message_class.class, 'matched') in ('matched', 'redelivered', 'repeated'));

-- Records of a later pass before records of an earlier one: two relays wrote at once. Records that moved are compared
-- only with those that moved by the same distance, since a message that was sent again late moved alone. A record
-- found by its bytes alone has no known pass if a later session may have sent the same change again; and it must be
-- between two records of one later pass, since a replay of what was missing appends it to the log.
create table interleaved_partition as
with placed as (
       select suspect.topic_id, match.partition_id, match.log_offset, suspect.pass,
              match.log_offset - suspect.log_offset as distance
         from match join suspect using (id) where match.how in ('place', 'moved', 'equivalent')),
     searched as (
       select suspect.topic_id, match.partition_id, match.log_offset, suspect.pass
         from match join suspect using (id) left join passes_in as pass using (pass)
        where match.how = 'searched' and not may_come_again(suspect.op, suspect.lsn, pass.is_confirmed,
                                                            pass.reached_lsn, suspect.id < pass.committed_id)),
     in_place as (select * from placed where distance = 0)
select topic_id, partition_id, min(log_offset) as log_offset
  from (select topic_id, partition_id, log_offset, pass,
               lag(pass) over (partition by topic_id, partition_id, distance order by log_offset) as before
          from placed
        union all
        select s.topic_id, s.partition_id, s.log_offset, s.pass, before.pass
          from searched as s
          asof join in_place as before
            on before.topic_id = s.topic_id and before.partition_id = s.partition_id
           and s.log_offset > before.log_offset
          asof join in_place as after
            on after.topic_id = s.topic_id and after.partition_id = s.partition_id
           and s.log_offset < after.log_offset
         where before.pass = after.pass)
 where before > pass group by topic_id, partition_id;

-- Messages that arrived, but with another timestamp or other headers than they were sent with.
create view other_metadata as
select id, topic_id, partition_id, log_offset, other_time, other_headers from acknowledged anti join match using (id)
 where other_time or other_headers
union all
select match.id, match.topic_id, match.partition_id, match.log_offset,
       not topic.log_append and suspect_record.timestamp_ms <> commit_ms(suspect.commit_us),
       suspect.headers_digest is distinct from suspect_record.headers_digest
  from match join suspect using (id)
  join suspect_record
    on suspect_record.topic_id = match.topic_id and suspect_record.partition_id = match.partition_id
   and suspect_record.log_offset = match.log_offset
  join topic on topic.topic_id = match.topic_id
 where match.how <> 'differs';

create table time_differs as select id, topic_id, partition_id, log_offset from other_metadata where other_time;
create table headers_differ as select id, topic_id, partition_id, log_offset from other_metadata where other_headers;

-- Holes where a message was acknowledged, in a log that has no reason to have any.
create table offset_gap as
select distinct hole.topic_id, hole.partition_id, hole.log_offset, hole.end_offset
  from hole join topic using (topic_id)
  join excuse x
    on x.topic_id = hole.topic_id and x.partition_id = hole.partition_id and x.log_offset >= hole.log_offset
   and x.log_offset < hole.end_offset
 where hole.kind = 'gap' and topic.settings_known and not topic.compacts;

-- Offsets among the recording's own, and right behind them, that have neither a record nor an acknowledged message. With
-- --exactly-once the end of each transaction takes one; in a topic that compacts there may be those, too, of what the
-- cleaner has removed: others' records, aborted ones, and what was committed unheard.
create table marker_gap as
with own as (select topic_id, partition_id, first_offset as low, coalesce(last_offset, first_offset) + 2 as high
               from recorded_range where (select bool_or(is_exactly_once) from passes_in)),
     missed as (select hole.topic_id, hole.partition_id, hole.log_offset, count(distinct m.log_offset) as n
                  from (select m.topic_id, m.partition_id, m.log_offset from missing_reason m
                          join own on own.topic_id = m.topic_id and own.partition_id = m.partition_id
                         where m.reason = 'gap' and m.log_offset < own.high) as m
                  asof join hole
                    on hole.topic_id = m.topic_id and hole.partition_id = m.partition_id and m.log_offset >= hole.log_offset
                 group by all)
select hole.topic_id, hole.partition_id, hole.log_offset, hole.end_offset,
       least(hole.end_offset, own.high) - greatest(hole.log_offset, own.low) - coalesce(missed.n, 0) as n
  from hole join own using (topic_id, partition_id) left join missed using (topic_id, partition_id, log_offset)
 where hole.kind = 'gap' and hole.end_offset > own.low and hole.log_offset < own.high;

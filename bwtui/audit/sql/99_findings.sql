-- Every finding in one row: `id` is the message's, the other ids and the offset say where in Kafka. Without a note it
-- gets that of its class, in bwtui.audit.classes.
create view finding as
with lost as (
  select class, id, at_topic_id as topic_id, at_partition_id as partition_id, at_offset as log_offset,
         null::varchar as note,
         case class when 'lost_acked' then 'broker' when 'indeterminate' then '' else 'relay' end as hop
    from message_class where class in ('lost_acked', 'lost_unacked', 'indeterminate')
  union all
  select class, id, null, null, null, null, 'relay' from without_message where class = 'lost_unsent'),
wrong as (
  select s.class, s.id, s.at_topic_id as topic_id, s.at_partition_id as partition_id, s.at_offset as log_offset,
         case when m.id is not null then 'the message differs from the row that PostgreSQL sent' end as note,
         case when m.id is not null or s.how = 'mispartitioned' or s.class = 'repeated' then 'relay'
              when s.how = 'misrouted' then 'other' else 'broker' end as hop
    from message_class s left join miscoded m using (id)
   where s.how is not null and s.class not in ('matched', 'redelivered')),
-- Both copies are whole, so nothing else need be wrong where they are.
repeated_one as (
  select 'repeated' as class, message.id, message.topic_id, message.partition_id, message.log_offset,
         null::varchar as note, 'relay' as hop
    from redelivered_message join message using (id) anti join message_class using (id) where is_promised),
-- In JSON another topic's message may have the same bytes.
original as (
  select message.topic_id, message.key_digest, message.value_digest, min(message.id) as id from message
    semi join extra_class x
      on x.key_digest is not distinct from message.key_digest
     and x.value_digest is not distinct from message.value_digest
   where message.topic_id is not null group by message.topic_id, message.key_digest, message.value_digest),
extra_one as (
  select x.class, copy.id, x.topic_id, x.partition_id, x.log_offset,
         case when copy.id is not null then 'a copy of this message' end as note,
         case x.class when 'phantom' then 'relay' else 'other' end as hop
    from extra_class x
    left join original copy on x.class in ('duplicated', 'misrouted')
                           and x.key_digest is not distinct from copy.key_digest
                           and x.value_digest is not distinct from copy.value_digest
   where x.class <> 'outside_window'
  qualify row_number() over (partition by x.topic_id, x.partition_id,
                             x.log_offset order by copy.topic_id = x.topic_id desc, copy.id) = 1)
select lost.* exclude (note),
       case excuse.reason
         when 'expired' then 'it is below the start of the log, which retention does not explain'
         when 'truncated' then 'the log ends before its offset'
         when 'replaced' then 'a different record is at its offset'
         when 'gap' then 'no record is at its offset'
         when 'open' then 'its offset is after the start of an open transaction'
         else excuse.reason end as note
  from lost left join excuse using (id)
union all by name select * from wrong
union all by name select * from repeated_one
union all by name select * from extra_one
union all by name
select 'reordered' as class, id, topic_id, partition_id, log_offset, null as note, 'broker' as hop from late_message
union all by name
select w.class, w.id, w.topic_id, w.partition_id, w.log_offset,
       case when exists (select 1 from extra_class later
                          where later.class = 'outside_window'
                            and later.topic_id = w.topic_id and later.partition_id = w.partition_id
                            and later.key_digest = w.key_digest and later.log_offset > w.log_offset)
            then 'it was the latest value of the key until a record from after the recording replaced it'
            end as note,
       case when x.class in ('foreign', 'duplicated', 'misrouted') then 'other'
            when x.class = 'phantom' then 'relay' else 'broker' end as hop
  from wrong_latest w left join extra_class x using (topic_id, partition_id, log_offset)
union all by name
select 'torn_transaction' as class, id, null as topic_id, null as partition_id, null as log_offset,
       null as note, '' as hop from torn_transaction
union all by name
select 'interleaved_sessions' as class, null as id, topic_id, partition_id, log_offset,
       null as note, 'relay' as hop
  from interleaved_partition;

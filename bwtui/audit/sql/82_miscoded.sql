-- Messages that were encoded wrongly before they were sent are corrupted; those of sound partitions become suspect.
insert into suspect
select message.* exclude (is_repeat, no_message_reason) from message semi join miscoded using (id)
  anti join suspect using (id)
 where message.state = 'acknowledged';

insert into suspect_record
select record.* from record
  semi join (select message.topic_id, message.partition_id, message.log_offset from message
               semi join miscoded using (id) anti join message_class using (id)) as m
    using (topic_id, partition_id, log_offset);

insert into match
select suspect.id, suspect.topic_id, suspect.partition_id, suspect.log_offset, 'place' from suspect
  semi join miscoded using (id) anti join message_class using (id);

insert into message_class
select suspect.id, suspect.topic_id, suspect.key_digest, suspect.topic_id, suspect.partition_id, suspect.log_offset,
       'place', 'matched'
  from suspect semi join miscoded using (id) anti join message_class using (id);

update message_class set class = 'corrupted' from miscoded
 where message_class.id = miscoded.id and message_class.class in ('matched', 'redelivered', 'repeated');

-- Gives one class to every message of a suspect partition, and to every change that should have made a message.
-- A message of --exactly-once that no pass after its own sends again was committed, though nobody heard of it; of what
-- was put into the stream the next pass has to say so. A later message of its key shows that it was compacted, or one
-- of its partition that it has expired.
create table unheard as
select suspect.id, case when topic.compacts and suspect.id < replaced.last_id then 'compacted'
                        when topic.deletes and suspect.id < expired.last_id then 'expired' end as class
  from suspect join topic using (topic_id) join home_partition as home on home.id = suspect.id
  left join (select later.topic_id, match.partition_id, later.key_digest, max(later.id) as last_id
               from match join suspect as later on later.id = match.id and later.topic_id = match.topic_id
               join suspect_record as there
                 on there.topic_id = match.topic_id and there.partition_id = match.partition_id
                and there.log_offset = match.log_offset
               join topic on topic.topic_id = later.topic_id
              where later.state = 'acknowledged' and there.key_digest = later.key_digest
                and there.timestamp_ms <= getvariable('now_ms') - topic.min_compaction_lag_ms
              group by all) as replaced
    on replaced.topic_id = suspect.topic_id and replaced.partition_id = home.partition_id
   and replaced.key_digest = suspect.key_digest
  left join (select topic_id, partition_id, max(id) as last_id from excuse where class = 'expired' group by all) as expired
    on expired.topic_id = suspect.topic_id and expired.partition_id = home.partition_id
 where suspect.state = 'unknown' and topic.settings_known
   and (in_transaction(suspect.op)
        or suspect.id < (select committed_id from passes_in as pass where pass.pass = suspect.pass))
   and suspect.pass in (select pass from passes_in where is_exactly_once)
   and suspect.pass < (select max(pass) from passes_in where is_exactly_once and reached_lsn is not null);

create table message_class as
select suspect.id, suspect.topic_id, suspect.key_digest,
       coalesce(match.topic_id, suspect.topic_id) as at_topic_id,
       coalesce(match.partition_id, suspect.partition_id) as at_partition_id,
       coalesce(match.log_offset, suspect.log_offset) as at_offset, match.how,
       case
         when match.how in ('place', 'searched', 'moved', 'equivalent') then 'matched'
         when match.how = 'differs' then 'corrupted'
         when match.how = 'mispartitioned' then 'misrouted'
         -- What else was matched wrongly has the name of its class.
         when match.how is not null then match.how
         when excuse.id is not null then excuse.class
         when suspect.state = 'refused' then 'refused'
         when resent.first_id is not null then 'resent'
         when is_unconfirmed(suspect.op, suspect.lsn, pass.is_confirmed, pass.reached_lsn,
                             suspect.id < pass.committed_id) then 'pending'
         -- An open transaction hides what comes after it, and a damaged batch what is in it.
         when log.is_hidden then 'indeterminate'
         when unheard.class is not null then unheard.class
         when topic.settings_known and not topic.compacts
              and not (topic.deletes and coalesce(log.has_expired, false)) then 'lost_unacked'
         -- If no record of the key is left, only a tombstone could have removed the others, and later itself.
         when keyed.key_digest is null and not coalesce(log.has_expired, false)
              and (suspect.key_digest is null or not coalesce(tombstone.last_id >= suspect.id, false))
                then 'lost_unacked'
         else 'indeterminate' end as class
  from suspect
  join topic using (topic_id)
  left join match using (id)
  left join excuse using (id)
  left join (select first_id from repeat_of union select first_id from unmade_repeat) as resent on resent.first_id = suspect.id
  left join passes_in as pass on pass.pass = suspect.pass
  left join unheard on unheard.id = suspect.id
  left join (select partition_range.topic_id, bool_or(partition_range.low > 0) as has_expired,
                    bool_or(unseen.topic_id is not null) as is_hidden
               from partition_range
                 left join (select distinct topic_id, partition_id from hole
                             where kind in ('open', 'damaged')) as unseen
                 using (topic_id, partition_id)
              group by partition_range.topic_id) as log on log.topic_id = suspect.topic_id
  left join (select message.topic_id, message.key_digest, max(message.id) as last_id from message
               semi join (select topic_id, key_digest from suspect
                           where state <> 'acknowledged') as u using (topic_id, key_digest)
              where message.value_digest is null group by message.topic_id, message.key_digest) as tombstone
                on tombstone.topic_id = suspect.topic_id and tombstone.key_digest = suspect.key_digest
  left join (select distinct suspect_record.topic_id, suspect_record.key_digest from suspect_record
               semi join (select topic_id, key_digest from suspect
                           where state <> 'acknowledged') as u using (topic_id, key_digest)) as keyed
    on keyed.topic_id = suspect.topic_id and keyed.key_digest = suspect.key_digest;

-- A change that was sent again and arrived twice: the first is matched, the others are redelivered, or repeated where
-- that was never to happen.
create table redelivered_message as
select r.id, bool_or(coalesce(later_pass.is_exactly_once and first_pass.is_exactly_once, false)) as is_promised
  from repeat_of r
  join message as again on again.id = r.id
  join message as first on first.id = r.first_id
  left join passes_in as later_pass on later_pass.pass = again.pass
  left join passes_in as first_pass on first_pass.pass = first.pass
  left join message_class mine on mine.id = r.id
  left join message_class earlier on earlier.id = r.first_id
 where coalesce(mine.class, 'matched') = 'matched' and coalesce(earlier.class, 'matched') = 'matched'
 group by r.id;

create macro sent_again(is_promised) as case when is_promised then 'repeated' else 'redelivered' end;

update message_class set class = sent_again(again.is_promised) from redelivered_message as again where again.id = message_class.id;

create table without_message as
select id, lsn, ordinal, xid,
       case when is_unconfirmed(op, lsn, pass.is_confirmed, pass.reached_lsn, id < pass.committed_id)
            then 'pending' else 'lost_unsent' end as class
  from message left join passes_in as pass using (pass)
 where message.topic_id is null and message.no_message_reason is null;

-- Order is promised within a key. Only keys whose log order differs from the order of sending are examined. While a
-- relay is still running, a later session may have sent an unacknowledged message again: then it can't be known which
-- record is which, nor in what order they arrived.
create table undetermined_key as
select distinct topic_id, key_digest from suspect
 where state = 'unknown' and key_digest is not null and getvariable('resumed') < 9223372036854775807;

create table disordered_key as
select distinct topic_id, partition_id, key_digest
  from (select suspect.topic_id, match.partition_id, suspect.key_digest, suspect.id,
               lag(suspect.id) over (partition by suspect.topic_id, match.partition_id,
                                     suspect.key_digest order by match.log_offset) as before
          from match join suspect using (id)
         where match.how in ('place', 'searched', 'moved', 'equivalent')
           and suspect.key_digest is not null) as in_log_order
 anti join undetermined_key using (topic_id, key_digest)
 where before > id;

create table disordered_message as
select suspect.topic_id, match.partition_id, suspect.key_digest, match.log_offset, suspect.id
  from disordered_key join suspect using (topic_id, key_digest)
  join match
    on match.id = suspect.id and match.partition_id = disordered_key.partition_id
   and match.how in ('place', 'searched', 'moved', 'equivalent');

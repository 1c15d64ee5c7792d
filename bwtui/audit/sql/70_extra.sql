-- Records that no message accounts for. 75_extra_classes.sql classifies them, with the help of `inspected`, which
-- says whether the relay made a record and which change its headers name.
create table unconfirmed_tail as
select min(commit_us) as first_us,
       list(distinct commit_ms(commit_us)) filter (where no_message_reason is not null) as no_message_ms
  from message where in_transaction(op) and may_come_again(op, lsn, true, null, false);

create table extra as
select unmatched.topic_id, unmatched.partition_id, unmatched.log_offset, unmatched.timestamp_ms,
       unmatched.key_digest, unmatched.value_digest,
       coalesce(unmatched.log_offset < recorded_range.first_offset,
                unmatched.timestamp_ms < getvariable('first_received_us') // 1000) as is_before_window,
       coalesce(unmatched.log_offset > recorded_range.last_offset, true) as is_after_last,
       -- A segment may end within a transaction, the rest of which has the same timestamp; and unconfirmed changes
       -- are sent again, perhaps in other bytes.
       is_after_last
         and unmatched.timestamp_ms >= commit_ms(coalesce(unconfirmed_tail.first_us,
                                                          getvariable('last_change_us'))) as is_after_window,
       is_after_last and unmatched.timestamp_ms > commit_ms(getvariable('last_change_us')) as is_after_last_commit,
       -- A change that made no message may make one when it is sent again.
       is_after_last
         and coalesce(list_contains(unconfirmed_tail.no_message_ms, unmatched.timestamp_ms), false)
         as at_messageless_commit
  from unmatched left join recorded_range using (topic_id, partition_id) cross join unconfirmed_tail;

create table copy as
select x.topic_id, x.partition_id, x.log_offset, true as is_same_topic,
       -- A chunk of rows is read and sent again, at another time, if the relay was killed before it had noted its end.
       same.may_come_again or coalesce(x.timestamp_ms > same.first_put_ms, false) as may_come_again,
       list_contains(same.commit_times, x.timestamp_ms) as is_at_commit_time
  from extra x
  join (select message.topic_id, message.key_digest, message.value_digest,
               bool_or(may_come_again(message.op, message.lsn, pass.is_confirmed, pass.reached_lsn,
                                      message.id < pass.committed_id))
                 as may_come_again,
               min(commit_ms(message.commit_us))
                 filter (not in_transaction(message.op) and pass.reached_lsn is not null) as first_put_ms,
               list(distinct commit_ms(message.commit_us)) as commit_times
          from message left join passes_in as pass using (pass)
          semi join extra
            on extra.topic_id = message.topic_id and extra.key_digest is not distinct from message.key_digest
           and extra.value_digest is not distinct from message.value_digest
         group by all) as same
    on same.topic_id = x.topic_id and same.key_digest is not distinct from x.key_digest
   and same.value_digest is not distinct from x.value_digest;

insert into copy
select distinct x.topic_id, x.partition_id, x.log_offset, false, false, false
  from extra x anti join copy using (topic_id, partition_id, log_offset)
  join message
    on message.topic_id <> x.topic_id and message.key_digest is not distinct from x.key_digest
   and message.value_digest is not distinct from x.value_digest
 where x.key_digest is not null or x.value_digest is not null;

-- Changes that were relayed but not recorded are, in each partition, between what was sent before and after the gap.
create table unrecorded_range as
select partition_range.topic_id, partition_range.partition_id, g.gap,
       coalesce(max(message.log_offset) filter (where message.id < g.before_id), -1) as low,
       coalesce(min(message.log_offset) filter (where message.id >= g.before_id), 9223372036854775807) as high
  from gaps_in g cross join partition_range
  left join message
    on message.topic_id = partition_range.topic_id and message.partition_id = partition_range.partition_id
   and message.state = 'acknowledged'
 group by partition_range.topic_id, partition_range.partition_id, g.gap;

-- Whether the change named in a record's headers lies outside the recording, as the rest of its last transaction
-- does, or rows that were put into the stream later.
create table identified as
select j.*, coalesce(j.lsn < getvariable('first_lsn')
                     or ((j.lsn > getvariable('last_change_lsn')
                          or (j.lsn = getvariable('last_change_lsn') and j.ordinal > ends.ordinal))
                         and beside.lsn is null), false) as is_outside,
       coalesce(j.lsn >= least(getvariable('confirmed'), getvariable('resumed')), false) as may_repeat
  from inspected j
 cross join (select max(ordinal) as ordinal from message
              where lsn = getvariable('last_change_lsn') and in_transaction(op)) as ends
  left join (select distinct lsn, ordinal from message where not in_transaction(op)) as beside
    on beside.lsn = j.lsn and beside.ordinal = j.ordinal;

-- One row if the relay has sent anything since the recording ended, else none.
create table relay_continued as
select distinct true as has_continued
  from extra x join identified j using (topic_id, partition_id, log_offset)
  left join copy using (topic_id, partition_id, log_offset)
 where (copy.topic_id is null and j.made_by_relay
        and coalesce(j.lsn > getvariable('last_lsn'), x.is_after_last_commit))
    -- Rows that are put into the stream may all be what they were.
    or (j.has_other_session and x.is_after_last_commit);

create table extra_class as
select x.topic_id, x.partition_id, x.log_offset, x.key_digest, x.value_digest, j.lsn, j.ordinal,
       case
         when x.is_before_window then 'outside_window'
         when copy.is_same_topic
           and not coalesce(topic_partitioner.is_followed
                            and not list_contains(sent.home_partitions, x.partition_id), false)
           then case
             -- An unrecorded run sent it: the tail again, or a later change back to an earlier row.
             when gap.topic_id is not null or (x.is_after_last and copy.may_come_again) then 'outside_window'
             when (x.is_after_last_commit and coalesce(j.is_outside, false))
               or (x.is_after_last and coalesce(j.may_repeat, false))
               then 'outside_window'
             when x.at_messageless_commit and j.lsn is null and not copy.is_at_commit_time then 'outside_window'
             when x.is_after_last_commit and j.lsn is null and (select count(*) from relay_continued) > 0
               then 'outside_window'
             else 'duplicated' end
         when copy.is_same_topic or (copy.is_same_topic is not null and not coalesce(j.made_by_relay, false))
           then 'misrouted'
         -- Removed since the scan, so it can't be inspected.
         when j.topic_id is null and x.is_after_window then 'outside_window'
         when not coalesce(j.made_by_relay, false) then 'foreign'
         when j.is_outside or (x.is_after_last and j.may_repeat) then 'outside_window'
         when j.lsn is null and (x.is_after_window or gap.topic_id is not null) then 'outside_window'
         -- It looks like the topic's own, but may still be a copy of another topic's message.
         when copy.is_same_topic is not null then 'misrouted'
         else 'phantom' end as class
  from extra x
  join topic using (topic_id) join topic_partitioner using (topic_id)
  left join copy using (topic_id, partition_id, log_offset)
  left join identified j using (topic_id, partition_id, log_offset)
  left join (select distinct unrecorded_range.topic_id, unrecorded_range.partition_id,
                    extra.log_offset
               from unrecorded_range join extra
                 on extra.topic_id = unrecorded_range.topic_id and extra.partition_id = unrecorded_range.partition_id
              and extra.log_offset > unrecorded_range.low
              and extra.log_offset < unrecorded_range.high) as gap using (topic_id, partition_id, log_offset)
  left join (select message.topic_id, message.key_digest,
                    list_concat(list(distinct message.key_hash % topic.partitions),
                                list(distinct message.key_hash % former.partitions)
                                  filter (where former.partitions > 0)) as home_partitions
               from message semi join extra using (key_digest) join topic using (topic_id)
               left join former_partition_count former
                 on former.topic_id = message.topic_id and message.id < former.before_id
              where message.key_hash is not null
              group by message.topic_id, message.key_digest) as sent
    on sent.topic_id = x.topic_id and sent.key_digest = x.key_digest;

-- Finds the partitions worth a close look. A partition is sound when every acknowledged message is at its offset,
-- nothing else is in the log, and the log has the order of sending; nothing more can be wrong in it. All others are
-- suspect, and only those are examined key by key.
create table acknowledged as
select message.id, message.topic_id, message.partition_id, message.log_offset, message.key_hash,
       record.log_offset is not null and message.key_digest is not distinct from record.key_digest
         and message.value_digest is not distinct from record.value_digest as is_same,
       is_same and not topic.log_append and record.timestamp_ms <> commit_ms(message.commit_us) as other_time,
       is_same and record.headers_digest is distinct from message.headers_digest as other_headers
  from message left join record using (topic_id, partition_id, log_offset)
  left join topic on topic.topic_id = message.topic_id
 where message.topic_id is not null and message.state = 'acknowledged';

create table partition_order as
select topic_id, partition_id, count(*) as sends, count(*) filter (where is_same) as arrivals,
       coalesce(bool_or(before_offset = log_offset), false) as has_shared_offset,
       coalesce(bool_or(before_id > id), false) as is_out_of_order,
       min(log_offset) as first_offset, max(log_offset) as last_offset
  from (select topic_id, partition_id, log_offset, id, is_same, lag(log_offset) over w as before_offset,
               lag(id) over w as before_id
          from acknowledged window w as (partition by topic_id, partition_id order by log_offset, id))
 group by topic_id, partition_id;

create table record_count as select topic_id, partition_id, count(*) as n from record group by topic_id, partition_id;

-- Messages that are not in the partition that the Java clients' partitioner would choose for their key today.
create table off_partition as
select topic_id, partition_id, id, log_offset, key_hash from acknowledged join topic using (topic_id)
 where key_hash is not null and partitions > 1 and key_hash % partitions <> partition_id;

-- Messages sent while the topic had fewer partitions are where they should be. It had n partitions from the first
-- message in partition n - 1 until some time before the first in a higher one, provided that nine in ten keys of that
-- period are where n partitions put them, including at least three that today's count would put somewhere else.
create table former_partition_count as
with first_in as (select topic_id, partition_id, min(id) as id from acknowledged group by topic_id, partition_id),
     period as (select topic.topic_id, n.n,
                       coalesce(min(f.id) filter (where f.partition_id >= n.n - 1), 9223372036854775807) as from_id,
                       coalesce(min(f.id) filter (where f.partition_id >= n.n), 9223372036854775807) as before_id
                from topic cross join unnest(range(1, topic.partitions)) as n(n)
                left join first_in f on f.topic_id = topic.topic_id
               where topic.topic_id in (select topic_id from off_partition)
               group by all),
     evidence as (select period.*, max(x.id) as last_id from period
                join off_partition x
                  on x.topic_id = period.topic_id and x.id >= period.from_id and x.id < period.before_id
               where x.key_hash % period.n = x.partition_id
               group by all having count(distinct x.key_hash) >= 3)
select evidence.topic_id, evidence.n as partitions, evidence.before_id from evidence
  join acknowledged
    on acknowledged.topic_id = evidence.topic_id
   and acknowledged.id between evidence.from_id and evidence.last_id
 where acknowledged.key_hash is not null
 group by all
having count(*) filter (where acknowledged.key_hash % evidence.n = acknowledged.partition_id) >= 0.9 * count(*);

-- Whether each keyed message is off its partition; it counts only in topics that follow the partitioner.
create table keyed as
select acknowledged.topic_id, acknowledged.partition_id, acknowledged.id, acknowledged.log_offset,
       x.id is not null as is_off
  from acknowledged join topic using (topic_id)
  left join (select off_partition.id, off_partition.topic_id from off_partition
               anti join former_partition_count former
                 on former.topic_id = off_partition.topic_id and off_partition.id < former.before_id
                and off_partition.key_hash % former.partitions = off_partition.partition_id) as x
    on x.topic_id = acknowledged.topic_id and x.id = acknowledged.id
 where acknowledged.key_hash is not null and topic.partitions > 1;

create table topic_partitioner as
select topic_id, coalesce(partitions = 1, true)
          or coalesce(count(*) filter (where not is_off) >= 0.9 * count(*) and count(keyed.id) > 0, false)
          as is_followed
  from topic left join keyed using (topic_id)
 group by topic_id, partitions;

create table mispartitioned as
select keyed.* exclude (is_off) from keyed join topic_partitioner using (topic_id) where is_followed and is_off;

-- The partition where an unacknowledged message's key belongs, or null where that can't be known.
create table home_partition as
select message.id,
       any_value(case when topic_partitioner.is_followed then message.key_hash % topic.partitions end) as partition_id
  from message join topic using (topic_id) join topic_partitioner using (topic_id)
  left join former_partition_count former on former.topic_id = message.topic_id and message.id < former.before_id
 where message.state <> 'acknowledged' and message.key_hash is not null
 group by message.id
having bool_and(former.partitions is null
                or message.key_hash % former.partitions = message.key_hash % topic.partitions);

create table unacknowledged as
select message.id, message.topic_id, home_partition.partition_id
  from message join topic using (topic_id) left join home_partition using (id)
 where message.state <> 'acknowledged';

create table suspect_partition as
select partition_range.topic_id, partition_range.partition_id
  from partition_range
  left join partition_order using (topic_id, partition_id)
  left join record_count using (topic_id, partition_id)
 where coalesce(partition_order.arrivals, 0) <> coalesce(partition_order.sends, 0)
    or coalesce(partition_order.has_shared_offset, false) or coalesce(partition_order.is_out_of_order, false)
    or coalesce(record_count.n, 0) <> coalesce(partition_order.arrivals, 0)
union
select topic_id, partition_id from mispartitioned
union
select partition_range.topic_id, partition_range.partition_id
  from partition_range join unacknowledged u on u.topic_id = partition_range.topic_id
 where coalesce(u.partition_id, partition_range.partition_id) = partition_range.partition_id
union
-- A topic that was made again with fewer partitions: the recording names one that does not exist.
select topic_id, partition_id from partition_order anti join partition_range using (topic_id, partition_id);

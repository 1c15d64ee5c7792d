-- Messages without an acknowledgement: looked for in the partition that the partitioner chooses, if it is known, with
-- the commit's timestamp unless the broker replaces timestamps. What --exactly-once is known to have aborted is nowhere.
create or replace temp table sought as
select suspect.id, suspect.pass, suspect.topic_id, suspect.key_digest, suspect.value_digest, true as is_bounded,
       0 as from_offset,
       case when not topic.log_append then suspect.commit_us // 1000 end as timestamp_ms,
       home_partition.partition_id
  from suspect join topic using (topic_id) left join home_partition using (id) anti join match using (id)
  left join passes_in as pass on pass.pass = suspect.pass
 where suspect.state <> 'acknowledged' and not coalesce(suspect.id >= pass.committed_id, false);

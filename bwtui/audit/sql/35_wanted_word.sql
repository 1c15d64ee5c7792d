-- Messages of which no word came: looked for where the partitioner puts them, if that is known, with the
-- commit's time unless the broker replaced it.
create or replace temp table wanted as
select s.id, s.pass, s.t, s.kd, s.vd, true as bounded, 0 as since_o,
       case when not topic.log_append then s.commit_us // 1000 end as ms,
       case when homes.is_known and s.hash31 is not null then s.hash31 % topic.partitions end as p
  from s join topic using (t) join homes using (t) anti join hit using (id)
 where s.state <> 'acknowledged';

-- Messages of which no word came: looked for where the partitioner puts them, if that is known, with the
-- commit's time unless the broker replaced it.
create or replace temp table wanted as
select s.id, s.pass, s.t, s.kd, s.vd, true as bounded, 0 as since_o,
       case when not topic.log_append then s.commit_us // 1000 end as ms,
       home.p
  from s join topic using (t) left join home using (id) anti join hit using (id)
 where s.state <> 'acknowledged';

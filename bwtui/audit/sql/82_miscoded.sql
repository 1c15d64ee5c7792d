-- Messages that were wrong before they were sent. Those of quiet partitions come among the others now.
insert into s
select e.* exclude (is_repeat, without) from e semi join miscoded using (id) anti join s using (id)
 where e.state = 'acknowledged';

insert into f
select r.* from r
  semi join (select e.t, e.p, e.o from e semi join miscoded using (id) anti join settled using (id)) as m
    using (t, p, o);

insert into hit
select s.id, s.t, s.p, s.o, 'place' from s semi join miscoded using (id) anti join settled using (id);

insert into settled
select s.id, s.t, s.kd, s.t, s.p, s.o, 'place', 'matched'
  from s semi join miscoded using (id) anti join settled using (id);

update settled set class = 'corrupted' from miscoded
 where settled.id = miscoded.id and settled.class in ('matched', 'redelivered');

-- In a log that is shifted another message with the same bytes may have come to the place of this one: what was sent
-- before it, and behind it, stands as far from its place as a copy of it does.
create table coincidence as
select beside.id, beside.t, beside.p, beside.o + beside.before as o
  from (select hit.id, hit.t, hit.p, hit.o, hit.how, s.kd, s.vd,
               lag(hit.o - s.o) over w as before, lead(hit.o - s.o) over w as after
          from hit join s using (id) where s.state = 'acknowledged' and hit.p = s.p
        window w as (partition by hit.t, hit.p order by s.o)) as beside
  join free on free.t = beside.t and free.p = beside.p and free.o = beside.o + beside.before
   and free.kd is not distinct from beside.kd and free.vd is not distinct from beside.vd
  semi join (select t, p, kd, vd from s where state = 'acknowledged' group by all having count(*) > 1) as twin
    on twin.t = beside.t and twin.p = beside.p and twin.kd is not distinct from beside.kd
   and twin.vd is not distinct from beside.vd
 where beside.how = 'place' and beside.before <> 0 and coalesce(beside.after, beside.before) = beside.before;

update hit set o = coincidence.o, how = 'moved' from coincidence where hit.id = coincidence.id;

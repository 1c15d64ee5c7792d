-- Which of two messages with the same bytes stands where, nobody can tell, if one is not at its place: they are in
-- the order in which they were sent.
create table sorted as
select id, o, nth_o.nth_at as new_o
  from (select hit.id, hit.o, hit.t, hit.p, s.kd, s.vd,
               row_number() over (partition by hit.t, hit.p, s.kd, s.vd order by hit.id) as nth
          from hit join s using (id) where hit.how in ('place', 'moved')) as nth_id
  join (select hit.t, hit.p, s.kd, s.vd, hit.o as nth_at,
               row_number() over (partition by hit.t, hit.p, s.kd, s.vd order by hit.o) as nth,
               bool_or(hit.how = 'moved') over (partition by hit.t, hit.p, s.kd, s.vd) as has_moved
          from hit join s using (id) where hit.how in ('place', 'moved')) as nth_o
    on nth_o.t = nth_id.t and nth_o.p = nth_id.p and nth_o.kd is not distinct from nth_id.kd
   and nth_o.vd is not distinct from nth_id.vd and nth_o.nth = nth_id.nth
 where nth_o.has_moved and nth_o.nth_at <> nth_id.o;

update hit set o = sorted.new_o, how = case when s.o = sorted.new_o then 'place' else 'moved' end
  from sorted join s using (id) where hit.id = sorted.id;

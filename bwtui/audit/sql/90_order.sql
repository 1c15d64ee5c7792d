-- Order is promised within a key. Only keys in which the log and the order of sending disagree are looked at.
-- While a relay goes on, a later session may have sent again what no word came of: which record is whose can't be
-- known then, and so not in which order they came.
create table unheard as
select distinct t, kd from s
 where state = 'unknown' and kd is not null and getvariable('resumed') < 9223372036854775807;

create table disorder as
select distinct t, p, kd
  from (select s.t, hit.p, s.kd, s.id, lag(s.id) over (partition by s.t, hit.p, s.kd order by hit.o) as before
          from hit join s using (id)
         where hit.how in ('place', 'word', 'moved', 'equivalent') and s.kd is not null) as placed_ones
 anti join unheard using (t, kd)
 where before > id;

create table disordered as
select s.t, hit.p, s.kd, hit.o, s.id
  from disorder join s using (t, kd)
  join hit on hit.id = s.id and hit.p = disorder.p and hit.how in ('place', 'word', 'moved', 'equivalent');

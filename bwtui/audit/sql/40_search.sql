-- Looks for messages of `wanted` (id, pass, t, p or null, kd, vd, ms or null, …) among the records that nothing
-- accounts for: the same bytes in the partition, and, if bounded, at the same time or behind what was sent there
-- before, and before where the ledger has the same bytes next: that may be the same change, sent again. While a
-- relay goes on, what stands behind a later session's messages is of that session, whose rest is not known.
create or replace temp table candidate as
select c.id, c.t, c.p, c.o, c.kd, c.vd
  from (select w.id, w.pass, w.ms, w.bounded, free.t, free.p, free.o, w.kd, w.vd
          from wanted w
          join free on free.t = w.t and free.kd is not distinct from w.kd
           and free.vd is not distinct from w.vd and (w.p is null or w.p = free.p)
           and (w.ms is null or w.ms = free.ts) and free.o >= w.since_o) as c
  asof left join (select id, t, p, o from s where state = 'acknowledged') as sent
    on sent.t = c.t and sent.p = c.p and c.id > sent.id
  asof left join (select id, t, p, kd, vd, o from s where state = 'acknowledged') as next
    on next.t = c.t and next.p = c.p and next.kd is not distinct from c.kd
   and next.vd is not distinct from c.vd and c.id < next.id
  asof left join (select t, p, pass, min(o) as o from s where state = 'acknowledged' group by all) as later
    on later.t = c.t and later.p = c.p and c.pass < later.pass
 where not c.bounded
    or ((c.ms is not null or c.o > coalesce(sent.o, -1)) and not coalesce(c.o > next.o, false)
        and not coalesce(c.o > later.o and getvariable('resumed') < 9223372036854775807, false));

-- Where there is one message and one copy nothing is to choose.
create or replace temp table choice as
select c.*, count(*) over (partition by id) > 1 or count(*) over (partition by t, p, o) > 1 as is_open
  from candidate c;

insert into hit select id, t, p, o, getvariable('how') from choice where not is_open;

-- Of several copies the one that stands as far from its place as what was sent beside it: a log that was restored
-- is shifted as a whole, or from some record on.
create or replace temp table shift as
select hit.t, hit.p, s.o as at_o, hit.o - s.o as far
  from hit join s using (id) where s.state = 'acknowledged' and hit.p = s.p;

create or replace temp table open_choice as
select c.id, c.t, c.p, c.o, coalesce(abs(c.o - s.o - coalesce(before.far, after.far)), 0) as away
  from choice c join s using (id)
  asof left join shift as before on before.t = c.t and before.p = c.p and s.o > before.at_o
  asof left join shift as after on after.t = c.t and after.p = c.p and s.o < after.at_o
 where c.is_open;

-- A partition is quiet when every acknowledged message stands at its place, nothing else stands there, and
-- the order of sending is the order of the log. Nothing more can be wrong in it, so only the others ("loud")
-- are looked at key by key.
create table placed as
select e.id, e.t, e.p, e.o, e.hash31,
       r.o is not null and e.kd is not distinct from r.kd and e.vd is not distinct from r.vd as same,
       same and not topic.log_append and r.ts <> ms(e.commit_us) as other_time,
       same and r.hd is distinct from e.hd as other_headers
  from e left join r on r.t = e.t and r.p = e.p and r.o = e.o
  left join topic on topic.t = e.t
 where e.t is not null and e.state = 'acknowledged';

create table step as
select t, p, count(*) as sends, count(*) filter (where same) as same,
       coalesce(bool_or(before_o = o), false) as collides,
       coalesce(bool_or(before_id > id), false) as inverts,
       min(o) as first_o, max(o) as last_o
  from (select t, p, o, id, same, lag(o) over w as before_o, lag(id) over w as before_id
          from placed window w as (partition by t, p order by o, id))
 group by t, p;

create table records as select t, p, count(*) as n from r group by t, p;

-- Messages that are not where the partitioner of the Java clients puts their key now.
create table elsewhere as
select t, p, id, o, hash31 from placed join topic using (t)
 where hash31 is not null and partitions > 1 and hash31 % partitions <> p;

-- Those of a time when the topic had fewer partitions are in order. It had just n from the first message in
-- partition n - 1 to some time before the first in a later one, if nine in ten of the keys of that time are where
-- n partitions put them, and three or more of those that are elsewhere now.
create table narrower as
with first_in as (select t, p, min(id) as id from placed group by t, p),
     size as (select topic.t, n.n, coalesce(min(f.id) filter (where f.p >= n.n - 1), 9223372036854775807) as from_id,
                     coalesce(min(f.id) filter (where f.p >= n.n), 9223372036854775807) as before_id
                from topic cross join unnest(range(1, topic.partitions)) as n(n) left join first_in f on f.t = topic.t
               where topic.t in (select t from elsewhere)
               group by all),
     said as (select size.*, max(x.id) as last_id from size
                join elsewhere x on x.t = size.t and x.id >= size.from_id and x.id < size.before_id
               where x.hash31 % size.n = x.p
               group by all having count(distinct x.hash31) >= 3)
select said.t, said.n, said.before_id from said
  join placed on placed.t = said.t and placed.id >= said.from_id and placed.id <= said.last_id
 where placed.hash31 is not null
 group by all having count(*) filter (where placed.hash31 % said.n = placed.p) >= 0.9 * count(*);

-- Judged only for topics that keep to the partitioner.
create table homed as
select placed.t, placed.p, placed.id, placed.o, x.id is not null as astray
  from placed join topic using (t)
  left join (select elsewhere.id, elsewhere.t from elsewhere
               anti join narrower n
                 on n.t = elsewhere.t and elsewhere.id < n.before_id and elsewhere.hash31 % n.n = elsewhere.p) as x
    on x.t = placed.t and x.id = placed.id
 where placed.hash31 is not null and topic.partitions > 1;

create table homes as
select t, coalesce(partitions = 1, true)
          or coalesce(count(*) filter (where not astray) >= 0.9 * count(*) and count(homed.id) > 0, false)
          as is_known
  from topic left join homed using (t)
 group by t, partitions;

create table astray as
select homed.* exclude (astray) from homed join homes using (t) where is_known and astray;

-- Where a key belongs, or null where that can't be known.
create table home as
select e.id, any_value(case when homes.is_known then e.hash31 % topic.partitions end) as p
  from e join topic using (t) join homes using (t)
  left join narrower n on n.t = e.t and e.id < n.before_id
 where e.state <> 'acknowledged' and e.hash31 is not null
 group by e.id
having bool_and(n.n is null or e.hash31 % n.n = e.hash31 % topic.partitions);

create table unledgered as
select e.id, e.t, home.p
  from e join topic using (t) left join home using (id)
 where e.state <> 'acknowledged';

create table loud as
select part.t, part.p
  from part
  left join step using (t, p)
  left join records using (t, p)
 where coalesce(step.same, 0) <> coalesce(step.sends, 0)
    or coalesce(step.collides, false) or coalesce(step.inverts, false)
    or coalesce(records.n, 0) <> coalesce(step.same, 0)
union
select t, p from astray
union
select part.t, part.p
  from part join unledgered u on u.t = part.t
 where coalesce(u.p, part.p) = part.p
union
-- A topic that shrank: the ledger names a partition which is not there.
select t, p from step anti join part using (t, p);

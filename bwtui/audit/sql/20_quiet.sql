-- A partition is quiet when every acknowledged message stands at its place, nothing else stands there, and
-- the order of sending is the order of the log. Nothing more can be wrong in it, so only the others ("loud")
-- are looked at key by key.
create table placed as
select e.id, e.t, e.p, e.o, e.hash31,
       r.o is not null and e.kd is not distinct from r.kd and e.vd is not distinct from r.vd as same
  from e left join r on r.t = e.t and r.p = e.p and r.o = e.o
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

-- Where the partitioner of the Java clients puts the key; judged only for topics that keep to it.
create table homed as
select t, p, id, o, hash31 % partitions <> p as astray
  from placed join topic using (t)
 where hash31 is not null and partitions > 1;

create table homes as
select t, coalesce(partitions = 1, true)
          or coalesce(count(*) filter (where not astray) >= 0.9 * count(*) and count(homed.id) > 0, false)
          as is_known
  from topic left join homed using (t)
 group by t, partitions;

create table astray as
select homed.* exclude (astray) from homed join homes using (t) where is_known and astray;

create table unledgered as
select e.id, e.t, e.hash31, topic.partitions, homes.is_known
  from e join topic using (t) join homes using (t)
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
 where not u.is_known or u.hash31 is null or u.hash31 % u.partitions = part.p
union
-- A topic that shrank: the ledger names a partition which is not there.
select t, p from step anti join part using (t, p);

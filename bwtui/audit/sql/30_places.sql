-- What the ledger says: the strongest evidence there is.
create table s as
select e.* exclude (is_repeat, without) from e semi join loud using (t, p) where e.state = 'acknowledged'
union all by name
select e.* exclude (is_repeat, without) from e semi join unledgered using (id);

create table f as select r.* from r semi join loud using (t, p);

-- One row for each message and the record that it was found in. Of several messages that the ledger puts at
-- one place, the last one has it: a broker that lost its end gives offsets out again.
create table hit as
select s.id, s.t, s.p, s.o, 'place' as how
  from s join f on f.t = s.t and f.p = s.p and f.o = s.o
   and s.kd is not distinct from f.kd and s.vd is not distinct from f.vd
 where s.state = 'acknowledged'
qualify row_number() over (partition by s.t, s.p, s.o order by s.id desc) = 1;

create view free as select f.* from f anti join hit using (t, p, o);

-- Another record of the same key, or the same value under another key, at the place of the message, which is
-- neither a message of which no word came nor one of the partition's that is not at its own place: those two
-- have changed places. That neither has a key, or
-- that both are tombstones, says nothing; then the time must be the same.
create table wanted_bytes as
select distinct s.t, case when state = 'acknowledged' then p end as p, coalesce(kd, 0) as kd,
       kd is null as no_key, coalesce(vd, 0) as vd, vd is null as no_value
  from s anti join hit using (id);

-- A record under another key that says what a message of that key says is a copy of it, not a changed key; and so is
-- one under the same key, if the message itself stands elsewhere.
create table copied_there as
select distinct free.t, free.p, free.o
  from s
  join free on free.t = s.t and free.p = s.p and free.o = s.o
  join e on e.t = free.t and e.kd = free.kd and e.vd is not distinct from free.vd
  left join (select distinct t, p, kd, vd from free) as itself
    on itself.t = s.t and itself.p = s.p and itself.kd = s.kd and itself.vd is not distinct from s.vd
 where s.state = 'acknowledged' and (s.kd <> free.kd or itself.t is not null);

create table differing as
select s.id, s.t, s.p, s.o, s.kd is distinct from free.kd as other_key
  from s
  join free on free.t = s.t and free.p = s.p and free.o = s.o
  join topic on topic.t = s.t
  anti join hit on hit.id = s.id
  anti join copied_there c on c.t = free.t and c.p = free.p and c.o = free.o
  anti join wanted_bytes w
    on w.t = free.t and coalesce(w.p, free.p) = free.p and w.kd = coalesce(free.kd, 0) and w.no_key = (free.kd is null)
   and w.vd = coalesce(free.vd, 0) and w.no_value = (free.vd is null)
 where s.state = 'acknowledged'
   and (s.kd = free.kd or s.vd = free.vd
        or ((s.kd is null and free.kd is null or s.kd is not null and free.kd is not null and s.vd is null and free.vd is null)
            and (topic.log_append or free.ts = ms(s.commit_us))))
qualify row_number() over (partition by s.t, s.p, s.o order by s.id desc) = 1;

insert into hit select id, t, p, o, 'differs' from differing;

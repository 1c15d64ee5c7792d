-- Keys of which a reader that keeps the latest value has another one now than it should.
create table odd_key as
select distinct t, kd from settled where class not in ('matched', 'redelivered') and kd is not null
union select t, kd from settled where how in ('moved', 'word') and kd is not null
union select t, kd from extra_class where class <> 'outside_window' and kd is not null
union select t, kd from disorder;

create table should_be_last as
select s.t, s.kd, s.id, s.vd, case when settled.class = 'misrouted' then coalesce(s.p, settled.at_p)
                                   else settled.at_p end as p
  from s join settled using (id)
  semi join odd_key on odd_key.t = s.t and odd_key.kd = s.kd
  anti join unheard on unheard.t = s.t and unheard.kd = s.kd
 where settled.class not in ('pending', 'resent', 'refused')
qualify row_number() over (partition by s.t, s.kd order by s.id desc) = 1;

create table is_last as
select f.t, f.p, f.kd, f.o, f.vd, hit.how
  from f
  semi join odd_key on odd_key.t = f.t and odd_key.kd = f.kd
  anti join (select t, p, o from extra_class where class = 'outside_window') as outside
    on outside.t = f.t and outside.p = f.p and outside.o = f.o
  left join hit on hit.t = f.t and hit.p = f.p and hit.o = f.o
qualify row_number() over (partition by f.t, f.p, f.kd order by f.o desc) = 1;

create table latest_wrong as
select s.id, l.t, l.p, l.o, l.kd,
       case when s.vd is null and settled.how is null then 'resurrected' else 'regressed' end as class
  from should_be_last s
  join settled using (id)
  join is_last l on l.t = s.t and l.p = s.p and l.kd = s.kd
  -- Behind an open transaction it may be there, and readers wait for it.
  anti join (select id from excuse where reason = 'open') as hidden on hidden.id = s.id
 where s.vd is distinct from l.vd and l.how is distinct from 'equivalent';

-- A transaction of which a reader sees a part for ever.
create table torn as
select e.lsn, any_value(e.xid) as xid, min(e.id) as id
  from e
  semi join (select e.lsn from e join settled using (id)
              where settled.class like 'lost%' and e.op not in ('snapshot', 'cleanup')
             union select lsn from without_message where class = 'lost_unsent') as hurt using (lsn)
  left join settled on settled.id = e.id
 where e.op not in ('snapshot', 'cleanup') and e.t is not null
 group by e.lsn
having bool_or(coalesce(settled.class, 'matched') in ('matched', 'redelivered'));

-- Records of a later pass before records of an earlier one: two relays wrote at once. What has been moved keeps its
-- order among what was moved as far; a message that was sent again late was moved alone. Of which pass a record is
-- that was found by its bytes alone can't be known where a later session may have sent the same again.
create table interleaved as
select t, p, min(o) as o
  from (select s.t, hit.p, hit.o, s.pass,
               lag(s.pass) over (partition by s.t, hit.p, coalesce(hit.o - s.o, 0) order by hit.o) as before
          from hit join s using (id) left join passes_in as pass using (pass)
         where hit.how in ('place', 'moved', 'equivalent')
            or (hit.how = 'word' and not may_come_again(s.op, s.lsn, pass.is_confirmed)))
 where before > pass group by t, p;

-- Messages that are there, with another time or other headers than they were sent with.
create view noted as
select id, t, p, o, other_time, other_headers from placed anti join hit using (id)
 where other_time or other_headers
union all
select hit.id, hit.t, hit.p, hit.o, not topic.log_append and f.ts <> ms(s.commit_us), s.hd is distinct from f.hd
  from hit join s using (id) join f on f.t = hit.t and f.p = hit.p and f.o = hit.o join topic on topic.t = hit.t
 where hit.how <> 'differs';

create table time_differs as select id, t, p, o from noted where other_time;
create table headers_differ as select id, t, p, o from noted where other_headers;

-- Holes in a log that has no reason for any, where the ledger has a message.
create table offset_gap as
select distinct hole.t, hole.p, hole.o, hole.o_end
  from hole join topic using (t)
  join excuse x on x.t = hole.t and x.p = hole.p and x.o >= hole.o and x.o < hole.o_end
 where hole.kind = 'gap' and topic.settings_known and not topic.compacts;

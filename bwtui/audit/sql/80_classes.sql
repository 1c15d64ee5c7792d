-- Every message of a loud partition, and every change without one that should have had one, has one class.
create table repeat_of as
select again.id, first.id as first_id
  from e as again join e as first
    on first.lsn = again.lsn and first.ordinal = again.ordinal and first.part = again.part
   and first.t = again.t and first.id < again.id
   and first.op not in ('snapshot', 'cleanup') and again.op not in ('snapshot', 'cleanup')
 where again.is_repeat;

create table settled as
select s.id, s.t, s.kd,
       coalesce(hit.t, s.t) as at_t, coalesce(hit.p, s.p) as at_p, coalesce(hit.o, s.o) as at_o, hit.how,
       case
         when hit.how in ('place', 'word', 'moved', 'equivalent') then 'matched'
         when hit.how = 'differs' then 'corrupted'
         when hit.how = 'rekeyed' then 'rekeyed'
         when hit.how in ('misrouted', 'astray') then 'misrouted'
         when excuse.id is not null then excuse.class
         when s.state = 'refused' then 'refused'
         when resent.first_id is not null then 'resent'
         when is_unconfirmed(s.op, s.lsn, pass.is_confirmed) then 'pending'
         -- An open transaction hides what is behind it, and a damaged batch what is in it.
         when log.is_hidden then 'indeterminate'
         when topic.settings_known and not topic.compacts
              and not (topic.deletes and coalesce(log.has_expired, false)) then 'lost_unacked'
         -- Of a key of which nothing is left, only a tombstone could have taken the rest, and then itself.
         when keyed.kd is null and not coalesce(log.has_expired, false)
              and (s.kd is null or not coalesce(tombstone.last_id >= s.id, false)) then 'lost_unacked'
         else 'indeterminate' end as class
  from s
  join topic using (t)
  left join hit using (id)
  left join excuse using (id)
  left join (select distinct first_id from repeat_of) as resent on resent.first_id = s.id
  left join passes_in as pass on pass.pass = s.pass
  left join (select part.t, bool_or(part.low > 0) as has_expired, bool_or(unseen.t is not null) as is_hidden
               from part left join (select distinct t, p from hole where kind in ('open', 'damaged')) as unseen
                 using (t, p)
              group by part.t) as log on log.t = s.t
  left join (select e.t, e.kd, max(e.id) as last_id from e
               semi join (select t, kd from s where state <> 'acknowledged') as u using (t, kd)
              where e.vd is null group by e.t, e.kd) as tombstone on tombstone.t = s.t and tombstone.kd = s.kd
  left join (select distinct f.t, f.kd from f
               semi join (select t, kd from s where state <> 'acknowledged') as u using (t, kd)) as keyed
    on keyed.t = s.t and keyed.kd = s.kd;

-- A change that was sent again and arrived twice: the first is the match, the others are repeats.
create table arrived_again as
select distinct r.id
  from repeat_of r
  left join settled mine on mine.id = r.id
  left join settled earlier on earlier.id = r.first_id
 where coalesce(mine.class, 'matched') = 'matched' and coalesce(earlier.class, 'matched') = 'matched';

update settled set class = 'redelivered' from arrived_again a where a.id = settled.id;

create table without_message as
select id, lsn, ordinal, xid,
       case when is_unconfirmed(op, lsn, pass.is_confirmed) then 'pending' else 'lost_unsent' end as class
  from e left join passes_in as pass using (pass)
 where e.t is null and e.without is null;

-- Everything that was found, one row each; `id` is the message's, `o` the place in Kafka.
create view finding as
with lost as (
  select class, id, at_t as t, at_p as p, at_o as o, null::varchar as note,
         case class when 'lost_acked' then 'broker' when 'indeterminate' then '' else 'relay' end as hop
    from settled where class in ('lost_acked', 'lost_unacked', 'indeterminate')
  union all
  select class, id, null, null, null, null, 'relay' from without_message where class = 'lost_unsent'),
wrong as (
  select s.class, s.id, s.at_t as t, s.at_p as p, s.at_o as o,
         case when m.id is not null then 'the message does not say what PostgreSQL said'
              when s.how = 'rekeyed' then 'its key is in other bytes, so that brokers take it for another key'
              when s.how = 'differs' then 'the bytes differ from those that were sent' end as note,
         case when m.id is not null or s.how = 'astray' then 'relay'
              when s.how = 'misrouted' then 'other' else 'broker' end as hop
    from settled s left join miscoded m using (id) where s.class in ('corrupted', 'rekeyed', 'misrouted')),
-- In JSON another topic's message may have the same bytes.
original as (
  select e.t, e.kd, e.vd, min(e.id) as id from e semi join extra_class x
      on x.kd is not distinct from e.kd and x.vd is not distinct from e.vd
   where e.t is not null group by e.t, e.kd, e.vd),
extra_one as (
  select x.class, copy.id, x.t, x.p, x.o, case when copy.id is not null then 'a copy of this message' end as note,
         case x.class when 'phantom' then 'relay' else 'other' end as hop
    from extra_class x
    left join original copy on x.class in ('duplicated', 'misrouted')
                           and x.kd is not distinct from copy.kd and x.vd is not distinct from copy.vd
   where x.class <> 'outside_window'
  qualify row_number() over (partition by x.t, x.p, x.o order by copy.t = x.t desc, copy.id) = 1)
select lost.* exclude (note),
       case excuse.reason
         when 'expired' then 'it is below the start of the log, which retention does not explain'
         when 'truncated' then 'the log ends before its place'
         when 'replaced' then 'another record stands in its place'
         when 'gap' then 'its place in the log is empty'
         when 'open' then 'its place is behind a transaction that is open'
         else excuse.reason end as note
  from lost left join excuse using (id)
union all by name select * from wrong
union all by name select * from extra_one
union all by name
select 'reordered' as class, id, t, p, o, 'it came behind later ones of its key' as note, 'broker' as hop from late
union all by name
select w.class, w.id, w.t, w.p, w.o,
       case when exists (select 1 from extra_class later
                          where later.class = 'outside_window'
                            and later.t = w.t and later.p = w.p and later.kd = w.kd and later.o > w.o)
            then 'it was the latest value of the key, until the recording had ended and another record came'
            else 'a reader that keeps the latest value of the key is wrong now' end as note,
       case when x.class in ('foreign', 'duplicated', 'misrouted') then 'other'
            when x.class = 'phantom' then 'relay' else 'broker' end as hop
  from latest_wrong w left join extra_class x on x.t = w.t and x.p = w.p and x.o = w.o
union all by name
select 'torn_transaction' as class, id, null as t, null as p, null as o,
       'some of its messages are there, and others are lost' as note, '' as hop from torn
union all by name
select 'interleaved_sessions' as class, null as id, t, p, o, 'two relays wrote at once' as note, 'relay' as hop
  from interleaved;

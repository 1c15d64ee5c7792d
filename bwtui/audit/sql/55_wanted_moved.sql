-- What is gone from its place without a proven excuse may stand at another: in a log that was restored, or
-- mended. Only where its place can't be seen that would be a guess.
create or replace temp table wanted as
select excuse.id, s.pass, excuse.t, excuse.kd, excuse.vd, excuse.p, false as bounded, null::bigint as ms,
       step.first_o as since_o
  from excuse join s using (id) join step on step.t = excuse.t and step.p = excuse.p
 where excuse.class in ('lost_acked', 'indeterminate') and excuse.reason <> 'open';

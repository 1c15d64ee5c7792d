-- What was lost at its place may stand at another: in a log that was restored, or mended.
create or replace temp table wanted as
select excuse.id, s.pass, excuse.t, excuse.kd, excuse.vd, excuse.p, false as bounded, null::bigint as ms,
       step.first_o as since_o
  from excuse join s using (id) join step on step.t = excuse.t and step.p = excuse.p
 where excuse.class = 'lost_acked';

-- What every message and every record was found to be; both must come to the whole.
create table expected_classes as
select class, count(*)::bigint as n from settled group by class
union all
select class, count(*) from without_message group by class
union all
select 'redelivered', count(*) from arrived_again anti join settled using (id)
union all
select 'matched', (select count(*) from e where t is not null)
                - (select count(*) from s)
                - (select count(*) from arrived_again anti join settled using (id));

create table actual_classes as
select settled.class, count(*)::bigint as n from hit join settled using (id) group by settled.class
union all
select class, count(*) from extra_class group by class
union all
select 'redelivered', count(*) from arrived_again anti join settled using (id)
union all
select 'matched', (select count(*) from r) - (select count(*) from f)
                - (select count(*) from arrived_again anti join settled using (id));

-- How many messages and records each class has; `core.check_balance` compares the sums with the whole.
create table expected_classes as
select class, count(*)::bigint as n from message_class group by class
union all
select class, count(*) from without_message group by class
union all
select sent_again(is_promised), count(*) from redelivered_message anti join message_class using (id) group by all
union all
select 'matched', (select count(*) from message where topic_id is not null)
                - (select count(*) from suspect)
                - (select count(*) from redelivered_message anti join message_class using (id));

create table actual_classes as
select message_class.class, count(*)::bigint as n from match join message_class using (id)
 group by message_class.class
union all
select class, count(*) from extra_class group by class
union all
select sent_again(is_promised), count(*) from redelivered_message anti join message_class using (id) group by all
union all
select 'matched', (select count(*) from record) - (select count(*) from suspect_record)
                - (select count(*) from redelivered_message anti join message_class using (id));

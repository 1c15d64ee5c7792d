import json

import duckdb
import pyarrow
from confluent_kafka import Consumer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

registry = SchemaRegistryClient({"url": "http://registry:8081"})
deserialize = AvroDeserializer(registry, conf={"subject.name.strategy.type": "TOPIC"})
consumer = Consumer(
    {
        "bootstrap.servers": "kafka:9092",
        "group.id": "duckdb",
        "auto.offset.reset": "earliest",
        # Every run reads from the beginning.
        "enable.auto.commit": False,
    }
)
messages = {"shop.orders": [], "shop.kinds": []}
consumer.subscribe(list(messages))
waited = 0
while waited < 5:
    message = consumer.poll(1)
    if message is None or message.error():
        waited += 1
        continue
    waited = 0
    topic = message.topic()
    key = deserialize(message.key(), SerializationContext(topic, MessageField.KEY))
    row = deserialize(message.value(), SerializationContext(topic, MessageField.VALUE))
    if row is not None and topic == "shop.kinds":
        # Arrow has no numeric without a precision: in JSON, such values are text.
        row = json.dumps(row, default=lambda value: value.hex() if isinstance(value, bytes) else str(value))
    messages[topic].append({"place": [message.partition(), message.offset()], "id": key["id"], "row": row})
consumer.close()

# DuckDB finds Arrow tables by their variables' names.
orders, kinds = (pyarrow.Table.from_pylist(found) for found in messages.values())
lines = duckdb.sql("""
    select 'shop.orders' as topic, place, id, if("row" is null, 'deleted', concat_ws(E'\t',
        coalesce("row".name, '-'), "row".price,
        strftime(make_timestamp(epoch_us("row".at)), '%Y-%m-%dT%H:%M:%S.%gZ'))) as line
    from orders
    union all
    select 'shop.kinds', place, id, len(json_keys("row"))::text from kinds
    order by place
""")
for topic, _, key, line in lines.fetchall():
    print(topic, key, line, sep="\t")

from confluent_kafka import Consumer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

registry = SchemaRegistryClient({"url": "http://registry:8081"})
deserialize = AvroDeserializer(registry, conf={"subject.name.strategy.type": "TOPIC"})
consumer = Consumer(
    {"bootstrap.servers": "kafka:9092", "group.id": "python", "auto.offset.reset": "earliest"}
)
consumer.subscribe(["shop.orders", "shop.kinds"])
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
    if row is None:
        print(topic, key["id"], "deleted", sep="\t")
    elif topic == "shop.orders":
        at = row["at"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
        print(topic, key["id"], row["name"] or "-", row["price"], at, sep="\t")
    else:
        print(topic, key["id"], len(row), sep="\t")
consumer.close()

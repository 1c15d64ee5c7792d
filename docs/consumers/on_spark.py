import json
from functools import reduce
from urllib.request import urlopen

from pyspark.sql import SparkSession
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.functions import coalesce, col, concat_ws, date_format, lit, to_json

spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()
messages = (
    spark.read.format("kafka")
    .option("kafka.bootstrap.servers", "kafka:9092")
    .option("subscribe", "shop.orders,shop.kinds")
    .load()
    # from_avro takes plain Avro, without the zero byte and the schema id before it.
    .selectExpr("*", "hex(substring(key, 2, 4)) key_id", "hex(substring(value, 2, 4)) value_id")
)


def narrow(part):
    """Take the decimals that Spark has no type for as the bytes that they are in Avro."""
    if part.get("logicalType") == "decimal" and part["precision"] > 38:
        return part["type"]
    return part


def record(name, number):
    """Return the record in a column whose schema has this id."""
    with urlopen(f"http://registry:8081/schemas/ids/{int(number, 16)}") as answer:
        schema = json.loads(json.load(answer)["schema"], object_hook=narrow)
    return from_avro(col(name).substr(6, 2**31 - 1), json.dumps(schema))


def lines(topic, key_id, value_id):
    """Return the messages of one pair of schemas; ``row`` is a struct with the table's columns."""
    found = messages.where(
        (col("topic") == topic) & (col("key_id") == key_id) & col("value_id").eqNullSafe(lit(value_id))
    ).withColumn("id", record("key", key_id)["id"])
    if value_id is None:
        text = lit("deleted")
    else:
        found = found.withColumn("row", record("value", value_id))
        text = to_json("row")
        if topic == "shop.orders":
            at = date_format("row.at", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
            text = concat_ws("\t", coalesce("row.name", lit("-")), "row.price", at)
    return found.select("topic", "partition", "offset", concat_ws("\t", "topic", "id", text).alias("line"))


pairs = messages.select("topic", "key_id", "value_id").distinct().collect()
everything = reduce(lambda one, other: one.union(other), [lines(*pair) for pair in pairs])
for message in everything.orderBy("topic", "partition", "offset").collect():
    print(message.line)

import json
import sys
from functools import cache
from io import BytesIO
from urllib.request import urlopen

import fastavro


@cache
def schema(number):
    with urlopen(f"{sys.argv[1]}/schemas/ids/{number}") as answer:
        return fastavro.parse_schema(json.loads(json.load(answer)["schema"]))


def decode(length):
    if length < 0:
        return None
    data = sys.stdin.buffer.read(length)
    return fastavro.schemaless_reader(BytesIO(data[5:]), schema(int.from_bytes(data[1:5])))


# A line has the topic and the lengths of key and value in bytes; both follow unchanged.
while line := sys.stdin.buffer.readline():
    topic, *lengths = line.decode().split()
    key, row = (decode(int(length)) for length in lengths)
    if row is None:
        print(topic, key["id"], "deleted", sep="\t")
    elif topic == "shop.orders":
        at = row["at"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
        print(topic, key["id"], row["name"] or "-", row["price"], at, sep="\t")
    else:
        print(topic, key["id"], len(row), sep="\t")

"""CPU of one row between PostgreSQL's bytes and Kafka's: split, encode, both, and a plain fastavro writer.

Run ``python -m benchmarks.encode [ROWS]`` in the checkout. The rows are 20,000 different ones of a 7-column
table, or ROWS; the best of several rounds counts, for the machine's other work only ever adds. No server is
needed.
"""

import io
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro

from bwtui.encode.avro import BoundEncoder, TableEncoder, build_encoder
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.messages import Column, Insert, Relation
from bwtui.pgoutput.tuples import splitter

ROUNDS = 7
OFFSET = 6
COLUMNS = (
    Column("id", 20, -1, True),
    Column("customer", 23, -1, False),
    Column("note", 25, -1, False),
    Column("price", 1700, (10 << 16 | 2) + 4, False),
    Column("at", 1184, -1, False),
    Column("paid", 16, -1, False),
    Column("label", 25, -1, False),
)
RELATION = Relation(16385, "public", "orders", "d", COLUMNS)


def random_rows(seed: int, count: int) -> list[list[bytes]]:
    """Return rows whose values hardly repeat, so that no cache helps more than it would in earnest."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        at = datetime.fromtimestamp(1_730_000_000 + rng.random() * 31_536_000, UTC)
        rows.append(
            [
                b"%d" % (1_000_000 + number),
                b"%d" % rng.randrange(1, 1_000_000),
                b"x" * rng.randrange(60, 140),
                b"%d.%02d" % (rng.randrange(1, 10_000), rng.randrange(100)),
                at.strftime("%Y-%m-%d %H:%M:%S.%f+00").encode(),
                rng.choice((b"t", b"f")),
                b"label-%d" % rng.randrange(1000),
            ]
        )
    return rows


def insert(row: Sequence[bytes]) -> bytes:
    """Return the INSERT message of a row."""
    head = b"I" + RELATION.oid.to_bytes(4, "big") + b"N" + len(row).to_bytes(2, "big")
    return head + b"".join(b"t" + len(field).to_bytes(4, "big") + field for field in row)


def naive(encoder: TableEncoder) -> Callable[[bytes], tuple[bytes, bytes]]:
    """Return what one would write first: general decoder, Python values, fastavro's writer."""
    key_schema = fastavro.parse_schema(json.loads(encoder.key_schema or ""))
    value_schema = fastavro.parse_schema(json.loads(encoder.value_schema))
    parse: dict[int, Callable[[bytes], Any]] = {
        16: lambda text: text == b"t",
        20: int,
        23: int,
        25: bytes.decode,
        1184: lambda text: datetime.fromisoformat(text.decode()),
        1700: lambda text: Decimal(text.decode()),
    }

    def write(schema: Any, schema_id: int, record: dict[str, Any]) -> bytes:
        out = io.BytesIO()
        out.write(b"\0" + schema_id.to_bytes(4, "big"))
        fastavro.schemaless_writer(out, schema, record)
        return out.getvalue()

    def transcode(payload: bytes) -> tuple[bytes, bytes]:
        message = decode(payload)
        assert isinstance(message, Insert)
        record = {
            column.name: None if field is None else parse[column.type_oid](field)  # type: ignore[arg-type]
            for column, field in zip(COLUMNS, message.new, strict=True)
        }
        return write(key_schema, 1, {"id": record["id"]}), write(value_schema, 2, record)

    return transcode


def microseconds(function: Callable[[Any], object], items: Sequence[Any]) -> float:
    """Return the CPU time of one call in µs, the least of several rounds over all items."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for item in items:
            function(item)
        best = min(best, time.process_time() - start)
    return best / len(items) * 1e6


def measure(bound: BoundEncoder, encoder: TableEncoder, count: int) -> dict[str, float]:
    """Return µs a row by step."""
    rows = random_rows(1, count)
    payloads = [insert(row) for row in rows]
    lines = [b"\t".join(row) + b"\n" for row in rows]
    split = splitter(len(COLUMNS))
    both = bound.both
    plain = naive(encoder)
    assert all(plain(payload) == both(split(payload, OFFSET)) for payload in payloads[:2000])
    loop = microseconds(len, rows)
    steps: dict[str, tuple[Callable[[Any], object], Sequence[Any]]] = {
        "split a message": (lambda payload: split(payload, OFFSET), payloads),
        "split a COPY line": (unescape_copy_line, lines),
        "key": (bound.key, rows),
        "value": (bound.value, rows),
        "key and value at once": (both, rows),
        "message to key and value": (lambda payload: both(split(payload, OFFSET)), payloads),
        "the same, general decoder and fastavro": (plain, payloads),
    }
    return {name: microseconds(function, items) - loop for name, (function, items) in steps.items()}


def main() -> None:
    """Print the table."""
    encoder = build_encoder(RELATION, ("id",), {})
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    for name, cost in measure(encoder.bind(1, 2), encoder, count).items():
        print(f"{name:40} {cost:6.2f} µs/row")


if __name__ == "__main__":
    main()

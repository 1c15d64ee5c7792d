"""Does the message say what PostgreSQL said? A second decoder's word, for some messages or for all.

Decoding and comparing costs some 20 µs a message, twenty times what the rest of the audit costs; so it is
done for so many messages, spread over the recording, unless all are asked for.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bwtui.audit.decoding import Schemas, Undecodable
from bwtui.audit.texts import differing, parse_row, says
from bwtui.pipeline.verify_digests import PARTS

#: So many messages are compared when not all are asked for.
SOME = 20_000
_COLUMNS = ("position", "part", "key", "value", "key_json", "after", "unchanged", "op")


def miscoded(
    spark: SparkSession,
    files: Sequence[Path],
    texts: Mapping[int, str],
    messages: int,
    *,
    is_json: bool,
    everything: bool,
) -> tuple[list[int], int]:
    """Return the messages that do not say what PostgreSQL said, and how many were compared."""
    rows = spark.read.parquet(*map(str, files)).where("topic is not null")
    every = max(1, messages // SOME)
    if not everything and every > 1:
        rows = rows.where(F.pmod(F.xxhash64("position"), F.lit(every)) == 0)

    def compare(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        schemas = Schemas(texts)
        for batch in batches:
            made = batch.to_pylist()
            wrong = [row for row in made if _is_wrong(row, schemas, is_json)]
            ids = [row["position"] * PARTS + row["part"] for row in wrong]
            yield pa.record_batch(
                {"id": pa.array([-len(made), *ids], pa.int64())}, schema=pa.schema([("id", pa.int64())])
            )

    found = [row.id for row in rows.select(*_COLUMNS).mapInArrow(compare, "id bigint").collect()]
    # A number below 0 counts the messages of a batch; no id is one.
    return [number for number in found if number >= 0], -sum(number for number in found if number < 0)


def _is_wrong(row: dict[str, Any], schemas: Schemas, is_json: bool) -> bool:
    try:
        if row["value"] is not None:
            wrong = _value(row, schemas, is_json)
            if wrong:
                return True
        return row["key"] is not None and bool(_key(row, schemas, is_json))
    except Undecodable:
        return True


def _value(row: dict[str, Any], schemas: Schemas, is_json: bool) -> list[str]:
    texts, unsent = parse_row(row["after"]), row["unchanged"] or ()
    if is_json:
        return _json_differs(row["value"], texts, unsent)
    schema, decoded = schemas.decode(row["value"])
    return differing(schema, decoded, texts, unsent)


def _key(row: dict[str, Any], schemas: Schemas, is_json: bool) -> list[str]:
    texts = parse_row(row["key_json"])
    if is_json:
        return _json_differs(row["key"], texts, ())
    _, decoded = schemas.decode(row["key"])
    escaped = decoded.get("__escaped") or {}
    names = [name for name in decoded if name != "__escaped"]
    # A key's schema has no original names, but its fields are in the order of the key's columns.
    if len(names) != len(texts):
        return names
    return [
        column
        for name, (column, text) in zip(names, texts.items(), strict=True)
        if (escaped[name] != text if name in escaped else not says(decoded[name], text))
    ]


def _json_differs(data: bytes, texts: Mapping[str, str | None], unsent: Sequence[str]) -> list[str]:
    try:
        found = json.loads(data, parse_int=str, parse_float=str, parse_constant=str)
    except ValueError as error:
        raise Undecodable("it is no JSON") from error
    plain = {True: "t", False: "f"}
    return [
        name
        for name in {*found, *texts} - set(unsent)
        if (plain[found[name]] if isinstance(found.get(name), bool) else found.get(name)) != texts.get(name)
    ]

"""A query means the same to Python and to Spark SQL."""

from dataclasses import replace
from typing import Any

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from bwtui.recording.change import Change
from bwtui.recording.export.rows import COLUMNS, message_rows
from bwtui.recording.query.language import parse, to_sql
from tests.property.queries import changes, queries
from tests.recording_double import TIME

_TYPES = {
    **dict.fromkeys(("position", "lsn", "xid", "commit_time", "received", "offset"), "BIGINT"),
    **dict.fromkeys(("pass", "ordinal", "part", "partition", "key_schema_id", "value_schema_id"), "INT"),
    **dict.fromkeys(("key", "value"), "BINARY"),
    **dict.fromkeys(("filled", "unchanged"), "ARRAY<STRING>"),
    "is_repeat": "BOOLEAN",
}
_SCHEMA = ", ".join(f"`{name}` {_TYPES.get(name, 'STRING')}" for name in COLUMNS)


# Each example starts a job of Spark's, so it asks many queries at once, and is not made smaller.
@settings(max_examples=6, phases=[Phase.generate])
@given(asked=st.lists(queries, min_size=15, max_size=15), given=st.lists(changes(), min_size=25, max_size=25))
def test_a_query_means_the_same_in_spark(spark: SparkSession, asked: list[str], given: list[Change]) -> None:
    numbered = [replace(one, position=position) for position, one in enumerate(given)]
    parsed = [parse(text, end=TIME + 1) for text in asked]
    found = _by_spark(spark, [to_sql(query, "spark") for query in parsed], numbered)
    for query, positions in zip(parsed, found, strict=True):
        assert positions == {one.position for one in numbered if query.matches(one)}, query.text


def _by_spark(spark: SparkSession, conditions: list[str], changes: list[Change]) -> list[set[int]]:
    rows: list[Any] = [row for one in changes for row in message_rows(one)]
    table = spark.createDataFrame(rows, _SCHEMA)
    table = table.selectExpr(
        *(
            f"timestamp_micros({name}) AS {name}" if name in ("commit_time", "received") else f"`{name}`"
            for name in COLUMNS
        )
    )
    answers = table.selectExpr("position", *(f"({text}) AS q{i}" for i, text in enumerate(conditions)))
    collected = answers.collect()
    return [{row["position"] for row in collected if row[f"q{i}"]} for i in range(len(conditions))]

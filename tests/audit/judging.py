"""Run the audit on a made-up world and return its findings in the form of `truth`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb
import pyarrow as pa

from bwtui.audit import core
from tests.audit.truth import Finding
from tests.audit.world import NOW_MS, World


class WorldReader:
    """The `bwtui.audit.core.ByteReader` of a made-up world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.names = sorted(world.topics)

    def equal_rows(self, pairs: Sequence[core.DifferingPair]) -> list[int]:
        """Return the ids of the pairs that are equal in the world."""
        return [pair.id for pair in pairs if pair.id in self.world.equal_pairs]

    def inspect(self, places: Sequence[core.RecordPlace]) -> Iterator[core.Inspection]:
        """Yield, for each record that still exists, who produced it and which change it identifies."""
        for t, p, o in places:
            record = self.world.topics[self.names[t]].logs[p][o]
            if not record.is_gone:
                yield core.Inspection(
                    t, p, o, record.is_ours, record.lsn, record.ordinal, record.has_other_session
                )

    def miscoded(self) -> list[int]:
        """Return the ids of the messages that were encoded wrongly in the world."""
        return list(self.world.miscoded)


def audit(world: World) -> tuple[Counter[Finding], duckdb.DuckDBPyConnection]:
    """Return the audit's findings, and its tables."""
    connection = duckdb.connect(config={"threads": 1})
    load(connection, world)
    core.run(connection, window_of(world), WorldReader(world))
    return findings(connection), connection


def window_of(world: World) -> core.AuditWindow:
    """Return the range that the world's recording covers."""
    sends = world.sends
    return core.AuditWindow(
        first_lsn=min(s.lsn for s in sends),
        last_lsn=max(s.lsn for s in sends),
        # The LSN after it, where the last confirmed transaction ends.
        confirmed=world.confirmed + 1,
        first_received_us=min(s.time_ms for s in sends) * 1000,
        last_commit_us=max(s.time_ms for s in sends) * 1000,
        now_ms=NOW_MS,
    )


def findings(connection: duckdb.DuckDBPyConnection) -> Counter[Finding]:
    """Return the findings in the audit's tables."""

    def rows(sql: str) -> list[Any]:
        return connection.execute(sql).fetchall()

    found: Counter[Finding] = Counter()
    sound = """select message.id, case when again.id is null then 'matched' else sent_again(is_promised) end,
                      topic, message.partition_id, message.log_offset
                 from message join topic using (topic_id) left join redelivered_message as again using (id)
                 anti join suspect using (id)"""
    for number, name, topic, p, o in rows(sound):
        found["message", name, number] += 1
        found["record", name, (topic, p, o)] += 1
    for number, name in rows(
        "select id, class from message_class union all select id, class from without_message"
    ):
        found["message", name, number] += 1
    for name, *place in rows(
        "select class, topic, match.partition_id, match.log_offset"
        " from match join message_class using (id) join topic on topic.topic_id = match.topic_id"
    ):
        found["record", name, tuple(place)] += 1
    for name, *place in rows(
        "select class, topic, partition_id, log_offset from extra_class join topic using (topic_id)"
    ):
        found["record", name, tuple(place)] += 1
    for *key, number in rows(
        "select topic, late_message.partition_id, key_digest, count(*)"
        " from late_message join suspect using (id)"
        " join topic on topic.topic_id = late_message.topic_id group by all"
    ):
        found["key", "reordered", tuple(key)] += number
    for name, *key in rows(
        "select class, topic, partition_id, key_digest from wrong_latest join topic using (topic_id)"
    ):
        found["key", name, tuple(key)] += 1
    for (lsn,) in rows("select lsn from torn_transaction"):
        found["transaction", "torn_transaction", lsn] += 1
    for name, number in rows("select how, id from match where how in ('moved', 'equivalent')"):
        found["note", name, number] += 1
    for name in ("time_differs", "headers_differ"):
        for (number,) in rows(f"select id from {name}"):
            found["note", name, number] += 1
    for place in rows("select topic, partition_id, log_offset from offset_gap join topic using (topic_id)"):
        found["hole", "offset_gap", place] += 1
    for place in rows("select topic, partition_id from interleaved_partition join topic using (topic_id)"):
        found["partition", "interleaved_sessions", place] += 1
    return found


def load(connection: duckdb.DuckDBPyConnection, world: World) -> None:
    """Fill the audit's inputs."""
    expected = [
        (s.id, s.pass_number, s.is_repeat, s.lsn, s.ordinal, s.part, s.op, 1, s.time_ms * 1000,
         s.time_ms * 1000 + 1_000_000, s.topic, s.partition, s.offset, s.state, s.without,
         s.key_digest, s.value_digest, s.key_hash, s.headers_digest)
        for s in world.sends
    ]  # fmt: skip
    actual: list[tuple[Any, ...]] = []
    partitions = []
    for topic in world.topics.values():
        for p, log in enumerate(topic.logs):
            partitions.append((topic.name, p, topic.low[p], topic.high[p]))
            assert all(topic.low[p] <= o < topic.high[p] for o in log), "no broker has such a log"
            expected_offset = topic.low[p]
            for o in [*sorted(log), topic.high[p]]:
                if o > expected_offset:
                    kind = topic.hole_kinds.get((p, expected_offset), "gap")
                    actual.append((topic.name, p, expected_offset, o, kind, None, None, None, None))
                if o in log:
                    record = log[o]
                    actual.append(
                        (
                            topic.name,
                            p,
                            o,
                            o + 1,
                            "record",
                            record.ts,
                            record.key_digest,
                            record.value_digest,
                            record.headers_digest,
                        )
                    )
                expected_offset = o + 1
    topics = [
        (t.name, t.partitions, t.settings_known, t.compacts, t.deletes, t.retention_ms, t.retention_bytes,
         t.lag_ms, t.delete_retention_ms, t.log_append)
        for t in world.topics.values()
    ]  # fmt: skip
    rows: dict[str, list[tuple[Any, ...]]] = {
        "expected_in": expected,
        "actual_in": actual,
        "topics_in": topics,
        "partitions_in": partitions,
        "passes_in": [
            (one, done, world.reached.get(one), one in world.exactly_once, world.committed.get(one))
            for one, done in world.passes.items()
        ],
        "gaps_in": world.gaps,
    }
    for name, columns in core.INPUTS.items():
        connection.execute(f"create table {name} ({columns})")
        if rows[name]:
            made = pa.table([list(c) for c in zip(*rows[name], strict=True)],
                            names=[f"c{n}" for n in range(len(rows[name][0]))])  # fmt: skip
            connection.register("made", made)
            connection.execute(f"insert into {name} select * from made")
            connection.unregister("made")

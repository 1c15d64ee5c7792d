"""``--only-missing``: send what an audit found missing, and keep every key's latest value correct.

A message that is sent late follows newer ones of its key, and nothing can fix that order later. But a reader
of the latest value can still see the right one. So after the missing messages of a key, its newest message is
sent again, unless that is the last of the missing ones. The newest message is the newest in the recording, or
the topic's latest if that is newer than the recording.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bwtui.audit.classes import LOST
from bwtui.errors import RefusedError, UsageError
from bwtui.file_errors import file_failed
from bwtui.kafka.client import Config
from bwtui.kafka.columns import COLUMNS
from bwtui.kafka.scan import pin
from bwtui.model.lsn import parse_lsn
from bwtui.replay.delivery import MissingCounts
from bwtui.replay.rows import RAW, FileRows, MessageCount, TopicMessageCount
from bwtui.replay.spark_engine import columns
from bwtui.spark.kafka_source import read_kafka

#: Positions after all of the recording's, first for its own messages, then for those only in the topic.
_AGAIN, _FROM_TOPIC = 1 << 60, 1 << 61
_HINT = "give the output of 'bwtui verify RECORDING --json'"
_OTHER = "verify this recording against this Kafka cluster, and give the new report"


class MissingMessages:
    """The findings of one report, and the messages to send."""

    def __init__(self, report: Path) -> None:
        """Read a report. Raises UsageError, or RefusedError if it lists fewer messages than it counts."""
        try:
            raw = report.read_bytes()
            content = json.loads(raw)
            findings = [one for one in content["findings"] if one["class"] in LOST]
            counts = content.get("findings_total", content["classes"])
            counted = sum(int(counts.get(name, 0)) for name in LOST)
            self._findings = _table(findings)
            self._recording, self._cluster = content.get("recording_id"), content.get("cluster")
            self._ends = {
                (one["topic"], int(one["partition"])): int(one["high"]) for one in content.get("topics", ())
            }
        except OSError as error:
            raise file_failed(f"{report} can't be read", error, UsageError) from error
        except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            raise UsageError(f"{report} is not an audit report", _HINT) from error
        if counted > len(findings):
            raise RefusedError(
                f"the report counts {counted:,} missing messages but lists only {len(findings):,} of them",
                f"verify again with --findings {counted}",
            )
        if not findings:
            raise UsageError("the report lists no missing messages", "there is nothing to replay")
        self.digest = hashlib.sha256(raw).hexdigest()
        if not isinstance(self._recording, str):
            raise UsageError(f"{report} is not an audit report of a recording", _HINT)
        self.reported: int = self._findings.num_rows
        #: Set by `look`.
        self.counts: MissingCounts | None = None
        self._rows: DataFrame | None = None

    def refuse_different(self, recording: str, cluster: str) -> None:
        """Raise RefusedError if the report is about a different recording or cluster."""
        if self._recording != recording:
            raise RefusedError("the report is about a different recording", _OTHER)
        if self._cluster and cluster and self._cluster != cluster:
            raise RefusedError(
                f"the report is about Kafka cluster {self._cluster}, but this is cluster {cluster}", _OTHER
            )

    def look(
        self,
        every: DataFrame,
        chosen: FileRows,
        config: Config,
        topics: Mapping[str, int],
        ends: Mapping[str, int] | None,
    ) -> None:
        """Find the messages in the recording, and the newest of their keys there and in the topics.

        ``every`` has all messages of the recording, ``chosen`` the selected ones. ``ends`` has the end of
        each "topic/partition" when the replay began, if an earlier run has begun it.
        """
        spark = every.sparkSession
        # DuckDB evaluates the selection's query, so that Spark only has to find the resulting messages.
        positions = spark.createDataFrame(chosen.among(self._findings))
        reported = columns(every).join(positions, ["position", "part"], "left_semi").localCheckpoint()
        by_topic = {row.topic: row["count"] for row in reported.groupBy("topic").count().collect()}
        if not by_topic:
            raise RefusedError(
                "the recording has none of the messages that the report lists as missing",
                "give the report of this recording, and check the range",
            )
        for topic in by_topic:
            if topic not in topics:
                raise RefusedError(
                    f"topic {topic} does not exist", "replay all of it: leave out --only-missing"
                )
        views = {
            "reported": reported,
            "every": columns(every),
            **_topics(spark, config, list(by_topic), ends, self._ends),
        }
        for name, view in views.items():
            view.createOrReplaceTempView(f"replay_{name}")
        # Materialize each view at once. Spark would otherwise plan each nested view as often as it is
        # referred to, and describe that plan, which takes more memory than there is.
        for name, text in _VIEWS.items():
            spark.sql(text).localCheckpoint().createOrReplaceTempView(f"replay_{name}")
        sent = functools.reduce(DataFrame.unionByName, map(spark.sql, _SENT))
        sent.createOrReplaceTempView("replay_sent")
        self._rows = spark.sql(_PLACED).localCheckpoint()
        self.counts = self._counts(sum(by_topic.values()))

    def _counts(self, recorded: int) -> MissingCounts:
        """Count what is sent; the recording has ``recorded`` of the reported messages."""
        is_again = f"position >= {_AGAIN}"
        late = "select count(*) from replay_missing left semi join replay_again using (topic, key)"
        row = (
            self.rows()
            .selectExpr(f"count_if(not {is_again}) found", f"count_if({is_again}) again", f"({late}) late")
            .first()
        )
        assert row is not None
        if not row.found:
            raise RefusedError(
                "the topics now have all messages that the report lists as missing",
                "verify again: there may be others",
            )
        return {
            "reported": self.reported,
            "messages": row.found,
            "late": row.late,
            "sent_again": row.again,
            "there": recorded - row.found,
            "without_message": self.reported - recorded,
        }

    def rows(self) -> DataFrame:
        """Return the rows to send, in the form that `Placing` needs."""
        assert self._rows is not None
        return self._rows

    def count(self) -> MessageCount:
        """Count the rows to send."""
        total = MessageCount(with_headers=True)
        groups = self.rows().selectExpr(
            *("topic", "key_schema_id kid", "value_schema_id vid", "recorded", "stamp", "received"),
            *("key is null without_key", "coalesce(length(key), 0) + coalesce(length(value), 0) bytes"),
        )
        groups.createOrReplaceTempView("replay_messages")
        for row in groups.sparkSession.sql(_COUNT).collect():
            topic = total.topics.setdefault(row.topic, TopicMessageCount(first_stamp=row.first))
            topic.add(row)
            total.first_received = min(total.first_received or row.received, row.received)
        return total


def _table(findings: list[dict[str, Any]]) -> pa.Table:
    part = pa.array([int(one.get("part") or 0) for one in findings], pa.int32())
    if all(one.get("position") is not None for one in findings):
        return pa.table(
            {"position": pa.array([int(one["position"]) for one in findings], pa.int64()), "part": part}
        )
    return pa.table(
        {
            "topic": pa.array([one["topic"] for one in findings], pa.string()),
            "lsn": pa.array([_lsn(one["lsn"]) for one in findings], pa.int64()),
            "ordinal": pa.array([int(one["ordinal"]) for one in findings], pa.int32()),
            "part": part,
        }
    )


def _lsn(value: Any) -> int:
    return value if isinstance(value, int) else parse_lsn(value)


def _topics(
    spark: SparkSession,
    config: Config,
    topics: list[str],
    ends: Mapping[str, int] | None,
    audited_ends: Mapping[tuple[str, int], int],
) -> dict[str, DataFrame]:
    """Return the topics' contents when the replay began, and whether timestamps are the messages' own.

    Also return each end when the audit read it (``audited_ends``); its findings are valid for what precedes
    that end.
    """
    pinned = pin(config, topics)
    for place, end in audited_ends.items():
        if place in pinned.offsets and pinned.offsets[place][1] < end:
            raise RefusedError(
                f"partition {place[1]} of topic {place[0]} has lost the end of its log since it was verified",
                "verify again: more messages may be missing",
            )
    offsets = dict(pinned.offsets)
    for (topic, partition), (low, high) in list(offsets.items()):
        end = (ends or {}).get(f"{topic}/{partition}", high)
        offsets[topic, partition] = (low, max(low, min(high, end)))
    columns_read = ("kind", "topic", "partition", "offset", "timestamp", "key", "value", "headers")
    # Records of aborted transactions are neither messages nor latest values.
    contents = read_kafka(spark, config, offsets, columns=columns_read, isolation="read_committed")
    times = [
        (name, (state.settings or {}).get("message.timestamp.type") != "LogAppendTime")
        for name, state in pinned.topics.items()
    ]
    return {
        "there": contents.where("kind = 'record'"),
        "times": spark.createDataFrame(times, "topic string, timed boolean"),
        "seen": spark.createDataFrame(
            [(*place, end) for place, end in audited_ends.items()], "topic string, partition int, high bigint"
        ),
    }


# A message that an audit found missing stays missing: it reports each time it was sent, so a repeat is
# missing even if the first copy is there. Only this can have changed: the message returned after the end that
# the audit saw.
_IDENTITY = "struct(lsn, ordinal, part, op)"
# Backfilled rows may have the LSN of the following transaction, whose changes are newer.
_AGE = "struct(lsn, op not in ('snapshot', 'cleanup', 'backfill') as committed, ordinal, part, position)"
_SAME = "{0}.topic = {1}.topic and {0}.key <=> {1}.key and {0}.value <=> {1}.value and {0}.at <=> {1}.at"
_VIEWS = {
    # Number of times each message was reported.
    "twins": """select topic, key, value, at, count(*) as n from (
            select r.*, if(timed, stamp, null) as at from replay_reported r join replay_times using (topic))
         group by all""",
    # Number of times it has returned since.
    "back": f"""select t.topic, t.key, t.value, t.at, count(*) as n from (
            select h.*, if(timed, timestamp, null) as at
              from replay_there h join replay_times using (topic)
              left join replay_seen s using (topic, partition)
             where h.offset >= coalesce(s.high, 0)) t
          left semi join replay_twins w on {_SAME.format("t", "w")}
         group by all""",
    # Of identical messages, as many as the topics lack.
    "missing": f"""select r.* except (at, place) from (
            select r.*, row_number() over (
                partition by topic, key, value, at order by position desc, part desc) as place
              from (select r.*, if(timed, stamp, null) as at
                      from replay_reported r join replay_times using (topic)) r) r
          join replay_twins w on {_SAME.format("r", "w")}
          left join replay_back b on {_SAME.format("r", "b")}
         where place <= w.n - coalesce(b.n, 0)""",
    # The keys, and which of their messages is sent last.
    "keys": f"""select topic, key, max_by({_IDENTITY}, struct(position, part)) as last
        from replay_missing where key is not null group by topic, key""",
    # The latest values of these keys in the topics.
    "latest": """select topic, key,
            max_by(struct(partition, offset, timestamp, value, headers, timed), offset) as at
        from replay_there join replay_times using (topic) left semi join replay_keys using (topic, key)
        group by topic, key""",
    # Messages of the recording with these keys.
    "known": "select * from replay_every left semi join replay_keys using (topic, key)",
    "newest": f"""select topic, key, max_by(struct(*), {_AGE}) as message
        from replay_known group by topic, key""",
    # The latest value is newer than the recording, perhaps from a later run of the relay.
    "later": """select l.topic, l.key, l.at from replay_latest l join replay_newest n using (topic, key)
        left anti join replay_known k on k.topic = l.topic and k.key = l.key
            and k.value <=> l.at.value and (k.stamp = l.at.timestamp or not l.at.timed)
        where l.at.timestamp >= n.message.stamp""",
    "again": """select topic, key, l.at, n.message from replay_newest n join replay_keys k using (topic, key)
        left join replay_later l using (topic, key)
        where l.at is not null
           or struct(n.message.lsn as lsn, n.message.ordinal as ordinal, n.message.part as part,
                     n.message.op as op) <> k.last""",
}
#: The messages to send: the missing ones, then the newest ones, from the recording or from the topic.
_SENT = (
    f"select *, cast(null as {COLUMNS[RAW]}) as headers from replay_missing",
    f"""select message.*, cast(null as {COLUMNS[RAW]}) as headers from (
        select struct(message.* except (position), message.position + {_AGAIN} as position) as message
          from replay_again where at is null)""",
    f"""select {_FROM_TOPIC} + at.offset as position, 0 as part, topic, key, at.value as value,
           cast(null as int) as key_schema_id, cast(null as int) as value_schema_id,
           at.timestamp as stamp, message.received as received, at.partition as recorded,
           'none' as header_form, message.lsn as lsn, message.ordinal as ordinal, message.op as op,
           message.xid as xid, message.session as session, at.headers as headers
      from replay_again where at is not null""",
)
_PLACED = """
select sent.* except (recorded), coalesce(l.at.partition, sent.recorded) as recorded
  from replay_sent sent left join replay_latest l on l.topic = sent.topic and l.key = sent.key"""
_COUNT = """
select topic, kid, vid, recorded, count(*) messages, sum(bytes) bytes, max(bytes) largest,
       count_if(without_key) without_key, min(stamp) first, max(stamp) last, min(received) received
  from replay_messages group by all"""

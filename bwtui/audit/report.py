"""Build an audit's report from the core's tables: counts, balance and findings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import duckdb

from bwtui.audit.classes import (
    ACTUAL,
    CLASSES,
    COUNTED,
    EXPECTED,
    UNDECIDED,
    WRONG,
    Question,
    Verdict,
    audit_class,
    verdict_of,
)
from bwtui.audit.core import PARTS, AuditWindow, classes_of, scalar, statements
from bwtui.model.lsn import format_lsn

#: Default for the maximum number of findings of a class that are listed.
SAMPLES = 1_000


#: A finding's fields in the order of ``verify --json``, after its class.
_IN_JSON = (
    *("topic", "partition", "offset", "lsn", "ordinal", "position", "part", "table", "operation"),
    *("key", "fields", "hop", "note"),
)


@dataclass(slots=True)
class AuditFinding:
    """One error, and its position."""

    name: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    lsn: int | None = None
    ordinal: int | None = None
    #: The change's number in the recording, and the message's within the change.
    position: int | None = None
    part: int | None = None
    table: str | None = None
    operation: str | None = None
    hop: str = ""
    note: str | None = None
    key: Any = None
    fields: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return it in the form of the command line's JSON."""
        lsn = None if self.lsn is None else format_lsn(self.lsn)
        return {"class": self.name} | {name: getattr(self, name) for name in _IN_JSON} | {"lsn": lsn}


@dataclass(slots=True)
class AuditSummary:
    """An audit's verdict, counts and findings."""

    verdict: Verdict
    window: dict[str, Any]
    expected: int
    actual: int
    balance: dict[str, dict[str, int]]
    classes: dict[str, int]
    #: Number of changes without a message, by reason.
    without: dict[str, int]
    findings: list[AuditFinding]
    #: Class → total number of findings, listed or not.
    found: dict[str, int]
    by_topic: list[dict[str, Any]]
    by_time: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    question: Question = "recording"

    @property
    def wrong(self) -> dict[str, int]:
        """The counts of the anomaly classes, in the order of the report."""
        return {name: self.classes[name] for name in WRONG if self.classes.get(name)}

    @property
    def balance_rows(self) -> list[tuple[str, int, int]]:
        """The classes of the balance that either side has, with both sides' numbers."""
        expected, actual = self.balance["expected"], self.balance["actual"]
        return [
            (name, expected.get(name, 0), actual.get(name, 0))
            for name in dict.fromkeys([*expected, *actual])
            if expected.get(name) or actual.get(name) or name == "matched"
        ]

    @property
    def findings_by_class(self) -> list[tuple[str, list[AuditFinding], int]]:
        """The anomalies and undecided classes, each with its listed findings and their total number."""
        groups = []
        for name in (*WRONG, UNDECIDED):
            if listed := [finding for finding in self.findings if finding.name == name]:
                groups.append((name, listed, self.found.get(name, len(listed))))
        return groups

    @property
    def exit_code(self) -> int:
        """0 clean, 1 anomalies, 3 indeterminate."""
        return {"clean": 0, "anomalies": 1, "indeterminate": 3}[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """Return it in the form of ``verify --json``."""
        return {
            "verdict": self.verdict,
            "question": self.question,
            "window": self.window,
            "expected": self.expected,
            "actual": self.actual,
            "balance": self.balance,
            "classes": self.classes,
            "without_message": self.without,
            "findings": [finding.to_json() for finding in self.findings],
            "findings_total": self.found,
            "topics": self.by_topic,
            "times": self.by_time,
            "notes": self.notes,
            **self.details,
        }


def collect(
    connection: duckdb.DuckDBPyConnection, window: AuditWindow, samples: int = SAMPLES
) -> AuditSummary:
    """Return the report on the results of `core.run`, with at most ``samples`` findings of a class."""
    for statement in statements("99_findings"):
        connection.execute(statement)
    expected = classes_of(connection, "expected_classes")
    actual = classes_of(connection, "actual_classes")
    counts = _counts(connection, expected, actual)
    totals = dict(
        connection.execute("select class, count(*) from finding group by class order by class").fetchall()
    )
    return AuditSummary(
        verdict=verdict_of(counts),
        window=_window(window),
        expected=sum(expected.values()),
        actual=sum(actual.values()),
        balance={
            "expected": {name: expected.get(name, 0) for name in EXPECTED},
            "actual": {name: actual.get(name, 0) for name in ACTUAL},
        },
        classes=counts,
        without=dict(
            connection.execute(
                "select no_message_reason, count(*) from message"
                " where no_message_reason is not null group by all order by all"
            ).fetchall()
        ),
        findings=_findings(connection, samples),
        found=totals,
        by_topic=_by_topic(connection),
        by_time=_by_time(connection, window),
        notes=unreadable(
            dict(
                connection.execute(
                    "select topic, sum(end_offset - log_offset)::bigint from hole join topic using (topic_id)"
                    " where kind = 'damaged' group by topic"
                ).fetchall()
            )
        ),
    )


def unreadable(damaged: Mapping[str, int]) -> list[str]:
    """Return a note for each topic with ``damaged`` offsets."""
    return [
        f"{number:,} offset{'s are' if number > 1 else ' is'} in batches of {topic} that can't be read:"
        " their records are unknown"
        for topic, number in sorted(damaged.items())
    ]


def _counts(
    connection: duckdb.DuckDBPyConnection, expected: Mapping[str, int], actual: Mapping[str, int]
) -> dict[str, int]:
    return {
        kind.name: scalar(connection, kind.count)
        if kind.count
        else max(expected.get(kind.name, 0), actual.get(kind.name, 0))
        for kind in COUNTED
    }


def _window(window: AuditWindow) -> dict[str, Any]:
    return {
        "first_lsn": format_lsn(window.first_lsn),
        "last_lsn": format_lsn(window.last_lsn),
        "confirmed_lsn": format_lsn(window.confirmed),
        "first_received_us": window.first_received_us,
        "last_commit_us": window.last_commit_us,
        "now_ms": window.now_ms,
    }


_FINDINGS = f"""
select f.class, topic.topic, f.partition_id, f.log_offset, coalesce(message.lsn, x.lsn),
       coalesce(message.ordinal, x.ordinal), message.id // {PARTS}, message.part,
       i."schema" || '.' || i."table", message.op, f.hop, f.note
  from (select * from finding
        qualify row_number() over (partition by class
                                   order by id nulls last, topic_id, partition_id, log_offset) <= ?) as f
  left join topic on topic.topic_id = f.topic_id
  left join message on message.id = f.id
  left join expected_in i on i.id = f.id
  left join extra_class x
    on x.topic_id = f.topic_id and x.partition_id = f.partition_id and x.log_offset = f.log_offset
   and f.id is null
 order by message.id nulls last, topic.topic, f.partition_id, f.log_offset
"""


def _findings(connection: duckdb.DuckDBPyConnection, samples: int) -> list[AuditFinding]:
    order = {name: at for at, name in enumerate(CLASSES)}
    findings = [AuditFinding(*row) for row in connection.execute(_FINDINGS, [samples]).fetchall()]
    for finding in findings:
        finding.note = finding.note or audit_class(finding.name).note or None
    return sorted(findings, key=lambda finding: order.get(finding.name, 99))


def _by_topic(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    """Return the number of messages, records and findings by class for each partition."""
    rows = connection.execute("""
        with sent as (
          select topic_id, partition_id, count(*) as n from message
           where topic_id is not null and partition_id is not null group by all),
        found as (
          select topic_id, partition_id, map_from_entries(list((class, n) order by class)) as classes
            from (select topic_id, partition_id, class, count(*) as n from finding
                   where topic_id is not null group by all)
           group by all)
        select topic.topic, partition_id, low, high, coalesce(sent.n, 0), coalesce(record_count.n, 0),
               found.classes
          from partition_range join topic using (topic_id)
          left join sent using (topic_id, partition_id)
          left join record_count using (topic_id, partition_id)
          left join found using (topic_id, partition_id)
         order by topic.topic, partition_id""").fetchall()
    names = ("topic", "partition", "low", "high", "messages", "records", "classes")
    return [dict(zip(names, (*row[:6], row[6] or {}), strict=True)) for row in rows]


def _by_time(
    connection: duckdb.DuckDBPyConnection, window: AuditWindow, count: int = 60
) -> list[dict[str, Any]]:
    """Return the messages by time of commit, and the findings among them."""
    width = max(1, (window.last_commit_us - window.first_received_us) // count + 1)
    bucket = f"greatest((message.commit_us - {window.first_received_us}) // {width}, 0)"
    messages = connection.execute(f"select {bucket}, count(*) from message group by all order by all")
    buckets: dict[int, dict[str, Any]] = {
        number: {"start_us": window.first_received_us + number * width, "messages": size, "classes": {}}
        for number, size in messages.fetchall()
    }
    classes = connection.execute(
        f"select {bucket}, class, count(*) from message join finding using (id) group by all order by all"
    )
    for number, name, size in classes.fetchall():
        buckets[number]["classes"][name] = size
    return list(buckets.values())

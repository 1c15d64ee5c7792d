"""Every class that an audit can report, each declared once; docs/audit.md defines them.

The core, the report, the terminal, the page and the screens read this table. A new class needs a declaration
here, a rule in ``sql/``, its definition in docs/audit.md, and a fault in ``tests/audit`` that produces it.
"""

from dataclasses import dataclass
from typing import Literal, get_args

Verdict = Literal["clean", "anomalies", "indeterminate"]
#: The kind of audit: a recording against Kafka, tables against topics, or two recordings.
Question = Literal["recording", "database", "recordings"]
#: Only an anomaly is an error; an undecided class prevents a clean verdict.
Severity = Literal["fine", "anomaly", "excused", "undecided", "note"]
Side = Literal["expected", "actual"]

_EXPECTED: tuple[Side, ...] = ("expected",)
_ACTUAL: tuple[Side, ...] = ("actual",)
_BOTH: tuple[Side, ...] = ("expected", "actual")


@dataclass(frozen=True, slots=True)
class AuditClass:
    """A class: its name in reports, and all of its texts."""

    name: str
    severity: Severity
    #: A sentence for the screens.
    meaning: str = ""
    question: Question = "recording"
    #: The sides of the balance that it belongs to; without any it counts findings of a different kind.
    sides: tuple[Side, ...] = ()
    #: Whether each of its messages has a record of the same class, so that both sides have equal counts.
    is_paired: bool = False
    #: The query that counts it, if it is not part of the balance.
    count: str = ""
    #: The note of a finding for which its rule has no more specific one.
    note: str = ""
    #: The screens' text for the left and the right side if the report has no row for it.
    left: str = ""
    right: str = ""


_CLASSES = (
    AuditClass("matched", "fine", sides=_BOTH, is_paired=True),
    AuditClass(
        "redelivered",
        "note",
        "The relay sent it again after a restart, with the same bytes: benign.",
        sides=_BOTH,
        is_paired=True,
    ),
    AuditClass(
        "repeated",
        "anomaly",
        "Kafka has it twice although the relay ran with --exactly-once.",
        sides=_BOTH,
        is_paired=True,
        note="the relay ran with --exactly-once, but Kafka also has an earlier message of the change",
    ),
    AuditClass(
        "lost_acked",
        "anomaly",
        "The broker acknowledged it, but Kafka does not have it, without a legitimate reason.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "lost_unacked",
        "anomaly",
        "The broker never acknowledged it and Kafka does not have it, but the relay confirmed its LSN.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "lost_unsent",
        "anomaly",
        "The relay confirmed the change without sending a message or recording a reason.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "duplicated",
        "anomaly",
        "A second record of a message that Kafka already has, or may legitimately lack.",
        sides=_ACTUAL,
    ),
    AuditClass(
        "corrupted",
        "anomaly",
        "The record at its offset has a different row than the message.",
        sides=_BOTH,
        is_paired=True,
        note="its bytes differ from the message that was sent",
    ),
    AuditClass(
        "rekeyed",
        "anomaly",
        "Its key is the same but encoded in different bytes: brokers and compaction treat it as a "
        "different key.",
        sides=_BOTH,
        is_paired=True,
        note="its key is encoded in different bytes, so brokers treat it as a different key",
    ),
    AuditClass(
        "reordered",
        "anomaly",
        "It is stored after later messages of its key.",
        count="select count(*) from late_message",
        note="it is stored after later messages of its key",
    ),
    AuditClass(
        "regressed",
        "anomaly",
        "The key's latest value was not the row when the recording ended.",
        count="select count(*) from wrong_latest where class = 'regressed'",
        note="consumers that keep the latest value of the key have a wrong row",
    ),
    AuditClass(
        "misrouted", "anomaly", "It is in a wrong topic, or in a wrong partition for its key.", sides=_BOTH
    ),
    AuditClass(
        "phantom",
        "anomaly",
        "A relay wrote it, but the recording has no such message: a row that was rolled back, or "
        "an old relay.",
        sides=_ACTUAL,
    ),
    AuditClass(
        "foreign",
        "anomaly",
        "A different producer wrote it to the topic.",
        sides=_ACTUAL,
    ),
    AuditClass(
        "resurrected",
        "anomaly",
        "The last change deleted the key, but Kafka has an older row instead of the tombstone.",
        count="select count(*) from wrong_latest where class = 'resurrected'",
        note="consumers that keep the latest value of the key have a wrong row",
    ),
    AuditClass(
        "torn_transaction",
        "anomaly",
        "Some messages of its transaction are in Kafka, and others are lost.",
        count="select count(*) from torn_transaction",
        note="some of its messages are in Kafka, and others are lost",
    ),
    AuditClass(
        "interleaved_sessions",
        "anomaly",
        "Two relays wrote to the topic at the same time.",
        count="select count(*) from interleaved_partition",
        note="two relays wrote to the topic at the same time",
    ),
    AuditClass(
        "compacted",
        "excused",
        "Legitimately missing: compaction replaced it by a later record of its key.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "expired",
        "excused",
        "Legitimately missing: it was older than the topic's retention.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "tombstone_expired",
        "excused",
        "Legitimately missing: a tombstone past its retention, or a record that it deleted.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "equivalent",
        "note",
        "Different bytes, but the same row.",
        count="select count(*) from match where how = 'equivalent'",
    ),
    AuditClass(
        "moved",
        "note",
        "The same bytes at a different offset: the log was restored or repaired.",
        count="select count(*) from match where how = 'moved'",
    ),
    AuditClass("pending", "note", "The relay has not confirmed it and will send it again.", sides=_EXPECTED),
    AuditClass(
        "resent",
        "note",
        "The broker never acknowledged it, and the relay sent it again: the repeat is audited separately.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "refused",
        "note",
        "Kafka refused it and does not have it.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "outside_window",
        "note",
        "Before or after the recording: counted but not audited.",
        sides=_ACTUAL,
    ),
    AuditClass(
        "aborted",
        "note",
        "Records of aborted transactions, of the relay with --exactly-once or of other producers.",
        count="select coalesce(sum(end_offset - log_offset), 0)::bigint from hole where kind = 'aborted'",
    ),
    AuditClass(
        "markers",
        "note",
        "Offsets without a record and a message: transaction markers, or removed by compaction.",
        count="select coalesce(sum(n), 0)::bigint from marker_gap",
    ),
    AuditClass(
        "offset_gap",
        "note",
        "Offsets without a record in a topic that keeps everything.",
        count="select count(*) from offset_gap",
    ),
    AuditClass(
        "time_differs",
        "note",
        "Kafka has the message, but with a different timestamp.",
        count="select count(*) from time_differs",
    ),
    AuditClass(
        "headers_differ",
        "note",
        "Kafka has the message, but with different headers.",
        count="select count(*) from headers_differ",
    ),
    AuditClass(
        "indeterminate",
        "undecided",
        "Missing, but neither a loss nor a legitimate reason can be proven.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "missing_key",
        "anomaly",
        "The table has the row, but the topic has no value for its key.",
        "database",
        _EXPECTED,
        left="the table has the row; the report has only its key",
    ),
    AuditClass(
        "different_row",
        "anomaly",
        "The latest value of the key in the topic differs from the row in the table.",
        "database",
        _BOTH,
        left="the table has the row; the report has only the differing columns",
    ),
    AuditClass(
        "extra_key",
        "anomaly",
        "The topic has a value for the key, but the table has no such row.",
        "database",
        _ACTUAL,
        left="the table has no such row",
    ),
    AuditClass(
        "missing_row",
        "anomaly",
        "The table has the row, which has no key, more often than the topic.",
        "database",
        _EXPECTED,
        left="the table has the row, which has no key",
    ),
    AuditClass(
        "stray_row",
        "anomaly",
        "A partition has a row of the key, whose newest record is in a different partition.",
        "database",
        left="the newest record of the key is compared with the table",
    ),
    AuditClass(
        "not_captured",
        "anomaly",
        "The table is selected for the relay, but none of the relay's publications includes it.",
        "database",
        left="the relay sends no rows of the table",
    ),
    AuditClass(
        "indeterminate",
        "undecided",
        "Undecided: the key was written during every comparison, or it can't be compared.",
        "database",
        left="it was written during every comparison, or it can't be compared",
    ),
    AuditClass("equal", "fine", question="recordings", sides=_BOTH),
    AuditClass(
        "read_anew",
        "note",
        "They differ only in TOAST values that each relay read from the table itself.",
        "recordings",
        _BOTH,
    ),
    AuditClass(
        "missing",
        "anomaly",
        "Only the first recording has it.",
        "recordings",
        _EXPECTED,
        note="only the first recording has it",
        right="it does not have the row",
    ),
    AuditClass(
        "extra",
        "anomaly",
        "Only the second recording has it.",
        "recordings",
        _ACTUAL,
        note="only the second recording has it",
        left="it does not have the row",
    ),
    AuditClass(
        "said_differs",
        "anomaly",
        "The recordings have different rows for the same change.",
        "recordings",
        _BOTH,
        note="the recordings have different rows for the same change",
        right="the same change has a different row",
    ),
    AuditClass(
        "sent_differs",
        "anomaly",
        "The same row was sent in different bytes.",
        "recordings",
        _BOTH,
        note="the same row was sent in different bytes",
        right="the same row was sent in different bytes",
    ),
)
_BY_NAME = {one.name: one for one in reversed(_CLASSES)}
_BY_QUESTION = {(one.question, one.name): one for one in _CLASSES}
_UNKNOWN = AuditClass("", "anomaly")


def audit_class(name: str, question: Question = "recording") -> AuditClass:
    """Return a class by its name; an unknown one of a newer version is an anomaly without a meaning."""
    return _BY_QUESTION.get((question, name)) or _BY_NAME.get(name, _UNKNOWN)


def declared(question: Question, *severities: Severity) -> tuple[AuditClass, ...]:
    """Return the classes of an audit, all or by severity, in the order of severities and declarations."""
    severities = severities or get_args(Severity)
    return tuple(
        one
        for severity in severities
        for one in _CLASSES
        if (one.question, one.severity) == (question, severity)
    )


def _names(question: Question, *severities: Severity) -> tuple[str, ...]:
    return tuple(one.name for one in declared(question, *severities))


def balance_classes(question: Question, side: Side) -> tuple[str, ...]:
    """Return the classes that one side of an audit is divided into: each of its rows has exactly one."""
    return tuple(one.name for one in _CLASSES if one.question == question and side in one.sides)


UNDECIDED = "indeterminate"
#: Only values that PostgreSQL did not send, and that each relay fetched itself, differ: not an error.
READ_ANEW = "read_anew"
#: Messages that should be in Kafka and are not.
LOST = tuple(name for name in _names("recording", "anomaly") if name.startswith("lost_"))
#: The classes of `verify --database`, by key; the last one by table.
DATABASE = _names("database", "anomaly")
#: The classes of `verify A B`, by row.
RECORDINGS = _names("recordings", "anomaly")
#: All anomalies of any kind of audit, in the order of the report.
WRONG = (*_names("recording", "anomaly"), *DATABASE, *RECORDINGS)
#: The classes that an audit of a recording counts, the most severe first.
COUNTED = declared("recording", "anomaly", "excused", "undecided", "note")
CLASSES = tuple(one.name for one in COUNTED)
#: The classes of messages that have a record each.
PAIRED = tuple(one.name for one in _CLASSES if one.is_paired)
#: The classes of messages, and of records; those of both sides come first.
EXPECTED = tuple(
    sorted(balance_classes("recording", "expected"), key=lambda name: "actual" not in _BY_NAME[name].sides)
)
ACTUAL = balance_classes("recording", "actual")
#: The units counted on both sides, and the text for a clean verdict.
SIDES: dict[Question, tuple[str, str]] = {
    "recording": ("messages", "records"),
    "database": ("rows in the tables", "rows in the topics"),
    "recordings": ("rows in the first", "rows in the second"),
}
CLEAN: dict[Question, str] = {
    "recording": "nothing lost, duplicated, changed or out of order",
    "database": "each key's latest value is its row",
    "recordings": "their changes are equal",
}


def verdict_of(counts: dict[str, int]) -> Verdict:
    """Return the verdict for the counts of the classes."""
    if any(counts.get(name, 0) for name in WRONG):
        return "anomalies"
    return "indeterminate" if counts.get(UNDECIDED, 0) else "clean"

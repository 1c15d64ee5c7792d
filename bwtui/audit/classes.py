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
        "Sent again after a restart, with the same bytes: benign.",
        sides=_BOTH,
        is_paired=True,
    ),
    AuditClass(
        "repeated",
        "anomaly",
        "It is there twice, and the relay ran with --exactly-once.",
        sides=_BOTH,
        is_paired=True,
        note="the relay ran with --exactly-once, and an earlier message of the change is there as well",
    ),
    AuditClass(
        "lost_acked",
        "anomaly",
        "The broker acknowledged it, it is not there, and nothing excuses that.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "lost_unacked",
        "anomaly",
        "No acknowledgement came, it is not there, and the relay confirmed it all the same.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "lost_unsent",
        "anomaly",
        "A change without a message and without a reason, and the relay confirmed it.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "duplicated", "anomaly", "A copy of a message that is there already, or has an excuse.", sides=_ACTUAL
    ),
    AuditClass(
        "corrupted",
        "anomaly",
        "The record at its place says another row than the message.",
        sides=_BOTH,
        is_paired=True,
        note="the bytes differ from those that were sent",
    ),
    AuditClass(
        "rekeyed",
        "anomaly",
        "Its key is in other bytes that say the same: to brokers and compaction it is another key.",
        sides=_BOTH,
        is_paired=True,
        note="its key is in other bytes, so that brokers take it for another key",
    ),
    AuditClass(
        "reordered",
        "anomaly",
        "It comes after later messages of its key.",
        count="select count(*) from late_message",
        note="it came after later ones of its key",
    ),
    AuditClass(
        "regressed",
        "anomaly",
        "The key's latest value was not the row when the recording ended.",
        count="select count(*) from wrong_latest where class = 'regressed'",
        note="a reader that keeps the latest value of the key is wrong now",
    ),
    AuditClass(
        "misrouted", "anomaly", "It is in another partition than its key's, or in another topic.", sides=_BOTH
    ),
    AuditClass(
        "phantom",
        "anomaly",
        "The relay's make, and no message says the same: a row that was rolled back, or an old relay.",
        sides=_ACTUAL,
    ),
    AuditClass(
        "foreign",
        "anomaly",
        "Not of the relay's make: another producer wrote into the topic.",
        sides=_ACTUAL,
    ),
    AuditClass(
        "resurrected",
        "anomaly",
        "The key was deleted last, the tombstone is not there, and an older row is.",
        count="select count(*) from wrong_latest where class = 'resurrected'",
        note="a reader that keeps the latest value of the key is wrong now",
    ),
    AuditClass(
        "torn_transaction",
        "anomaly",
        "Some messages of its transaction are there, and others are lost.",
        count="select count(*) from torn_transaction",
        note="some of its messages are there, and others are lost",
    ),
    AuditClass(
        "interleaved_sessions",
        "anomaly",
        "Two relays wrote at once.",
        count="select count(*) from interleaved_partition",
        note="two relays wrote at once",
    ),
    AuditClass(
        "compacted",
        "excused",
        "Not there, and rightly so: a later record of its key replaced it.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "expired",
        "excused",
        "Not there, and rightly so: it was older than the topic keeps.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "tombstone_expired",
        "excused",
        "Not there, and rightly so: a tombstone, or what it deleted, past its time.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "equivalent",
        "note",
        "Other bytes, the same row.",
        count="select count(*) from match where how = 'equivalent'",
    ),
    AuditClass(
        "moved",
        "note",
        "The same bytes at another offset: a log that was restored or repaired.",
        count="select count(*) from match where how = 'moved'",
    ),
    AuditClass("pending", "note", "Not confirmed: it will be sent again.", sides=_EXPECTED),
    AuditClass(
        "resent",
        "note",
        "No acknowledgement came, and a repeat follows that is judged by itself.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "refused",
        "note",
        "Kafka refused it, and it is not there.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "outside_window",
        "note",
        "Before the recording, or after it: counted, and not judged.",
        sides=_ACTUAL,
    ),
    AuditClass(
        "aborted",
        "note",
        "What aborted transactions left: of the relay with --exactly-once, or of other producers.",
        count="select coalesce(sum(end_offset - log_offset), 0)::bigint from hole where kind = 'aborted'",
    ),
    AuditClass(
        "markers",
        "note",
        "Offsets without a record and a message: ends of transactions; where a topic compacts, others, too.",
        count="select coalesce(sum(n), 0)::bigint from marker_gap",
    ),
    AuditClass(
        "offset_gap",
        "note",
        "A hole in a topic that keeps everything.",
        count="select count(*) from offset_gap",
    ),
    AuditClass(
        "time_differs",
        "note",
        "The message is there, with another timestamp than it was sent with.",
        count="select count(*) from time_differs",
    ),
    AuditClass(
        "headers_differ",
        "note",
        "The message is there, with other headers than it was sent with.",
        count="select count(*) from headers_differ",
    ),
    AuditClass(
        "indeterminate",
        "undecided",
        "Not there, and neither an excuse nor a loss can be proven.",
        sides=_EXPECTED,
    ),
    AuditClass(
        "missing_key",
        "anomaly",
        "The table has the row, and the topic's latest value does not.",
        "database",
        _EXPECTED,
        left="the table has the row; the report has its key alone",
    ),
    AuditClass(
        "different_row",
        "anomaly",
        "The topic's latest value says another row than the table.",
        "database",
        _BOTH,
        left="the table has the row; the report has what differs",
    ),
    AuditClass(
        "extra_key",
        "anomaly",
        "The topic has a latest value, and the table no such row.",
        "database",
        _ACTUAL,
        left="the table has no such row",
    ),
    AuditClass(
        "missing_row",
        "anomaly",
        "The table has the row, which has no key, more often than the topic ever had it.",
        "database",
        _EXPECTED,
        left="the table has the row, which has no key",
    ),
    AuditClass(
        "stray_row",
        "anomaly",
        "A partition still has a row of the key, whose newest record is in another partition.",
        "database",
        left="the newest record of the key is compared with the table",
    ),
    AuditClass(
        "not_captured",
        "anomaly",
        "The relay is to carry the table, and no publication of its has it.",
        "database",
        left="nothing of the table is sent",
    ),
    AuditClass(
        "indeterminate",
        "undecided",
        "Written to at every look, or not proven: neither a difference nor none.",
        "database",
        left="it was written to at every look, or nothing is proven",
    ),
    AuditClass("equal", "fine", question="recordings", sides=_BOTH),
    AuditClass(
        "read_anew",
        "note",
        "They differ in large values alone, which each relay read from the table itself.",
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
        "The recordings do not have the same row.",
        "recordings",
        _BOTH,
        note="the recordings do not have the same row",
        right="the same change has another row",
    ),
    AuditClass(
        "sent_differs",
        "anomaly",
        "The same row was sent with other bytes.",
        "recordings",
        _BOTH,
        note="the same row was sent with other bytes",
        right="the same row was sent with other bytes",
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
    "recording": "nothing lost, doubled, changed or out of order",
    "database": "each key's latest value is its row",
    "recordings": "they say the same",
}


def verdict_of(counts: dict[str, int]) -> Verdict:
    """Return the verdict for the counts of the classes."""
    if any(counts.get(name, 0) for name in WRONG):
        return "anomalies"
    return "indeterminate" if counts.get(UNDECIDED, 0) else "clean"

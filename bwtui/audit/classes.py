"""The classes, as docs/audit.md defines them, and what each means for the verdict."""

from typing import Literal

Verdict = Literal["clean", "anomalies", "indeterminate"]
#: What an audit was asked: a recording against Kafka, tables against topics, or two recordings.
Question = Literal["recording", "database", "recordings"]

#: Messages that are not where they should be.
LOST = ("lost_acked", "lost_unacked", "lost_unsent")
#: Something is wrong in Kafka.
ANOMALIES = (
    *LOST,
    "duplicated",
    "corrupted",
    "rekeyed",
    "reordered",
    "regressed",
    "misrouted",
    "phantom",
    "foreign",
    "resurrected",
    "torn_transaction",
    "interleaved_sessions",
)
#: What `verify --database` finds, by key; the last one by table.
DATABASE = ("missing_key", "different_row", "extra_key", "missing_row", "not_captured")
#: What `verify A B` finds, by row.
RECORDINGS = ("missing", "extra", "said_differs", "sent_differs")
#: Beside them, and not wrong: values that PostgreSQL did not send, and each relay read for itself.
READ_ANEW = "read_anew"
#: What is wrong, whatever was asked, in the order in which it is told.
WRONG = (*ANOMALIES, *DATABASE, *RECORDINGS)
#: Missing, and rightly so.
EXCUSED = ("compacted", "expired", "tombstone_expired")
#: Not wrong, and counted.
NOTES = (
    "redelivered",
    "equivalent",
    "moved",
    "pending",
    "resent",
    "refused",
    "outside_window",
    "aborted",
    "offset_gap",
    "time_differs",
    "headers_differ",
)
UNDECIDED = "indeterminate"
CLASSES = (*ANOMALIES, *EXCUSED, UNDECIDED, *NOTES)

#: The classes that messages, and records, are divided into: each has one.
EXPECTED = (
    "matched",
    "redelivered",
    "corrupted",
    "rekeyed",
    "misrouted",
    *LOST,
    *EXCUSED,
    "pending",
    "resent",
    "refused",
    UNDECIDED,
)
ACTUAL = (
    "matched",
    "redelivered",
    "duplicated",
    "corrupted",
    "rekeyed",
    "misrouted",
    "phantom",
    "foreign",
    "outside_window",
)


def verdict_of(counts: dict[str, int]) -> Verdict:
    """Return what the counts of the classes amount to."""
    if any(counts.get(name, 0) for name in WRONG):
        return "anomalies"
    return "indeterminate" if counts.get(UNDECIDED, 0) else "clean"

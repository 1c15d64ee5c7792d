"""What each class of an audit means, in a sentence; docs/audit.md has the definitions."""

from bwtui.audit.classes import UNDECIDED, Question

MEANINGS = {
    "lost_acked": "The broker acknowledged it, it is not there, and nothing excuses that.",
    "lost_unacked": "No word of it came, it is not there, and the relay confirmed it all the same.",
    "lost_unsent": "A change without a message and without a reason, and the relay confirmed it.",
    "duplicated": "A copy of a message that is there already, or has an excuse.",
    "corrupted": "The record at its place says another row than the message.",
    "rekeyed": "Its key is in other bytes that say the same: to brokers and compaction it is another key.",
    "reordered": "It stands behind later messages of its key.",
    "regressed": "The key's latest value was not the row when the recording ended.",
    "misrouted": "It is in another partition than its key's, or in another topic.",
    "phantom": "The relay's make, and no message says the same: a row that was rolled back, or an old relay.",
    "foreign": "Not of the relay's make: somebody else wrote into the topic.",
    "resurrected": "The key was deleted last, the tombstone is not there, and an older row is.",
    "torn_transaction": "Some messages of its transaction are there, and others are lost.",
    "interleaved_sessions": "Two relays wrote at once.",
    "compacted": "Not there, and rightly so: a later record of its key replaced it.",
    "expired": "Not there, and rightly so: it was older than the topic keeps.",
    "tombstone_expired": "Not there, and rightly so: a tombstone, or what it deleted, past its time.",
    "indeterminate": "Not there, and neither an excuse nor a loss can be proven.",
    "redelivered": "Sent again after a restart, with the same bytes: benign.",
    "equivalent": "Other bytes, the same row.",
    "moved": "The same bytes at another offset: a log that was restored or mended.",
    "pending": "Not confirmed: it will come again.",
    "resent": "No word of it came, and a repeat follows that is judged by itself.",
    "refused": "Kafka refused it, and the policy dropped it into the dead letters.",
    "outside_window": "Before the recording, or behind it: counted, and not judged.",
    "aborted": "What transactions of other producers left that were given up.",
    "offset_gap": "A hole in a topic that keeps everything.",
    "time_differs": "The message is there, with another timestamp than it was sent with.",
    "headers_differ": "The message is there, with other headers than it was sent with.",
    "missing_key": "The table has the row, and the topic's latest value does not.",
    "extra_key": "The topic has a latest value, and the table no such row.",
    "different_row": "The topic's latest value says another row than the table.",
    "missing_row": "The table has the row, which has no key, more often than the topic ever had it.",
    "not_captured": "The relay is to carry the table, and no publication of its has it.",
    "missing": "Only the first recording has it.",
    "extra": "Only the second recording has it.",
    "said_differs": "The recordings do not have the same row.",
    "read_anew": "They differ in large values alone, which each relay read from the table itself.",
    "sent_differs": "The same row was sent with other bytes.",
}
#: Of tables it means something else.
_UNDECIDED_ROW = "Written to at every look, or not proven: neither a difference nor none."
HOPS = {
    "broker": "the broker",
    "relay": "the relay",
    "stream": "the stream from PostgreSQL",
    "other": "another producer",
}


def meaning(name: str, question: Question = "recording") -> str:
    """Return what a class means, or nothing for one that is not known here."""
    if name == UNDECIDED and question == "database":
        return _UNDECIDED_ROW
    return MEANINGS.get(name, "")

"""Faults of a log, each with the expected findings; planting them takes write access to a broker's files.

A table's log is always the same (`CHANGES`), so each fault chooses its offsets by their contents.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from tests.audit.segment_files import Rec

#: (operation, key) of each message; its index is its offset.
CHANGES = (
    *(
        ("insert", 1),
        ("insert", 2),
        ("update", 1),
        ("insert", 3),
        ("update", 1),
        ("insert", 4),
        ("delete", 4),
    ),
    *(
        ("update", 3),
        ("insert", 5),
        ("update", 2),
        ("insert", 6),
        ("delete", 6),
        ("insert", 6),
        ("delete", 6),
    ),
    *(("update", 5), ("insert", 7)),
)
#: Messages that have older and newer ones of their key; the newest messages of keys with rows; tombstones.
INNER, NEWEST, LAST_TOMBSTONE, SINGLE = (0, 1, 2), (4, 7, 9, 14), (6, 13), 15

Found = Counter[str]
Log = list[Rec]
Fault = Callable[[Log, int], Found]


def lost(log: Log, turn: int) -> Found:
    """A record that a newer one of its key replaced is missing."""
    del log[INNER[turn % 3]]
    return Counter(lost_acked=1, offset_gap=1)


def lost_newest(log: Log, turn: int) -> Found:
    """A key's newest row is missing, and the one before it is there."""
    del log[NEWEST[turn % 4]]
    return Counter(lost_acked=1, offset_gap=1, regressed=1)


def lost_tombstone(log: Log, turn: int) -> Found:
    """A deleted row is there again."""
    del log[LAST_TOMBSTONE[turn % 2]]
    return Counter(lost_acked=1, offset_gap=1, resurrected=1)


def lost_start(log: Log, turn: int) -> Found:
    """The first records are missing."""
    number = 1 + turn % 3
    del log[:number]
    return Counter(lost_acked=number, offset_gap=1)


def lost_end(log: Log, turn: int) -> Found:
    """The log ends too early."""
    number = 1 + turn % 2
    del log[-number:]
    return Counter(lost_acked=number, regressed=number - 1)


def damaged(log: Log, turn: int) -> Found:
    """A batch does not match its checksum."""
    log[INNER[turn % 3]].is_damaged = True
    return Counter(lost_acked=1)


def doubled_at_end(log: Log, turn: int) -> Found:
    """A copy of the newest message of a key is at the end."""
    log.append(replace(log[NEWEST[turn % 4]], offset=log[-1].offset + 1))
    return Counter(duplicated=1)


def doubled_older(log: Log, turn: int) -> Found:
    """A copy of an older message of a key is at the end."""
    log.append(replace(log[INNER[turn % 3]], offset=log[-1].offset + 1))
    return Counter(duplicated=1, regressed=1)


def doubled_within(log: Log, turn: int) -> Found:
    """A message is in the log twice in a row, and all later records are shifted."""
    at = (3, 8, 10)[turn % 3]
    return _insert(log, at + 1, replace(log[at])) + Counter(duplicated=1)


def doubled_tombstone(log: Log, turn: int) -> Found:
    """A tombstone is in the log twice in a row, and a later tombstone has the same bytes."""
    return _insert(log, 12, replace(log[11])) + Counter(duplicated=1)


def _insert(log: Log, at: int, record: Rec) -> Found:
    log.insert(at, record)
    for offset, one in enumerate(log):
        one.offset = offset
    return Counter(moved=len(log) - at - 1)


def changed(log: Log, turn: int) -> Found:
    """A value has changed, under a valid checksum."""
    record = log[INNER[turn % 3]]
    assert record.value is not None
    record.value = record.value.replace(b"v", b"w")
    return Counter(corrupted=1)


def changed_newest(log: Log, turn: int) -> Found:
    """The newest value of a key has changed."""
    record = log[NEWEST[turn % 4]]
    assert record.value is not None
    record.value = record.value.replace(b"v", b"w")
    return Counter(corrupted=1, regressed=1)


def nulled(log: Log, turn: int) -> Found:
    """A row became a tombstone."""
    log[INNER[turn % 3]].value = None
    return Counter(corrupted=1)


def emptied(log: Log, turn: int) -> Found:
    """A tombstone became an empty value."""
    log[(11, 6)[turn % 2]].value = b""
    return Counter(corrupted=1, regressed=turn % 2)


def unkeyed(log: Log, turn: int) -> Found:
    """A row has lost its key."""
    log[INNER[turn % 3]].key = None
    return Counter(corrupted=1)


def rekeyed(log: Log, turn: int) -> Found:
    """A key has different bytes that decode the same."""
    record = log[(*INNER, SINGLE)[turn % 4]]
    assert record.key is not None
    record.key = _otherwise(record.key)
    return Counter(rekeyed=1)


def rekeyed_tombstone(log: Log, turn: int) -> Found:
    """A tombstone's key has different bytes, so the row under its original key is still there."""
    record = log[LAST_TOMBSTONE[turn % 2]]
    assert record.key is not None
    record.key = _otherwise(record.key)
    return Counter(rekeyed=1, regressed=1)


def _otherwise(data: bytes) -> bytes:
    """Return different bytes that decode the same: more blanks, or a longer varint for a union's branch."""
    if data[:1] == b"{":
        return data.replace(b": ", b":  ", 1)
    assert data[5:6] == b"\x02"
    return data[:5] + b"\x82\0" + data[6:]


def equivalent(log: Log, turn: int) -> Found:
    """A value has different bytes that decode the same."""
    record = log[(*INNER, *NEWEST)[turn % 7]]
    assert record.value is not None
    record.value = _otherwise(record.value)
    return Counter(equivalent=1)


def exchanged(log: Log, turn: int) -> Found:
    """Two messages of a key are swapped, one of them the newest."""
    one, other = ((2, 4), (1, 9), (8, 14))[turn % 3]
    return _exchange(log, one, other) + Counter(reordered=1, regressed=1)


def exchanged_keys(log: Log, turn: int) -> Found:
    """Two messages of two keys are swapped."""
    one, other = ((3, 5), (8, 10), (14, 15))[turn % 3]
    return _exchange(log, one, other)


def _exchange(log: Log, one: int, other: int) -> Found:
    log[one], log[other] = replace(log[other], offset=one), replace(log[one], offset=other)
    return Counter(moved=2)


def moved_to_end(log: Log, turn: int) -> Found:
    """A message was written again later, and no newer one of its key is there."""
    at = NEWEST[turn % 4]
    log.append(replace(log.pop(at), offset=log[-1].offset + 1))
    return Counter(moved=1, offset_gap=1)


def shifted(log: Log, turn: int) -> Found:
    """The log was restored, and all of its offsets are higher."""
    for record in log:
        record.offset += 1 + turn % 3
    return Counter(moved=len(log), offset_gap=1)


def foreign(log: Log, turn: int) -> Found:
    """Another producer's record is at the end."""
    log.append(Rec(log[-1].offset + 1, log[-1].ts, b"theirs", b"\x01theirs"))
    return Counter(foreign=1)


def replaced(log: Log, turn: int) -> Found:
    """Another producer's record is at the offset of a message."""
    at = INNER[turn % 3]
    log[at] = Rec(at, log[at].ts + 1, b"theirs", b"\x01theirs")
    return Counter(lost_acked=1, foreign=1)


def phantom(log: Log, turn: int) -> Found:
    """A record looks like the relay's, but no message matches it."""
    record = log[INNER[turn % 3]]
    assert record.value is not None
    made = replace(record, offset=log[-1].offset + 1, value=record.value.replace(b"v", b"p"))
    log.append(made)
    return Counter(phantom=1, regressed=1)


def retimed(log: Log, turn: int) -> Found:
    """A record has a different time."""
    log[turn % len(log)].ts -= 1
    return Counter(time_differs=1)


def reheadered(log: Log, turn: int) -> Found:
    """A record has different headers: an extra one, an invalid name, a changed value, or none."""
    record = log[turn % len(log)]
    first, *rest = record.headers
    record.headers = [
        [*record.headers, (b"more", b"1")],
        [*record.headers, (b"\xff", None)],
        [(first[0], b"else"), *rest],
        [],
    ][turn % 4]
    return Counter(headers_differ=1)


def untouched(log: Log, turn: int) -> Found:
    """The log is unchanged."""
    return Counter()


FAULTS: dict[str, Fault] = {
    one.__name__: one
    for one in (
        lost, lost_newest, lost_tombstone, lost_start, lost_end, damaged, doubled_at_end, doubled_older,
        doubled_within, doubled_tombstone, changed, changed_newest, nulled, emptied, unkeyed, rekeyed,
        rekeyed_tombstone, equivalent, exchanged, exchanged_keys, moved_to_end, shifted, foreign, replaced,
        phantom, retimed, reheadered, untouched,
    )
}  # fmt: skip

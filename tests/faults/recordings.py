"""Compare a recording with the changes that PostgreSQL committed, and with the records in Kafka."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg2

from bwtui.demo.shop import DemoTable
from bwtui.kafka.client import headers_of
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.messages import Begin, Delete, Insert, Relation, Update
from bwtui.recording.change import Change
from bwtui.recording.check import CheckResult, check
from bwtui.recording.reader import RecordingReader, open_recording
from bwtui.recording.recover import RecoveryResult, recover
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.raw_topic import place_of, raw_records

#: (commit LSN, ordinal) → operation, table, old row, new row.
Committed = dict[tuple[int, int], tuple[str, str, Any, Any]]


class Witness:
    """A separate slot, from which PostgreSQL itself returns the committed changes."""

    def __init__(self, database: str, name: str) -> None:
        self._database = database
        self._name = f"{name}_witness"
        with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute(f"create publication {self._name} for all tables")
            cursor.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [self._name])

    def committed(self, since: int) -> Committed:
        """Return every change of the transactions that commit at ``since`` or later."""
        found: Committed = {}
        relations: dict[int, str] = {}
        lsn = ordinal = 0
        for payload in self._messages():
            message = decode(payload)
            if isinstance(message, Begin):
                lsn, ordinal = message.final_lsn, 0
            elif isinstance(message, Relation):
                relations[message.oid] = message.qualified_name
            elif isinstance(message, Insert | Update | Delete):
                ordinal += 1
                if lsn >= since:
                    old = None if isinstance(message, Insert) else message.old
                    new = None if isinstance(message, Delete) else message.new
                    what = type(message).__name__.lower()
                    found[lsn, ordinal] = (what, relations[message.relation_oid], row(old), row(new))
        return found

    def _messages(self) -> Iterable[bytes]:
        with closing(psycopg2.connect(self._database)) as connection, connection.cursor("told") as cursor:
            cursor.execute(
                "select data from pg_logical_slot_peek_binary_changes(%s, null, null,"
                " 'proto_version', '1', 'publication_names', %s)",
                [self._name, self._name],
            )
            for (data,) in cursor:
                yield bytes(data)


def row(fields: Sequence[Any] | None) -> tuple[Any, ...] | None:
    return None if fields is None else tuple(fields)


def recover_and_check(folder: Path) -> tuple[list[RecoveryResult], CheckResult]:
    """Recover a recording, and check that it then passes."""
    recovered = recover(folder) if list(folder.glob("*.partial")) else []
    checked = check(folder)
    assert checked.verdict == "clean", [str(damage) for damage in checked.damages]
    return recovered, checked


def assert_everything_committed(recording: RecordingReader, witness: Witness) -> int:
    """Check that the changes of all passes together equal the committed changes, and return their number.

    A change that was recorded twice must be the same both times.
    """
    found: Committed = {}
    for change in recording.changes():
        if change.operation in ("snapshot", "cleanup"):
            continue
        told = (change.operation, change.table, row(change.before), row(change.after))
        again = found.setdefault((change.lsn, change.ordinal), told)
        assert again == told
        assert change.is_repeat or again is told
    expected = witness.committed(first_stream_lsn(recording))
    assert found == expected
    return len(found)


def first_stream_lsn(recording: RecordingReader) -> int:
    """Return the consistent point of the snapshot that completed."""
    return max(change.lsn for change in recording.changes() if change.operation == "snapshot")


def assert_tables_follow(recording: RecordingReader, database: str, tables: Sequence[DemoTable]) -> None:
    """Check that the last snapshot and the changes after it yield the contents of the tables."""
    since = first_stream_lsn(recording)
    rows: dict[str, dict[bytes, tuple[Any, ...]]] = {t.full_name: {} for t in tables}
    #: The first column of the row that was last sent under a key.
    sent: dict[tuple[str, bytes | None], Any] = {}
    for change in recording.changes():
        if change.operation == "snapshot" and change.lsn != since:
            continue
        apply(rows[change.table], change)
        for message in change.messages[-1:]:
            if change.operation == "cleanup":
                rows[change.table].pop(sent.get((change.table, message.key), b""), None)
            elif change.after is not None:
                sent[change.table, message.key] = change.after[0]
    with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"select * from {table.full_name}")
            present = {
                str(one[0]).encode(): tuple(str(cell).encode() for cell in one) for one in cursor.fetchall()
            }
            assert rows[table.full_name] == present


def apply(rows: dict[bytes, tuple[Any, ...]], change: Change) -> None:
    if change.is_repeat:
        # A repeat was applied before; applying it again would restore an older state.
        return
    if change.before is not None:
        rows.pop(change.before[0], None)  # type: ignore[arg-type]
    if change.after is not None:
        rows[change.after[0]] = change.after  # type: ignore[index]


def assert_topics_agree(
    services: ServiceAddresses, recording: RecordingReader, topics: Sequence[str]
) -> tuple[int, int]:
    """Check that all acknowledged messages are in Kafka, and that all records in Kafka were recorded.

    Return the number of acknowledged messages and the number of records.
    """
    acknowledged: dict[tuple[str, int, int], Any] = {}
    recorded: set[Any] = set()
    for change in recording.changes():
        for message in change.messages:
            content = (message.topic, message.key, message.value, message.headers)
            recorded.add(content)
            if message.state == "acknowledged":
                assert message.partition is not None and message.offset is not None
                acknowledged[message.topic, message.partition, message.offset] = content
    total = 0
    for (topic, _), records in raw_records(services, list(topics)).items():
        for record in records:
            total += 1
            place = place_of(record)
            sent = (topic, record.key(), record.value(), tuple(headers_of(record)))
            assert sent in recorded, place
            assert acknowledged.pop(place, sent) == sent
    assert not acknowledged
    return len(recorded), total


def opened(folder: Path) -> "closing[RecordingReader]":
    return closing(open_recording(folder))


def size(folder: Path) -> int:
    """Return the current size of the recording in bytes."""
    while True:
        try:
            return sum(path.stat().st_size for path in folder.glob("0*"))
        except FileNotFoundError:
            # The recording was replaced, or a segment was finished and renamed, at this moment.
            continue

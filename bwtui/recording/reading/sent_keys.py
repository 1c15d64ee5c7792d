"""Keys of sent messages, which identify the rows that backfilled tombstones delete."""

import itertools
import marshal
import sqlite3
from collections.abc import Sequence

from bwtui.pgoutput.messages import UNCHANGED, Binary, Field, Relation
from bwtui.recording.change import Change, SentMessage

#: Length of the header of Confluent's wire format: a zero byte, and the schema's id.
_HEAD = 5


def body_of(key: bytes) -> bytes:
    """Return a message's key without its schema id, which may differ between messages."""
    return key[_HEAD:] if key[:1] == b"\0" and len(key) > _HEAD else key


class KeyEncodings:
    """The schema ids with which the keys of one table have been sent."""

    def __init__(self) -> None:
        self._heads: set[bytes] = set()

    def sent(self, change: Change) -> bytes | None:
        """Return the key that the row of a change was sent with; None if it was not sent."""
        key = change.messages[-1].key if change.messages else None
        if key is not None and key[:1] == b"\0":
            self._heads.add(key[:_HEAD])
        return key

    def of_tombstone(self, message: SentMessage) -> list[bytes]:
        """Return the keys with which the row that a backfilled tombstone deletes may have been sent.

        A tombstone with a schema id that is not the relay's own deletes an orphaned key: the same row may be
        in the topic with the relay's id, and only a row last sent with exactly this key is gone.
        """
        key = message.key or b""
        if key[:1] != b"\0" or int.from_bytes(key[1:_HEAD]) != message.key_schema_id:
            return [key]
        return [key, *(head + key[_HEAD:] for head in self._heads if head != key[:_HEAD])]


class SentKeys:
    """Key values of all rows, by the key that each was last sent with; kept on disk."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[KeyEncodings, list[tuple[str, int]]]] = {}
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.executescript(
            "pragma journal_mode = off; pragma synchronous = off; pragma temp_store = file;"
            "create table rows (oid integer, key blob, sent blob, primary key (oid, key)) without rowid;"
            "create index by_sent on rows (oid, sent); begin"
        )

    def close(self) -> None:
        """Release the keys."""
        self._database.close()

    def note(self, change: Change) -> None:
        """Record a change of a table with a key; deletes need not be recorded."""
        relation = change.relation
        spellings, types = self._of.setdefault(relation.oid, (KeyEncodings(), []))
        now = key_types(relation, change.key_columns)
        if types != now:
            self._database.execute("delete from rows where oid = ?", (relation.oid,))
            self._of[relation.oid] = (spellings, now)
        sent = spellings.sent(change)
        if change.after is not None and sent is not None:
            row = (relation.oid, pack(change.key), sent)
            self._database.execute("insert or replace into rows values (?, ?, ?)", row)

    def find(self, change: Change) -> tuple[Field, ...] | None:
        """Return the key values of the row that a backfilled tombstone deletes, or None if unknown."""
        oid = change.relation.oid
        spellings, types = self._of.get(oid, (KeyEncodings(), []))
        if types != key_types(change.relation, change.key_columns):
            return None
        query = "select key from rows where oid = ? and sent = ?"
        for key in itertools.chain.from_iterable(map(spellings.of_tombstone, change.messages)):
            row = self._database.execute(query, (oid, key)).fetchone()
            if row is not None:
                return unpack(row[0])
        return None


def key_types(relation: Relation, key_columns: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return the key columns with their types; keys are comparable while these stay the same."""
    types = {column.name: column.type_oid for column in relation.columns}
    return [(name, types.get(name, 0)) for name in key_columns]


def pack(fields: Sequence[Field]) -> bytes:
    """Return fields as bytes, for SQLite."""
    # False means a value that PostgreSQL did not send, a tuple means bytes that are not text.
    return marshal.dumps(
        [False if f is UNCHANGED else (bytes(f),) if isinstance(f, Binary) else f for f in fields]
    )


def unpack(blob: bytes) -> tuple[Field, ...]:
    """Return the fields that `pack` was given."""
    return tuple(_field(value) for value in marshal.loads(blob))


def _field(value: object) -> Field:
    if value is None or isinstance(value, bytes):
        return value
    return Binary(value[0]) if isinstance(value, tuple) else UNCHANGED

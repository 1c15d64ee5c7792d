"""Convert rows of the stream to JSON text, with one generated function per relation.

Every function takes a frame and returns `ChangeTexts`. There are three ways with equal results, from fast to
slow: rows with only text below 64 KiB in every column, split by one ``bytes.split`` as in
`bwtui.pgoutput.tuples`; rows with NULLs; and all others, for which the functions of
`bwtui.recording.export.rows` are used.
"""

import json
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring as quoted
from typing import Any, NamedTuple

from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.frames import PAYLOAD_OFFSET
from bwtui.pgoutput.messages import UNCHANGED, Field, Insert, Relation, Update
from bwtui.pgoutput.tuples import MISLEADING, TEXT_HEAD, splitter
from bwtui.recording.query.rows import as_text

#: Offset after the tag, the oid, and the letter for the kind of the row that follows.
_ROW = PAYLOAD_OFFSET + 6
_NEW = ord("N")
#: Types whose text is ASCII without quotes, backslashes and control characters, so that it needs no escaping:
#: numbers, boolean, oid, dates and times, uuid.
_PLAIN = frozenset({16, 20, 21, 23, 26, 700, 701, 1082, 1083, 1114, 1184, 1266, 1700, 2950})


class ChangeTexts(NamedTuple):
    """The texts of a change for the columns before, after, key_json and unchanged; None is null."""

    table: int
    op: int
    before: str | None
    after: str | None
    #: The keys of the new and of the old row; None if unknown.
    new_key: str | None
    old_key: str | None
    unchanged: list[str] | None
    filled: list[str] | None = None


OPERATIONS = ("snapshot", "insert", "update", "delete", "truncate", "cleanup", "backfill")
_SNAPSHOT, _INSERT, _UPDATE, _DELETE = range(4)
_BACKFILL = OPERATIONS.index("backfill")

Row = Sequence[Field]


class TextMaker:
    """Makes the texts of one relation's rows; ``key`` has the key columns of its messages."""

    def __init__(self, relation: Relation, key: tuple[str, ...], table: int) -> None:
        self.relation = relation
        self.key = key
        self.table = table
        self._names = [column.name for column in relation.columns]
        places = {name: place for place, name in enumerate(self._names)}
        #: None if the key columns are not among the columns, so that keys are unknown.
        self._key_places = [places[name] for name in key] if set(key) <= places.keys() and key else None
        self._heads = [f"{quoted(name)}: " for name in self._names]
        self._identity = {place for place, column in enumerate(relation.columns) if column.is_key}
        self._split = splitter(len(self._names))
        scope = self._scope()
        self._nulls: Callable[[Row], tuple[str, str | None]] = scope["nulls"]
        self.insert: Callable[[bytes], ChangeTexts] = scope["insert"]
        self.update: Callable[[bytes], ChangeTexts] = scope["update"]

    # -- generated -----------------------------------------------------------------------------------------

    def _scope(self) -> dict[str, Any]:
        """Compile the functions; the only variable parts of their source are numbers."""
        scope: dict[str, Any] = {"quoted": quoted, "HEAD": TEXT_HEAD, "NEW": _NEW}
        scope |= {"slow_insert": self._any_insert, "slow_update": self._any_update, "Texts": ChangeTexts}
        lines = [*self._nulls_lines(scope), *self._plain_lines(scope, "insert", _INSERT)]
        lines += self._plain_lines(scope, "update", _UPDATE)
        exec("\n".join(lines), scope)
        return scope

    def _plain_lines(self, scope: dict[str, Any], name: str, op: int) -> list[str]:
        count = len(self._names)
        if not count:
            return [f"{name} = slow_{name}"]
        pieces = [f"p{i}" for i in range(count)]
        row, key = self._format(scope, plain=True)
        return [
            f"def {name}(frame):",
            "    pieces = frame.split(HEAD)",
            f"    if len(pieces) == {count + 1}:",
            f"        head, {', '.join(pieces)} = pieces",
            f"        if len(head) == {_ROW + 2} and frame[{_ROW - 1}] == NEW and len(frame) < {MISLEADING}:",
            "            try:",
            *(f"                {line}" for line in self._decode_lines()),
            f"                return ({self.table}, {op}, None, {row}, {key}, None, None, None)",
            "            except UnicodeDecodeError: pass",
            f"    return slow_{name}(frame)",
        ]

    def _decode_lines(self) -> list[str]:
        return [
            f"p{i} = p{i}[2:].decode()" if self._is_plain(i) else f"p{i} = quoted(p{i}[2:].decode())"
            for i in range(len(self._names))
        ]

    def _nulls_lines(self, scope: dict[str, Any]) -> list[str]:
        """Return the source of ``nulls(row)``, for rows of texts and NULLs; others raise AttributeError."""
        pieces = [f"p{i}" for i in range(len(self._names))]
        row, _ = self._format(scope, plain=False)
        key = "None"
        if self._key_places:
            has_key = " and ".join(f"f{i} is not None" for i in self._key_places)
            key = f"{self._format(scope, plain=False)[1]} if {has_key} else None"
        assign = ", ".join(f"f{i}" for i in range(len(pieces)))
        return [
            "def nulls(row):",
            *([f"    {assign}, = row"] if pieces else []),
            *(f"    p{i} = 'null' if f{i} is None else quoted(f{i}.decode())" for i in range(len(pieces))),
            f"    return {row}, {key}",
        ]

    def _format(self, scope: dict[str, Any], *, plain: bool) -> tuple[str, str]:
        """Return the source of f-strings for a row and its key, from pieces p0, p1, …"""
        row = self._object(scope, "r", range(len(self._names)), plain)
        key = "None" if self._key_places is None else self._object(scope, "k", self._key_places, plain)
        return row, key

    def _object(self, scope: dict[str, Any], prefix: str, places: Sequence[int], plain: bool) -> str:
        prefix += "p" if plain else "n"
        source, text = "", "{"
        for number, place in enumerate(places):
            quote = '"' if plain and self._is_plain(place) else ""
            scope[f"{prefix}{number}"] = f"{text}{self._heads[place]}{quote}"
            source += f"{{{prefix}{number}}}{{p{place}}}"
            text = f"{quote}, "
        scope[f"{prefix}end"] = f"{text.removesuffix(', ')}}}"
        return f"f'{source}{{{prefix}end}}'"

    def _is_plain(self, place: int) -> bool:
        return self.relation.columns[place].type_oid in _PLAIN

    # -- any row -------------------------------------------------------------------------------------------

    def _any_insert(self, frame: bytes) -> ChangeTexts:
        return self._with_new(_INSERT, None, None, self._split(frame, _ROW))

    def _any_update(self, frame: bytes) -> ChangeTexts:
        if frame[_ROW - 1] == _NEW:
            return self._with_new(_UPDATE, None, None, self._split(frame, _ROW))
        message = decode(frame[PAYLOAD_OFFSET:])
        assert isinstance(message, Update) and message.old is not None
        before, old_key = self._old(message.old, message.old_kind == "K")
        return self._with_new(_UPDATE, before, old_key, message.new)

    def delete(self, frame: bytes) -> ChangeTexts:
        """Return the texts of a DELETE."""
        before, key = self._old(self._split(frame, _ROW), frame[_ROW - 1 : _ROW] == b"K")
        return ChangeTexts(self.table, _DELETE, before, None, None, key, None)

    def snapshot(self, row: Row) -> ChangeTexts:
        """Return the texts of a row of a snapshot."""
        return self._with_new(_SNAPSHOT, None, None, row)

    def backfill(self, row: Row) -> ChangeTexts:
        """Return the texts of a backfilled row."""
        return self._with_new(_BACKFILL, None, None, row)

    def completed(self, frame: bytes, filled: Sequence[tuple[int, bytes]]) -> ChangeTexts:
        """Return the texts of an INSERT or UPDATE with values that the relay filled in."""
        message = decode(frame[PAYLOAD_OFFSET:])
        assert isinstance(message, Insert | Update)
        new = list(message.new)
        for place, text in filled:
            new[place] = text
        op, before, old_key = _INSERT, None, None
        if isinstance(message, Update):
            op = _UPDATE
            if message.old is not None:
                before, old_key = self._old(message.old, message.old_kind == "K")
        names = [self._names[place] for place, _ in filled]
        return self._with_new(op, before, old_key, new)._replace(filled=names)

    def _with_new(self, op: int, before: str | None, old_key: str | None, new: Row) -> ChangeTexts:
        try:
            after, new_key = self._nulls(new)
            return ChangeTexts(self.table, op, before, after, new_key, old_key, None)
        except (AttributeError, ValueError):
            # A value that was not sent, or is not UTF-8.
            values = {place: value for place, value in enumerate(new) if value is not UNCHANGED}
            unchanged = [self._names[place] for place, value in enumerate(new) if value is UNCHANGED]
            return ChangeTexts(
                self.table, op, before, self._json(values), self._key(values), old_key, unchanged
            )

    def _old(self, row: Row, is_key: bool) -> tuple[str, str | None]:
        if not is_key:
            try:
                return self._nulls(row)
            except (AttributeError, ValueError):
                pass
        values = {
            place: value
            for place, value in enumerate(row)
            if not (value is UNCHANGED or (is_key and value is None and place not in self._identity))
        }
        return self._json(values), self._key(values)

    def _json(self, values: dict[int, Field]) -> str:
        return f"{{{', '.join([self._heads[place] + _text(value) for place, value in values.items()])}}}"

    def _key(self, values: dict[int, Field]) -> str | None:
        if self._key_places is None:
            return None
        key = {place: values.get(place) for place in self._key_places}
        return None if None in key.values() else self._json(key)


def _text(value: Field) -> str:
    if value is None:
        return "null"
    try:
        return quoted(value.decode())  # type: ignore[union-attr]
    except (AttributeError, UnicodeDecodeError):
        return json.dumps(as_text(value), ensure_ascii=False)

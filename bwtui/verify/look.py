"""Looks at the bytes of what differs: the messages out of the recording, the records out of Kafka."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from bwtui.audit.core import Judged, Pair, Record
from bwtui.audit.decoding import Schemas, Undecodable, schema_id
from bwtui.kafka.client import Config, headers_of
from bwtui.kafka.scan import SplitScan
from bwtui.kafka.splits import Split
from bwtui.model.duckdb_text import exact
from bwtui.verify.digests import PARTS

#: Records that lie no further apart are read in one go.
_NEAR = 2_000
_HEADERS = "bwtui."
#: How long a log that ends too early is waited for.
_PATIENCE_SECONDS = 5.0


class Seen(NamedTuple):
    """A record as Kafka has it."""

    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]


class RowReader:
    """Decodes keys and values, whichever format they are in."""

    def __init__(self, output_format: str, schemas: Schemas) -> None:
        self._is_json = output_format == "json"
        self.schemas = schemas

    def row(self, data: bytes | None) -> Mapping[str, Any] | None:
        """Return the row, or None for none. Raises Undecodable."""
        if data is None:
            return None
        if not self._is_json:
            return self.schemas.decode(data)[1]
        try:
            found = json.loads(data)
        except ValueError as error:
            raise Undecodable("it is no JSON") from error
        if not isinstance(found, dict):
            raise Undecodable("it is no JSON object")
        return found


class KafkaLook:
    """See `bwtui.audit.core.Look`."""

    def __init__(
        self,
        config: Config,
        topics: Sequence[str],
        files: Sequence[Path],
        reader: RowReader,
        known_ids: Mapping[str, frozenset[int]],
        sessions: Iterable[str],
        miscoded: Sequence[int] = (),
    ) -> None:
        """``topics`` in the audit's order; ``known_ids``: the ids of schemas that were sent to each."""
        self._config = config
        self._topics = topics
        self._files = exact(files)
        self._reader = reader
        self._known_ids = known_ids
        self._sessions = {bytes.fromhex(one) for one in sessions if one}
        self._miscoded = miscoded

    def miscoded(self) -> Iterable[int]:
        """Return what `bwtui.verify.deep` found before."""
        return self._miscoded

    def equal_rows(self, pairs: Sequence[Pair]) -> Iterator[int]:
        """Compare the rows of messages with those of the records at their places."""
        sent = self.messages([pair.id for pair in pairs])
        there = self.records([Record(*pair[1:]) for pair in pairs])
        for pair in pairs:
            record, message = there.get(Record(*pair[1:])), sent.get(pair.id)
            if record is None or message is None:
                continue
            try:
                same = all(
                    _plain(self._reader.row(left)) == _plain(self._reader.row(right))
                    for left, right in ((record.key, message[0]), (record.value, message[1]))
                )
            except Undecodable:
                continue
            if same:
                yield pair.id

    def judge(self, records: Sequence[Record]) -> Iterator[Judged]:
        """Say which records are of the relay's make."""
        for place, record in self.records(records).items():
            session = record.headers.get("bwtui.session")
            ours = session in self._sessions or self._is_ours(self._topics[place.t], record)
            named = [record.headers.get(name) if ours else None for name in ("bwtui.lsn", "bwtui.ordinal")]
            yield Judged(*place, ours, *map(_number, named))

    def _is_ours(self, topic: str, record: Seen) -> bool:
        if record.key is None and record.value is None:
            return False
        try:
            for data in (record.key, record.value):
                if self._reader.row(data) is not None and not self._is_known(topic, schema_id(data)):
                    return False
        except Undecodable:
            return False
        return True

    def _is_known(self, topic: str, number: int | None) -> bool:
        """Whether a schema was sent to the topic, or has the name of one: the table was altered since."""
        known = self._known_ids.get(topic, frozenset())
        if number is None or number in known:
            return True
        return _name_of(self._reader.schemas, number) in {
            _name_of(self._reader.schemas, one) for one in known
        }

    def messages(self, ids: Sequence[int]) -> dict[int, tuple[bytes | None, bytes | None, dict[str, Any]]]:
        """Return key, value, and what PostgreSQL said, of messages."""
        if not ids:
            return {}
        wanted = pa.table(
            {"position": [number // PARTS for number in ids], "part": [number % PARTS for number in ids]}
        )
        # It joins by hashing the few that are wanted: nothing that could spill into the current folder.
        with duckdb.connect(config={"temp_directory": ""}) as connection:
            connection.register("wanted", wanted)
            rows = connection.execute(
                "select position, part, key, value, key_json, before, after"
                " from read_parquet(?) semi join wanted using (position, part)",
                [self._files],
            ).fetchall()
        return {
            row[0] * PARTS + row[1]: (
                row[2],
                row[3],
                dict(zip(("key", "before", "after"), row[4:], strict=True)),
            )
            for row in rows
        }

    def records(self, places: Sequence[Record]) -> dict[Record, Seen]:
        """Read records again; what has gone since is left out."""
        found: dict[Record, Seen] = {}
        for (t, p), group in groupby(sorted(places), key=lambda place: place[:2]):
            for low, high, wanted in _runs(place.o for place in group):
                split = Split(self._topics[t], p, low, high)
                for part in SplitScan(self._config, split, "read_uncommitted", _PATIENCE_SECONDS):
                    for message, offset in zip(part.messages, part.offsets, strict=True):
                        if offset in wanted:
                            headers = headers_of(message)
                            ours = {k: v for k, v in headers if k.startswith(_HEADERS) and v is not None}
                            found[Record(t, p, offset)] = Seen(message.key(), message.value(), ours)
        return found


def _plain(value: Any) -> Any:
    """Return what is equal for equal values alone: to Python 1, 1.0 and true are, and 0 and -0."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return type(value), repr(value)


def _name_of(schemas: Schemas, number: int) -> str | None:
    """Return the full name of a record's schema, or None for a schema without."""
    parsed = schemas.get(number).parsed
    return parsed.get("name") if isinstance(parsed, dict) else None


def _number(data: bytes | None) -> int | None:
    """Return the number in a header; what is longer, or larger than 2⁶³, is none of the relay's."""
    number = int.from_bytes(data, "big") if data is not None and len(data) <= 8 else None
    return number if number is not None and number < 1 << 63 else None


def _runs(offsets: Iterable[int]) -> Iterator[tuple[int, int, set[int]]]:
    """Gather offsets, which rise, into ranges that are worth one reading."""
    run: list[int] = []
    for offset in offsets:
        if run and offset - run[-1] > _NEAR:
            yield run[0], run[-1] + 1, set(run)
            run = []
        run.append(offset)
    if run:
        yield run[0], run[-1] + 1, set(run)

"""Parse and validate JSON blocks, once, so that no reader has to check them again.

::

    head = head_said(block, "00000001.partial")    # a dict whose members have the expected types

File contents are untrusted. A checksum proves that they are unchanged, not who wrote them.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, TypedDict, Union, cast, get_args, get_origin, get_type_hints

from bwtui.model.from_json import from_json_object
from bwtui.model.status import ErrorEntry, SchemaEntry, Status
from bwtui.recording.format.blocks import LAST_TIME, VERSION, BlockKind, JournalBlock, SegmentPlace, damaged
from bwtui.recording.format.validation import LARGEST, array, identity, number, obj, sha256, text

_PASSES = (1 << 31) - 1
_OIDS = (1 << 32) - 1
#: Free disk space in bytes may exceed 64 bits, because it is counted in blocks; a float can hold it.
_ANY_SIZE = 1 << 80


#: What of a recording is in Kafka: everything before a position, as recorded by one pass of one run.
RecordedBehind = TypedDict("RecordedBehind", {"session": str, "pass": int, "position": int})


class LastSentChange(TypedDict):
    """The last change that Kafka had when a pass with --exactly-once began.

    It is change ``ordinal`` of the transaction that commits at ``lsn``, or that transaction's last change
    (null). Later changes of transactions that earlier passes from the same position recorded were aborted.
    Older versions do not write ``recorded``.
    """

    lsn: int
    ordinal: int | None
    recorded: NotRequired[RecordedBehind]


#: A pass over the source. Before the first pass it has only its number. All LSNs are numbers.
Pass = TypedDict(
    "Pass",
    {
        "pass": int,
        "kind": NotRequired[Literal["snapshot", "stream"]],
        "start_lsn": NotRequired[int],
        "first_batch": NotRequired[int],
        "seen": NotRequired[list[int]],
        "session": NotRequired[str],
        "exactly_once": NotRequired[bool],
        "behind": NotRequired[LastSentChange],
    },
)


class Event(Pass):
    """An EVENT: a pass begins ("pass"), LSNs are missing ("gap"), or a kind that a later version added."""

    event: str
    from_lsn: NotRequired[int]
    to_lsn: NotRequired[int]


#: A segment's first block; empty until it was read. ``previous`` is the digest in the foot of the segment
#: before, or empty.
Head = TypedDict(
    "Head",
    {
        "version": int,
        "recording": str,
        "previous": str,
        "session": str,
        "first_position": int,
        "first_batch": int,
        "seen": list[int],
        "pass": Pass,
        "source": dict[str, Any],
    },
    total=False,
)
#: The end of a segment, as the relay records it. ``noted`` is the LSN up to which a recording that was given
#: up has noted its gap.
SegmentEnd = TypedDict(
    "SegmentEnd",
    {
        "first_position": int,
        "first_batch": int,
        "next_batch": int,
        "seen": list[int],
        "pass": Pass,
        "ended": str,
        "noted": NotRequired[int],
    },
)


class Foot(SegmentEnd):
    """A finished segment's last block: the segment's end, and totals derived from its blocks."""

    #: Digest of the headers of all blocks before it; in version 1 ``sha256`` of all bytes before it instead.
    headers_sha256: NotRequired[str]
    sha256: NotRequired[str]
    blocks: int
    changes: int
    transactions: int
    first_lsn: int
    last_lsn: int
    first_received: int
    last_received: int
    #: The LSN up to which everything was durable at the sink.
    reached: int
    tables: dict[str, dict[str, int]]
    #: Number of backfilled rows among a table's snapshot_rows; absent in older recordings.
    backfill_rows: NotRequired[dict[str, int]]


def digest_kind(foot: Mapping[str, Any]) -> Literal["sha256", "headers_sha256"]:
    """Return the name of a foot's digest; version 1 of the format used a different one."""
    return "sha256" if "sha256" in foot else "headers_sha256"


def is_sent(head: Head) -> bool:
    """Return whether the messages of a segment were sent to Kafka, rather than only recorded."""
    return bool(head["source"].get("cluster") or head["source"].get("broker"))


def parse_head(block: JournalBlock, segment: str) -> Head:
    """Parse a HEAD. Raises DamagedRecording."""
    return cast(Head, statement(block, segment))


def parse_event(block: JournalBlock, segment: str) -> Event:
    """Parse an EVENT. Raises DamagedRecording."""
    return cast(Event, statement(block, segment))


def parse_foot(block: JournalBlock, segment: str) -> Foot:
    """Parse a FOOT. Raises DamagedRecording."""
    return cast(Foot, statement(block, segment))


def statement(block: JournalBlock, segment: str) -> dict[str, Any]:
    """Parse and validate the JSON of a block. Raises DamagedRecording when it is invalid."""
    try:
        content = obj(json.loads(block.payload))
        _CHECKS[block.kind](content)
    except _NewerFormat as newer:
        raise damaged(SegmentPlace(segment, block.offset), newer.reason, newer.hint) from newer
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(SegmentPlace(segment, block.offset), f"a {block.kind.name} block is invalid") from error
    return content


class _NewerFormat(Exception):
    """The block needs a newer version of bwtui."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason, self.hint = reason, hint


def _head(head: dict[str, Any]) -> None:
    version = number(head["version"], 1)
    if version > VERSION:
        reason = f"a newer bwtui wrote it in format {version}; this version reads formats up to {VERSION}"
        raise _NewerFormat(reason, "install the version of bwtui that wrote it")
    bytes.fromhex(text(head["session"]))
    number(head["first_position"])
    number(head["first_batch"])
    identity(head["seen"])
    _pass(head["pass"])
    for name in ("recording", "previous"):
        text(head[name])
    source = obj(head["source"])
    text(source["slot"])
    for name in _SOURCE:
        if source.get(name) is not None:
            text(source[name])


_SOURCE = (
    *("database", "system_identifier", "server_version", "publication", "broker", "cluster", "registry"),
    *("output_format", "topic_prefix"),
)


def _pass(content: Any) -> None:
    """Check a pass; before the first pass, only its number is present."""
    number(obj(content)["pass"], most=_PASSES)
    if len(content) > 1:
        if content["kind"] not in ("snapshot", "stream"):
            raise ValueError("the kind of the pass is unknown")
        number(content["start_lsn"])
        number(content["first_batch"])
        identity(content["seen"])
        bytes.fromhex(text(content["session"]))
    if (last_sent := content.get("behind")) is not None:
        number(obj(last_sent)["lsn"])
        number(last_sent["ordinal"] or 0)
        if (recorded := last_sent.get("recorded")) is not None:
            bytes.fromhex(text(obj(recorded)["session"]))
            number(recorded["pass"], most=_PASSES)
            number(recorded["position"])


def _event(event: dict[str, Any]) -> None:
    kind = text(event["event"])
    if kind == "pass":
        if len(event) < 3:
            raise ValueError("it is incomplete")
        _pass({name: value for name, value in event.items() if name != "event"})
    elif kind == "gap":
        number(event["from_lsn"])
        number(event["to_lsn"])


def _route(route: dict[str, Any]) -> None:
    number(route["route"])
    number(route["relation"], most=_OIDS)
    for one in (route["table"], route["topic"], *array(route["key_columns"])):
        text(one)
    for name in ("key_schema_id", "value_schema_id"):
        if route[name] is not None:
            number(route[name], most=(1 << 31) - 1)


def parse_schema_fields(content: Any) -> dict[str, Any]:
    """Return the fields of a schema that this version knows. Raises ValueError or TypeError."""
    entry = from_json_object(SchemaEntry, obj(content))
    _conform(entry, SchemaEntry)
    _moment(entry.time)
    fields = dataclasses.asdict(entry)
    for value in fields.values():
        if isinstance(value, str):
            text(value)
        elif isinstance(value, int):
            number(value, -LARGEST)
    return fields


def _status(content: dict[str, Any]) -> None:
    _conform(Status.from_json(content), Status)
    for outage in parse_outages(content):
        _conform(outage, ErrorEntry)
        _moment(outage.since or 0.0)
        _moment(outage.until or 0.0)


def parse_outages(status: dict[str, Any]) -> list[ErrorEntry]:
    """Return the outages in a recorded status: errors with their beginning, and their end once over."""
    return [from_json_object(ErrorEntry, {"time": 0.0, **one}) for one in array(status.get("outages", []))]


def _error(content: dict[str, Any]) -> None:
    entry = from_json_object(ErrorEntry, content)
    _conform(entry, ErrorEntry)
    _moment(entry.time)


def _moment(seconds: float) -> None:
    """Check a time in seconds since 1970, which the screens display."""
    if not 0 <= seconds <= LAST_TIME / 1_000_000:
        raise ValueError("it is not a valid time")


def _foot(foot: dict[str, Any]) -> None:
    kind = digest_kind(foot)
    if kind not in foot:
        reason = "this bwtui does not support the digest in its foot; a newer version may have written it"
        raise _NewerFormat(reason, "install the newest bwtui")
    sha256(foot[kind])
    for name in _NUMBERS:
        number(foot[name])
    number(foot.get("noted", 0))
    identity(foot["seen"])
    _pass(foot["pass"])
    text(foot["ended"])
    for table, counters in obj(foot["tables"]).items():
        text(table)
        for value in obj(counters).values():
            number(value)
    for table, rows in obj(foot.get("backfill_rows", {})).items():
        number(rows, least=1, most=number(obj(foot["tables"][table])["snapshot_rows"]))


_NUMBERS = (
    *("first_position", "changes", "transactions", "first_batch", "next_batch", "blocks", "reached"),
    *("first_lsn", "last_lsn", "first_received", "last_received"),
)

_CHECKS: dict[BlockKind, Callable[[dict[str, Any]], object]] = {
    BlockKind.HEAD: _head,
    BlockKind.EVENT: _event,
    BlockKind.ROUTE: _route,
    BlockKind.SCHEMA: parse_schema_fields,
    BlockKind.STATUS: _status,
    BlockKind.ERROR: _error,
    BlockKind.FOOT: _foot,
}


# -- dataclasses ---------------------------------------------------------------------------------------------


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _conform(value: Any, hint: Any) -> None:
    """Raise ValueError unless a value that was read from a file has the annotated type.

    Text need not be UTF-8: a relay's status contains file names, which may not be.
    """
    if not _conforms(value, hint):
        raise ValueError("it has a wrong type")


def _conforms(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_conforms(value, one) for one in inner)
    if origin is Literal:
        # A later version may have additional states and causes; they are shown unchanged.
        return isinstance(value, str)
    if origin is tuple:
        return isinstance(value, tuple | list) and all(_conforms(one, inner[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _conforms(name, inner[0]) and _conforms(one, inner[1]) for name, one in value.items()
        )
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        if not isinstance(value, hint):
            return False
        return all(_conforms(getattr(value, name), one) for name, one in _hints(hint).items())
    return _is_plain(value, hint)


def _is_plain(value: Any, hint: Any) -> bool:
    if hint is str:
        return isinstance(value, str)
    if hint is float:
        return type(value) in (int, float) and abs(value) <= _ANY_SIZE
    if hint is int:
        return type(value) is int and abs(value) <= _ANY_SIZE
    return type(value) is (NoneType if hint is None else hint)

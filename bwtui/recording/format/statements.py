"""What blocks of JSON say, checked once, so that no reader need check it again.

::

    head = head_said(block, "00000001.partial")    # a dict whose members have the types that they should

Whatever a file says is somebody's word. A checksum tells that it is as it was written, not who wrote it.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, TypedDict, Union, cast, get_args, get_origin, get_type_hints

from bwtui.model.from_json import made_of
from bwtui.model.status import ErrorEntry, SchemaEntry, Status
from bwtui.recording.format.blocks import LAST_TIME, VERSION, Block, Kind, Place, damaged
from bwtui.recording.format.validation import LARGEST, array, identity, number, obj, sha256, text

_PASSES = (1 << 31) - 1
_OIDS = (1 << 32) - 1
#: A disk's room in bytes may pass 64 bits, since it is counted in blocks; a float holds it with ease.
_ANY_SIZE = 1 << 80


#: Up to where a recording is in Kafka: all that a pass, of one run, has before a position.
RecordedBehind = TypedDict("RecordedBehind", {"session": str, "pass": int, "position": int})


class Behind(TypedDict):
    """What Kafka had when a pass with --exactly-once began: all up to a change.

    That is change ``ordinal`` of the transaction that commits at ``lsn``, or the last one of it (null).
    Changes of transactions that earlier such passes of the same position have recorded beyond it
    were aborted. Older versions say nothing of what is ``recorded``.
    """

    lsn: int
    ordinal: int | None
    recorded: NotRequired[RecordedBehind]


#: A pass over the source; before the first one there is its number alone. LSNs are numbers in all of these.
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
        "behind": NotRequired[Behind],
    },
)


class Event(Pass):
    """An EVENT: that a pass begins ("pass"), that LSNs are missing ("gap"), or what later versions tell."""

    event: str
    from_lsn: NotRequired[int]
    to_lsn: NotRequired[int]


#: A segment's first block; nothing is in it before it was read. ``previous`` is the digest in the foot
#: before it, or empty.
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
#: Where a segment ends, as the relay says it. ``noted``: up to where one that gave up has noted what lacks.
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
    """A finished segment's last block: its end, and what follows from its blocks."""

    #: Of the headers of all blocks before it; or, in a segment of version 1, of all bytes before it.
    headers_sha256: NotRequired[str]
    sha256: NotRequired[str]
    blocks: int
    changes: int
    transactions: int
    first_lsn: int
    last_lsn: int
    first_received: int
    last_received: int
    #: Up to which LSN all was durable at the sink.
    reached: int
    tables: dict[str, dict[str, int]]
    #: Of a table's snapshot_rows, those that were put into the stream; older recordings have none.
    backfill_rows: NotRequired[dict[str, int]]


def digest_kind(foot: Mapping[str, Any]) -> Literal["sha256", "headers_sha256"]:
    """Return the name under which a foot's digest stands; version 1 of the format had another."""
    return "sha256" if "sha256" in foot else "headers_sha256"


def is_sent(head: Head) -> bool:
    """Whether the messages of a segment were for Kafka, and not only recorded."""
    return bool(head["source"].get("cluster") or head["source"].get("broker"))


def head_said(block: Block, segment: str) -> Head:
    """Return what a HEAD says. Raises DamagedRecording."""
    return cast(Head, statement(block, segment))


def event_said(block: Block, segment: str) -> Event:
    """Return what an EVENT says. Raises DamagedRecording."""
    return cast(Event, statement(block, segment))


def foot_said(block: Block, segment: str) -> Foot:
    """Return what a FOOT says. Raises DamagedRecording."""
    return cast(Foot, statement(block, segment))


def statement(block: Block, segment: str) -> dict[str, Any]:
    """Return what a block with its payload says. Raises DamagedRecording when that makes no sense."""
    try:
        content = obj(json.loads(block.payload))
        _CHECKS[block.kind](content)
    except _Newer as newer:
        raise damaged(Place(segment, block.offset), newer.reason, newer.hint) from newer
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(
            Place(segment, block.offset), f"a {block.kind.name} block says nothing sensible"
        ) from error
    return content


class _Newer(Exception):
    """It says what no version up to this one does."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.reason, self.hint = reason, hint


def _head(head: dict[str, Any]) -> None:
    version = number(head["version"], 1)
    if version > VERSION:
        reason = f"a newer bwtui has written it (format {version}, and this one reads up to {VERSION})"
        raise _Newer(reason, "install that version of bwtui")
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
    """Check a pass; before the first one, only its number is there."""
    number(obj(content)["pass"], most=_PASSES)
    if len(content) > 1:
        if content["kind"] not in ("snapshot", "stream"):
            raise ValueError("it is no kind of a pass")
        number(content["start_lsn"])
        number(content["first_batch"])
        identity(content["seen"])
        bytes.fromhex(text(content["session"]))
    if (behind := content.get("behind")) is not None:
        number(obj(behind)["lsn"])
        number(behind["ordinal"] or 0)
        if (recorded := behind.get("recorded")) is not None:
            bytes.fromhex(text(obj(recorded)["session"]))
            number(recorded["pass"], most=_PASSES)
            number(recorded["position"])


def _event(event: dict[str, Any]) -> None:
    kind = text(event["event"])
    if kind == "pass":
        if len(event) < 3:
            raise ValueError("it says too little")
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


def schema_said(content: Any) -> dict[str, Any]:
    """Return what is said of a schema, as far as this version knows it. Raises ValueError or TypeError."""
    entry = made_of(SchemaEntry, obj(content))
    _conform(entry, SchemaEntry)
    _moment(entry.time)
    said = dataclasses.asdict(entry)
    for value in said.values():
        if isinstance(value, str):
            text(value)
        elif isinstance(value, int):
            number(value, -LARGEST)
    return said


def _status(content: dict[str, Any]) -> None:
    _conform(Status.from_json(content), Status)
    for outage in outages_said(content):
        _conform(outage, ErrorEntry)
        _moment(outage.since or 0.0)
        _moment(outage.until or 0.0)


def outages_said(status: dict[str, Any]) -> list[ErrorEntry]:
    """Return which errors a recorded status knows the beginning of, and the end if they are over."""
    return [made_of(ErrorEntry, {"time": 0.0, **one}) for one in array(status.get("outages", []))]


def _error(content: dict[str, Any]) -> None:
    entry = made_of(ErrorEntry, content)
    _conform(entry, ErrorEntry)
    _moment(entry.time)


def _moment(seconds: float) -> None:
    """Check a time since 1970, of which the screens show the hour."""
    if not 0 <= seconds <= LAST_TIME / 1_000_000:
        raise ValueError("it is no time")


def _foot(foot: dict[str, Any]) -> None:
    kind = digest_kind(foot)
    if kind not in foot:
        reason = "its foot has no digest that this bwtui knows; a newer one may have written it"
        raise _Newer(reason, "install the newest bwtui")
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

_CHECKS: dict[Kind, Callable[[dict[str, Any]], object]] = {
    Kind.HEAD: _head,
    Kind.EVENT: _event,
    Kind.ROUTE: _route,
    Kind.SCHEMA: schema_said,
    Kind.STATUS: _status,
    Kind.ERROR: _error,
    Kind.FOOT: _foot,
}


# -- dataclasses ---------------------------------------------------------------------------------------------


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _conform(value: Any, hint: Any) -> None:
    """Raise ValueError unless a value, made of what a file says, has the type of an annotation.

    A text need not be UTF-8: a relay tells of its files, whose names are not always.
    """
    if not _conforms(value, hint):
        raise ValueError("it has another type")


def _conforms(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, UnionType):
        return any(_conforms(value, one) for one in inner)
    if origin is Literal:
        # A later version may have other words for states and causes; they are shown as they are.
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

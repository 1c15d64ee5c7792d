"""The messages of PostgreSQL's logical replication stream, as the plugin ``pgoutput`` writes them.

One class per message, with the fields of the PostgreSQL documentation's page "Logical Replication Message
Formats", in its order. LSNs are ints, times are microseconds since 1970-01-01 00:00 UTC.

``stream_xid`` is the transaction's id that a message carries between STREAM START and STREAM STOP
(protocol version 2 and later), and None everywhere else.
"""

from dataclasses import dataclass


class UnchangedToast:
    """A large value that an UPDATE did not change and PostgreSQL therefore did not send. It is never NULL."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED = UnchangedToast()


class Binary(bytes):
    """A field in binary form: bytes in the database's encoding that have no exact equivalent in UTF-8.

    bwtui never requests the binary form of a type from PostgreSQL; `bwtui.pgoutput.transcode` creates these.
    The bytes may happen to be valid UTF-8 for a different text: so decoding them, or checking them for ASCII,
    raises UnicodeDecodeError as for bytes that are not UTF-8. With ``surrogateescape`` each byte above ASCII
    becomes a lone surrogate.
    """

    __slots__ = ()

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        if errors == "strict":
            raise self._no_text()
        return super().decode("ascii", errors)

    def isascii(self) -> bool:
        raise self._no_text()

    def _no_text(self) -> UnicodeDecodeError:
        return UnicodeDecodeError("utf-8", self, 0, len(self), "in binary form")

    def __repr__(self) -> str:
        return f"Binary({super().__repr__()})"


# One column of a row: its text form (or `Binary`, if it has none), NULL, or not sent.
Field = bytes | None | UnchangedToast


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction begins; its COMMIT record starts at ``final_lsn``."""

    final_lsn: int
    commit_time: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction ends; ``end_lsn``, after its COMMIT record, is the LSN to confirm for it."""

    flags: int
    commit_lsn: int
    end_lsn: int
    commit_time: int


@dataclass(frozen=True, slots=True)
class Column:
    """A published column; ``is_key`` means that it is part of the replica identity."""

    name: str
    type_oid: int
    typmod: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """The table of the rows that follow; ``replica_identity`` is d, n, f or i (pg_class)."""

    oid: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]
    stream_xid: int | None = None

    @property
    def qualified_name(self) -> str:
        """``schema.table`` for display, neither quoted nor escaped."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class Type:
    """The name of a type that is not built in, sent before the RELATION that uses it."""

    oid: int
    namespace: str
    name: str
    stream_xid: int | None = None


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    relation_oid: int
    new: list[Field]
    stream_xid: int | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row.

    ``old_kind`` is K if ``old`` has the old values of the replica identity (with every other column None), O
    if it has the whole old row (REPLICA IDENTITY FULL), and None if the replica identity did not change.
    """

    relation_oid: int
    old: list[Field] | None
    old_kind: str | None
    new: list[Field]
    stream_xid: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """A deleted row; ``old`` and ``old_kind`` as in Update."""

    relation_oid: int
    old: list[Field]
    old_kind: str
    stream_xid: int | None = None


@dataclass(frozen=True, slots=True)
class Truncate:
    """The tables emptied by one TRUNCATE."""

    relation_oids: tuple[int, ...]
    cascade: bool
    restart_identity: bool
    stream_xid: int | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """The transaction originates from a different server, where it was committed at ``commit_lsn``."""

    commit_lsn: int
    name: str


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    """A message that ``pg_logical_emit_message`` wrote."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes
    stream_xid: int | None = None


@dataclass(frozen=True, slots=True)
class StreamStart:
    """Changes of a transaction still in progress follow, up to STREAM STOP (protocol version 2)."""

    xid: int
    first_segment: bool


@dataclass(frozen=True, slots=True)
class StreamStop:
    """The end of a block of changes of a transaction in progress."""


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """A streamed transaction was committed."""

    xid: int
    flags: int
    commit_lsn: int
    end_lsn: int
    commit_time: int


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """A streamed transaction, or its subtransaction, was rolled back; LSN and time from version 4 on."""

    xid: int
    subxid: int
    abort_lsn: int | None = None
    abort_time: int | None = None


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """A two-phase transaction begins (protocol version 3)."""

    prepare_lsn: int
    end_lsn: int
    prepare_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class Prepare:
    """A two-phase transaction was prepared; ``streamed`` if its changes arrived in stream blocks."""

    flags: int
    prepare_lsn: int
    end_lsn: int
    prepare_time: int
    xid: int
    gid: str
    streamed: bool = False


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """A prepared transaction was committed."""

    flags: int
    commit_lsn: int
    end_lsn: int
    commit_time: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """A prepared transaction was rolled back."""

    flags: int
    prepare_end_lsn: int
    rollback_end_lsn: int
    prepare_time: int
    rollback_time: int
    xid: int
    gid: str


Message = (
    Begin
    | Commit
    | Relation
    | Type
    | Insert
    | Update
    | Delete
    | Truncate
    | Origin
    | LogicalMessage
    | StreamStart
    | StreamStop
    | StreamCommit
    | StreamAbort
    | BeginPrepare
    | Prepare
    | CommitPrepared
    | RollbackPrepared
)

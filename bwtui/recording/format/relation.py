"""RELATION blocks: a relation in the form of pgoutput's RELATION message, so that one decoder reads both."""

import struct

from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.messages import Relation

_COLUMN = struct.Struct(">Ii")


def pack_relation(relation: Relation) -> bytes:
    """Return the RELATION message of ``relation`` (PostgreSQL, "Logical Replication Message Formats")."""
    parts = [
        b"R",
        relation.oid.to_bytes(4, "big"),
        relation.namespace.encode() + b"\0",
        relation.name.encode() + b"\0",
        relation.replica_identity.encode(),
        len(relation.columns).to_bytes(2, "big"),
    ]
    for column in relation.columns:
        parts.append(bytes([column.is_key]) + column.name.encode() + b"\0")
        parts.append(_COLUMN.pack(column.type_oid, column.typmod))
    return b"".join(parts)


def unpack_relation(payload: bytes) -> Relation:
    """Return the relation that `pack_relation` packed. Raises DecodeError or ValueError."""
    relation = decode(payload)
    if not isinstance(relation, Relation):
        raise ValueError("the block contains no RELATION message")
    return relation

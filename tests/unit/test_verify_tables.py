"""Queries for rows with doubtful keys."""

from bwtui.types.registry import TypeInfo
from bwtui.verify.tables import _key_type

_DOMAIN_OF_OID = TypeInfo(90_000, "ticket", "d", base_oid=26)


def test_keys_are_asked_for_as_what_their_index_has() -> None:
    types = {_DOMAIN_OF_OID.oid: _DOMAIN_OF_OID}
    assert [_key_type(oid, types) for oid in (23, 25, 26, 90_000, 701)] == ["int8", "text", "", "", ""]

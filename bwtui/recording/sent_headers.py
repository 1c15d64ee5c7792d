"""The record headers of a sealed message, out of its other columns."""

from bwtui.relay.headers import SESSION, Headers, make_headers

#: The columns that they follow from.
COLUMNS = ("header_form", "lsn", "ordinal", "op", "xid", "session")


def sent_headers(
    form: str | None, lsn: int, ordinal: int, op: str, xid: int, session: str | None, *, tombstone: bool
) -> Headers | None:
    """Return the headers that the relay gave a message, or None where it gave none."""
    if form in (None, "none") or session is None:
        return None
    name = bytes.fromhex(session)
    if form == "session":
        return [(SESSION, name)]
    return make_headers(lsn, ordinal, "delete" if tombstone else op, xid, name)

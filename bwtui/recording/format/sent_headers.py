"""Reconstruct the record headers of a sealed message from its other columns."""

from bwtui.model.headers import SESSION, Headers, make_headers

#: The columns that determine the headers.
COLUMNS = ("header_form", "lsn", "ordinal", "op", "xid", "session")

#: The same as an SQL expression for DuckDB: name=value in hexadecimal, joined by semicolons; null if none.
SENT_HEADERS = f"""
case header_form
  when 'session' then '{SESSION}=' || upper(session)
  when 'full' then concat('bwtui.lsn=', printf('%016X', lsn), ';bwtui.ordinal=', printf('%08X', ordinal),
                          ';bwtui.op=', hex(case when value is null then 'delete' else op end),
                          ';bwtui.xid=', printf('%08X', xid), ';{SESSION}=', upper(session)) end
"""


def sent_headers(
    form: str | None, lsn: int, ordinal: int, op: str, xid: int, session: str | None, *, tombstone: bool
) -> Headers | None:
    """Return the headers that the relay gave to a message, or None if it gave none."""
    if form in (None, "none") or session is None:
        return None
    name = bytes.fromhex(session)
    if form == "session":
        return [(SESSION, name)]
    return make_headers(lsn, ordinal, "delete" if tombstone else op, xid, name)

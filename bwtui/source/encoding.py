"""Map each character of a database's encoding to UTF-8, as PostgreSQL itself converts it.

Python's codecs differ from PostgreSQL's: EUC_TW and part of EUC_KR are missing, and some characters of EUC_JP
and EUC_JIS_2004 differ. So bwtui queries the server once for the conversion of each character, and for
whether it converts back to the same bytes: 22 characters of EUC_JP exist twice, and two keys would become
one.
"""

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bwtui.pgoutput.transcode import Decode

#: Taken unchanged: a database that was in SQL_ASCII before may hold bytes that are not UTF-8.
_TAKEN_AS_THEY_ARE = frozenset(("UTF8", "SQL_ASCII"))

#: A setting without a meaning, in which the block below returns its result.
_RESULT = "bwtui.characters"

# All candidates for a character: one byte above ASCII, or two, three after 0x8f, four after 0x8e
# (pg_wchar_table in PostgreSQL's sources). In plpgsql, since in SQL the first invalid candidate would end the
# query.
_ASK_SQL = f"""
do $do$
declare
  encoding name := '{{encoding}}';
  most int := pg_catalog.pg_encoding_max_length(pg_catalog.pg_char_to_encoding(encoding));
  candidate bytea; text8 bytea; found text[] := '{{{{}}}}';
begin
  for candidate in
    with byte as (select pg_catalog.decode(pg_catalog.to_hex(i), 'hex') b from generate_series(128, 255) i)
    select b from byte where most = 1
    union all select i.b || j.b from byte i, byte j where most > 1
    union all select '\\x8f'::bytea || i.b || j.b from byte i, byte j where most = 3
    union all select '\\x8e'::bytea || i.b || j.b || k.b from byte i, byte j, byte k
     where most = 4 and i.b between '\\xa1' and '\\xb0' and j.b > '\\xa0' and k.b > '\\xa0'
  loop
    begin
      text8 := pg_catalog.convert(candidate, encoding, 'UTF8');
      if pg_catalog.convert(text8, 'UTF8', encoding) = candidate then
        found := found || (pg_catalog.encode(candidate, 'hex') || ' ' || pg_catalog.encode(text8, 'hex'));
      end if;
    exception when untranslatable_character or character_not_in_repertoire then
      null;
    end;
  end loop;
  perform pg_catalog.set_config('{_RESULT}', pg_catalog.array_to_string(found, ','), false);
end
$do$"""
_TAKE_SQL = f"select pg_catalog.current_setting('{_RESULT}'), pg_catalog.set_config('{_RESULT}', '', false)"

Ask = Callable[[str], Sequence[Sequence[Any]]]

#: Maximum number of characters converted at a time.
_AT_ONCE = 10_000

_decoders: dict[tuple[str, str], Decode] = {}


def decoder(encoding: str, server_version: str, run: Ask) -> Decode | None:
    """Return a converter from the database's encoding to UTF-8, or None if its text is taken unchanged.

    ``run`` runs a statement and returns its rows. The result is cached by encoding and server version.
    """
    if encoding in _TAKEN_AS_THEY_ARE:
        return None
    decode = _decoders.get((encoding, server_version))
    if decode is None:
        run(_ASK_SQL.format(encoding=encoding))
        pairs = [pair.split() for pair in run(_TAKE_SQL)[0][0].split(",") if pair]
        table = {bytes.fromhex(raw): bytes.fromhex(text).decode() for raw, text in pairs}
        decode = _decoders[encoding, server_version] = _of_table(table)
    return decode


def _of_table(table: Mapping[bytes, str]) -> Decode:
    if all(len(raw) == 1 for raw in table):
        return _single(table)
    # The second part of a character of two code points: on its own it would be decoded as that part.
    tails = {text[1:] for text in table.values() if len(text) > 1}
    return _multiple({raw: text.encode() for raw, text in table.items() if text not in tails})


def _single(table: Mapping[bytes, str]) -> Decode:
    # charmap_decode treats U+FFFE as undefined.
    characters = "".join(table.get(bytes([i]), chr(i) if i < 128 else "\ufffe") for i in range(256))

    def decode(raw: bytes) -> bytes | None:
        try:
            return raw if raw.isascii() else codecs.charmap_decode(raw, "strict", characters)[0].encode()
        except UnicodeDecodeError:
            return None

    return decode


def _multiple(table: Mapping[bytes, bytes]) -> Decode:
    longest = max(map(len, table))
    long = rb"\x8e[\x80-\xff]{3}" if longest == 4 else rb"\x8f[\x80-\xff]{2}"
    one = (long + b"|" if longest > 2 else b"") + rb"[\x80-\xff]{1,2}"
    character = re.compile(one)
    # Replacing takes some 40 bytes a character, so large values are converted in pieces.
    some = re.compile(rb"(?:[\x00-\x7f]|%b){1,%d}" % (one, _AT_ONCE))

    def convert(text: bytes) -> bytes:
        return character.sub(lambda match: table[match[0]], text)

    def decode(raw: bytes) -> bytes | None:
        if raw.isascii():
            return raw
        try:
            return convert(raw) if len(raw) <= _AT_ONCE else b"".join(map(convert, some.findall(raw)))
        except KeyError:
            return None

    return decode

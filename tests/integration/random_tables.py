"""Random tables of every type with random rows, drawn from a seed: declarations and texts to cast to them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from struct import pack, unpack
from uuid import UUID

from tests.integration.type_samples import SAMPLES, SINCE

LETTERS = "abcxyzABC019_ .-\"'\\{},;()[]<>=:%$#@!?*/\t\nßéλ中😀"
TEXTS = ("text", "character varying(20)", "bpchar", "name", "types.citext", "json", "jsonb", "types.hstore")


@dataclass(frozen=True)
class RandomTable:
    """A table: its quoted name, columns (quoted name, type), and rows of texts or None."""

    name: str
    columns: list[tuple[str, str]]
    rows: list[list[str | None]]


def text(rng: Random, longest: int = 40) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randrange(longest)))


def _integer(bits: int) -> Callable[[Random], str]:
    # As many small numbers as large ones, and the neighbours of powers of two.
    def draw(rng: Random) -> str:
        number = (1 << rng.randrange(bits - 1)) + rng.choice((-1, 0, 1, rng.randrange(100)))
        number = min(number, (1 << bits - 1) - 1)
        return str(number if rng.random() < 0.5 else -number)

    return draw


def _unsigned(bits: int) -> Callable[[Random], str]:
    return lambda rng: str(rng.getrandbits(rng.randrange(bits) + 1))


def _double(rng: Random) -> str:
    (number,) = unpack("<d", pack("<Q", rng.getrandbits(64)))
    return repr(number)


def _real(rng: Random) -> str:
    (number,) = unpack("<f", pack("<I", rng.getrandbits(32)))
    return f"{number:.9g}"


def _numeric(rng: Random) -> str:
    digits = "".join(rng.choice("0123456789") for _ in range(rng.choice((1, 5, 40, 300))))
    return rng.choice(("", "-")) + digits + rng.choice(("", "." + digits[::-1]))


def _day(rng: Random) -> str:
    return (date(1, 1, 1) + timedelta(rng.randrange(3_652_058))).isoformat()


def _clock(rng: Random) -> str:
    fraction = rng.choice(("", f".{rng.randrange(1_000_000):06d}", f".{rng.randrange(1000):03d}"))
    return f"{rng.randrange(24):02d}:{rng.randrange(60):02d}:{rng.randrange(60):02d}{fraction}"


def _interval(rng: Random) -> str:
    sign = rng.choice(("", "-"))
    return (
        f"{rng.randrange(-99, 99)} months {rng.randrange(-99, 99)} days "
        f"{sign}{rng.randrange(999)}:00:{rng.randrange(60):02d}.{rng.randrange(1_000_000):06d}"
    )


def _hstore(rng: Random) -> str:
    pairs = {text(rng, 8): rng.choice((None, text(rng, 8))) for _ in range(rng.randrange(4))}
    return ",".join(f"{_quoted(k)}=>{'NULL' if v is None else _quoted(v)}" for k, v in pairs.items())


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


DRAW: dict[str, Callable[[Random], str]] = {
    "smallint": _integer(16),
    "integer": _integer(32),
    "bigint": _integer(64),
    "oid": _unsigned(32),
    "xid8": _unsigned(64),
    "real": _real,
    "double precision": _double,
    "numeric": _numeric,
    "money": lambda rng: f"{rng.randrange(-(10**15), 10**15)}.{rng.randrange(100):02d}",
    "text": text,
    "character varying(20)": lambda rng: text(rng, 20),
    "bpchar": text,
    "name": lambda rng: text(rng, 15),
    "types.citext": text,
    "bytea": lambda rng: "\\x" + rng.randbytes(rng.randrange(40)).hex(),
    "date": _day,
    "time without time zone": _clock,
    "time with time zone": lambda rng: f"{_clock(rng)}{rng.randrange(-15, 16):+03d}:{rng.randrange(60):02d}",
    "timestamp without time zone": lambda rng: f"{_day(rng)} {_clock(rng)}",
    "timestamp with time zone": lambda rng: f"{_day(rng)} {_clock(rng)}",
    "interval": _interval,
    "uuid": lambda rng: str(UUID(int=rng.getrandbits(128))),
    "json": lambda rng: json.dumps({text(rng): [text(rng), rng.randrange(9), None]}, ensure_ascii=False),
    "jsonb": lambda rng: json.dumps({text(rng): [text(rng), rng.randrange(9), None]}),
    "bit varying": lambda rng: f"{rng.getrandbits(70):b}",
    "inet": lambda rng: (
        f"{rng.randrange(256)}.{rng.randrange(256)}.0.{rng.randrange(256)}/{rng.randrange(33)}"
    ),
    "point": lambda rng: f"({_double(rng)},{_double(rng)})",
    "types.hstore": _hstore,
}


def _modified(rng: Random, version: int) -> tuple[str, Callable[[Random], str]]:
    """Return a numeric with a random precision and scale.

    From version 15 the scale may be negative or exceed it.
    """
    precision = rng.randrange(1, 60)
    scale = rng.choice((0, 2, rng.randrange(-20, 80)))
    if version < 150000:
        scale = min(abs(scale), precision)

    def draw(inner: Random) -> str:
        if inner.random() < 0.1:
            return "NaN"
        return f"{inner.randrange(-(10**precision) + 1, 10**precision)}e{-scale}"

    return f"numeric({precision},{scale})", draw


def _array(rng: Random, element: Callable[[Random], str]) -> str:
    """Return an array literal of one dimension, sometimes of two or with a custom lower bound."""
    items = ["NULL" if rng.random() < 0.2 else _quoted(element(rng)) for _ in range(rng.randrange(5))]
    body = "{" + ",".join(items) + "}"
    if items and rng.random() < 0.1:
        return "{" + body + "}"
    if items and rng.random() < 0.1:
        low = rng.randrange(-3, 4)
        return f"[{low}:{low + len(items) - 1}]={body}"
    return body


def _type(rng: Random, version: int) -> tuple[str, Callable[[Random], str]]:
    chance = rng.random()
    if chance < 0.15:
        return _modified(rng, version)
    if chance < 0.35:
        declaration, draw = _modified(rng, version) if rng.random() < 0.2 else rng.choice(list(DRAW.items()))
        return f"{declaration}[]", lambda inner: _array(inner, draw)
    # aclitem has no binary form for the comparison.
    declaration = rng.choice([n for n in SAMPLES if n != "aclitem" and version >= SINCE.get(n, 0)])
    samples = SAMPLES[declaration]
    random_value = DRAW.get(declaration)

    def value(inner: Random) -> str:
        return random_value(inner) if random_value and inner.random() < 0.8 else inner.choice(samples)

    return declaration, value


def identifier(rng: Random) -> str:
    """Return a quoted identifier of 1 to 63 bytes."""
    name = (text(rng, rng.choice((3, 12, 40))) or "x").encode()[:60].decode(errors="ignore")
    return '"' + name.replace('"', '""') + '"'


def draw_table(seed: int, rows: int, version: int) -> RandomTable:
    """Return the table of a seed for a server of this version (180006); its first column is its key."""
    rng = Random(seed)
    names = dict.fromkeys(identifier(rng) for _ in range(rng.choice((1, 3, 12, 40))))
    types = {name: _type(rng, version) for name in names if name != '"id"'}
    table_rows = [
        [str(number), *(None if rng.random() < 0.15 else draw(rng) for _, draw in types.values())]
        for number in range(rows)
    ]
    columns = [('"id"', "integer"), *((name, declaration) for name, (declaration, _) in types.items())]
    return RandomTable(identifier(rng), columns, table_rows)

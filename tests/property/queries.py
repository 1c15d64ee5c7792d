"""Random queries and random changes, chosen so that they meet at edge cases."""

from typing import Any

from hypothesis import strategies as st

from bwtui.pgoutput.messages import UNCHANGED
from bwtui.recording.change import Change, Operation
from tests.recording_double import TIME, change, message, relation

NAMES = ("id", "a", "b/~1 'ü\"", "$.*")
TABLES = (
    relation("orders", NAMES),
    relation("orders", NAMES[::-1], ("id", "a"), "shop", "f"),
    relation("a.b", ("id", "a"), (), "x.y", "f"),
    relation("y", ("a",), (), "x", "n"),
)
_OPERATIONS: tuple[Operation, ...] = ("insert", "update", "delete", "snapshot", "truncate", "cleanup")
_EDGES = (
    "",
    "0",
    "-0",
    "0.0",
    "1",
    "01",
    "1.0",
    "1e0",
    "+1",
    "-1",
    "-1.50",
    "-1.5",
    "10",
    "9",
    "9.99",
    "-10",
    "1e3",
    "1000",
    ".5",
    "5e-1",
    "5.",
    "1e-300",
    "1e999",
    "-1e999",
    "NaN",
    "Infinity",
    "t",
    "f",
    "true",
    "paid",
    "Paid",
    "pa\nid",
    "paid\n",
    "é",
    "ÿ",
    "\U0001f600",
    "\uffff",
    "a.b",
    "x.y",
    "x.y.a.b",
    "orders",
    "shop.orders",
    "1,1",
    "12345678901234567890123.1",
    "12345678901234567890123.2",
    "\\x41",
    "'",
    "''",
    "k",
    "K",
    "\u212a",
    "\u0131",
    "null",
    " 1",
    "1 ",
    "１",
)
numbers = st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str) | st.integers(-20, 20).map(
    str
)
floats = st.floats(allow_nan=False, allow_infinity=False).map(repr)
_any_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
texts = st.sampled_from(_EDGES) | numbers | floats | _any_text
_values = st.none() | texts.map(str.encode) | st.just(b"\xff\xfe")


@st.composite
def changes(draw: st.DrawFn) -> Change:
    table = draw(st.sampled_from(TABLES))
    operation = draw(st.sampled_from(_OPERATIONS))
    after = before = None
    if operation in ("insert", "update", "snapshot"):
        after = [draw(_values | st.just(UNCHANGED)) for _ in table.columns]
    if operation in ("update", "delete", "cleanup"):
        before = draw(st.none() | st.tuples(*(_values for _ in table.columns)))
    if before and table.replica_identity != "f":
        before = tuple(
            value if column.is_key else None for value, column in zip(before, table.columns, strict=True)
        )
    tables: tuple[str, ...] = (table.qualified_name,)
    if operation == "truncate" and draw(st.booleans()):
        tables = (*tables, "public.other")
    return change(
        table,
        operation,
        after,
        before,
        draw(st.sampled_from((("id",), ("id", "a"), ()))),
        tables=tables,
        messages=draw(_messages()),
        without=draw(st.sampled_from((None, "dropped", "unkeyed"))),
        is_repeat=draw(st.booleans()),
        lsn=draw(st.sampled_from((0, 0x1A2B, 0x1_0000_0000, (1 << 63) - 1))),
        xid=draw(st.integers(0, 3)),
        ordinal=draw(st.integers(1, 3)),
        commit_time=TIME + draw(st.integers(-2, 2)),
    )


@st.composite
def _messages(draw: st.DrawFn) -> Any:
    count = draw(st.integers(0, 2))
    return tuple(
        message(
            part,
            topic=draw(st.sampled_from(("orders", "Shop"))),
            key=draw(st.sampled_from((None, b"k", b"public.other"))),
            value=draw(st.sampled_from((None, b"v"))),
            state=draw(st.sampled_from(("acknowledged", "refused", "unknown", "unsent"))),
            partition=draw(st.none() | st.integers(0, 2)),
            offset=draw(st.none() | st.integers(0, 2)),
        )
        for part in range(count)
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


orders = st.sampled_from(("=", "!=", "<", "<=", ">", ">="))
_literals = (
    texts.map(_quoted) | numbers | floats | st.sampled_from(("paid", "true", "False", "1.0", "-1", "5."))
)
_sides = st.sampled_from(("before", "after", "key"))
_refs = st.builds(
    lambda side, name: f'{side}."{name.replace(chr(34), chr(34) * 2)}"',
    _sides,
    st.sampled_from((*NAMES, "lacking")),
)
_columns = _refs | st.just("key")
_regexes = st.sampled_from(
    (
        "",
        "a",
        "^pa",
        "d$",
        ".",
        "^.$",
        r"\d+",
        r"^\W",
        r"\bpaid\b",
        "(?i)K",
        "(?i)^[a-k]+$",
        "[^a-z]",
        r"\s",
        r"^(?:1|0)?[.]\d{1,3}$",
        "é",
        "[é-ÿ]",
        r"^\S*$",
        "ord.*s$",
        r"p\.y|x\.y",
        "a{2,}?",
        r"[\d.]+$",
        "^$",
        "(?i)é",
        "a(?i:B)|(?P<n>c)",
        "[[:alpha:]]",
        r"\pL",
        r"\Qa.b\E",
        r"(?s)a.id",
        r"(?m)a$",
        r"\D\B",
    ),
)


def _listed(values: list[str]) -> str:
    return f"({', '.join(values)})"


_conditions = st.one_of(
    st.builds("{} {} {}".format, _columns, orders, _literals | _refs),
    st.builds(
        "{} {} {}".format,
        _columns,
        st.sampled_from(("in", "not in")),
        st.lists(_literals, min_size=1, max_size=3).map(_listed),
    ),
    st.builds(
        "{} {} {}".format,
        _columns | st.sampled_from(("table", "topic", "schema", "op", "state", "without")),
        st.sampled_from(("~", "!~")),
        _regexes.map(_quoted),
    ),
    st.builds(
        "{} is {}null".format,
        _columns | st.sampled_from(("before", "after", "topic", "state", "without", "offset", "lsn")),
        st.sampled_from(("", "not ")),
    ),
    st.builds(
        "after.{} is {}unchanged".format,
        st.sampled_from(("id", "a", "lacking", '"$.*"')),
        st.sampled_from(("", "not ")),
    ),
    st.builds(
        "{} {} {}".format,
        st.sampled_from(("table", "schema", "topic")),
        st.sampled_from(("=", "!=")),
        texts.map(_quoted),
    ),
    st.builds("changed {} {}".format, st.sampled_from(("=", "!=")), st.sampled_from(("id", "a", "lacking"))),
    st.builds(
        "{} {} {}".format,
        st.sampled_from(("xid", "ordinal", "offset", "partition", "position")),
        orders,
        st.sampled_from(("0", "1", "2", "-1", "9223372036854775807", "99999999999999999999999999")),
    ),
    st.builds("lsn {} {}".format, orders, st.sampled_from(("0/0", "0/1A2B", "1/0", "FFFFFFFF/FFFFFFFF"))),
    st.builds(
        "{} {} {}".format,
        st.sampled_from(("time", "commit_time", "received")),
        orders,
        st.sampled_from(("-0.000001s", "-0s", "-1m", "2026-09-21", "0001-01-01", "9999-12-31T23:59:59Z")),
    ),
    st.sampled_from(
        (
            "repeat",
            "repeat = false",
            "op = update",
            "op in (insert, delete)",
            "op != truncate",
            "state = acknowledged",
            "not state = refused",
            "without = dropped",
        )
    ),
)
queries = st.recursive(
    _conditions,
    lambda inner: st.one_of(
        st.builds("({} and {})".format, inner, inner),
        st.builds("({} or {})".format, inner, inner),
        st.builds("not {}".format, inner),
    ),
    max_leaves=6,
)

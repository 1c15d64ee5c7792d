"""Keys that a user types, and keys that are sent again."""

import pytest

from bwtui.model.status import Status, TableStatus
from bwtui.pgoutput.messages import UNCHANGED
from bwtui.recording.explain import KeyHistory, RowKey, explain
from bwtui.recording.query_language import parse
from bwtui.tui.sources.journey import newest_of, parse_typed_key, plain_key, query_of, tables_of
from tests.recorded_shop import MemoryRecording, Tape, relation, shop_recording

TABLES = {
    "public.orders": ("id",),
    "public.order_items": ("order_id", "line"),
    "shop.stock": ("odd name",),
    "a.same": ("id",),
    "b.same": ("id",),
    "public.audit": (),
}


def key(table: str, *values: str) -> RowKey:
    return RowKey(table, TABLES[table], tuple(value.encode() for value in values))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("orders id=42", key("public.orders", "42")),
        ("public.orders id = 42", key("public.orders", "42")),
        ("orders 42", key("public.orders", "42")),
        ("order_items 7, 2", key("public.order_items", "7", "2")),
        ("order_items line=2, order_id=7", key("public.order_items", "7", "2")),
        ("order_items order_id=7 line='x y'", key("public.order_items", "7", "x y")),
        ("order_i order_id=7 line=2", key("public.order_items", "7", "2")),
        ("stock \"odd name\"='it''s, or = not'", key("shop.stock", "it's, or = not")),
        ("id=7", key("public.orders", "7")),
    ],
)
def test_a_key_is_understood(text: str, wanted: RowKey) -> None:
    assert parse_typed_key(text, TABLES, "public.orders") == wanted


@pytest.mark.parametrize(
    "text", ["orders", "ord.*", "!audit", "", "nothing here", "orders|items", "'", "(=", "a b c"]
)
def test_a_filter_is_no_key(text: str) -> None:
    assert parse_typed_key(text, {**TABLES}, "public.orders") is None or "=" in text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nowhere id=1", "'nowhere' matches no table"),
        ("same id=1", "or several"),
        ("orders total=1", "total is not a key column of public.orders: id"),
        ("order_items line=1", "the key of public.order_items also has order_id"),
        ("audit id=1", "id is not a key column of public.audit: it has none"),
        ("orders id=", "usage: "),
        ("orders id", ""),
        ("order_items 7", "the key of public.order_items is order_id, line"),
        ("audit 7", "public.audit has no key"),
    ],
)
def test_what_is_wrong_with_a_key_is_told(text: str, words: str) -> None:
    answer = parse_typed_key(text, TABLES, None)
    assert isinstance(answer, str) == bool(words)
    assert words in str(answer)


def test_a_key_is_not_known_before_the_relay_has_sent_a_row() -> None:
    tables = tables_of(
        Status("streaming", "shop", "slot", tables={
            "public.orders": TableStatus("orders"), "public.audit": TableStatus("audit", value_schema_id=7),
        })
    )  # fmt: skip
    for answer in (
        parse_typed_key("orders id=42", tables, None),
        parse_typed_key("orders 42", tables, None),
        plain_key("42", tables, "public.orders"),
    ):
        assert "the key of public.orders is unknown" in str(answer)
    assert "it has none" in str(parse_typed_key("audit id=1", tables, None))
    assert "has no key" in str(parse_typed_key("audit 1", tables, None))


def test_a_plain_value_is_of_the_selected_table() -> None:
    assert plain_key("42", TABLES, "public.orders") == key("public.orders", "42")
    assert plain_key("42", TABLES, None) == "select a table first to look for this key"
    assert "is order_id, line" in str(plain_key("42", TABLES, "public.order_items"))
    assert plain_key("", TABLES, "public.orders") is None
    assert plain_key("a|b", TABLES, "public.orders") == key("public.orders", "a|b")
    assert plain_key("(a", TABLES, "public.orders") is None


def test_the_query_of_a_key_finds_its_messages_and_no_others() -> None:
    recording = shop_recording()
    query = query_of(RowKey("public.orders", ("id",), (b"9",)))
    assert query == "table = 'public.orders' and key.\"id\" = '9'"
    matches = parse(query).matches
    found = [change.position for change in recording.changes() if matches(change)]
    story = KeyHistory(RowKey("public.orders", ("id",), (b"9",)))
    explain(recording, story)
    assert found == [step.position for step in story.steps]
    newest = newest_of(story.steps)
    assert newest is not None
    only = parse(query_of(story.key, newest.position) or "").matches
    assert [change.position for change in recording.changes() if only(change)] == [newest.position]


def test_the_newest_message_is_no_repeat_and_was_not_refused() -> None:
    story = KeyHistory(RowKey("public.orders", ("id",), (b"1",)))
    explain(shop_recording(), story)
    newest = newest_of(story.steps)
    assert newest is not None
    assert (newest.operation, newest.is_repeat) == ("delete", False)
    dropped = KeyHistory(RowKey("public.orders", ("id",), (b"4",)))
    explain(shop_recording(), dropped)
    found = newest_of(dropped.steps)
    assert found is not None
    assert found.operation == "snapshot"
    assert newest_of(()) is None


@pytest.mark.parametrize(
    "value", [b"it's", b'"', b"\\", b"\xff\xfe", "\u202e\U0001f600".encode(), b"a\nb", b"' or true --"]
)
def test_hostile_keys_are_quoted(value: bytes) -> None:
    table = relation(7, "odd", (("id", 25), ("x", 25)))
    tape = Tape()
    tape.begin()
    for one in (value, b"other"):
        tape.add("insert", table, (one, b"1"))
    query = query_of(RowKey("public.odd", ("id",), (value,)))
    assert query is not None
    matches = parse(query).matches
    assert [change.position for change in MemoryRecording(tape).changes() if matches(change)] == [0]


def test_a_key_that_was_not_sent_can_t_be_sent_again() -> None:
    assert query_of(RowKey("public.orders", ("id",), (UNCHANGED,))) is None

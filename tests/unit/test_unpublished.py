"""If selected tables are not in the publication, the error names both, with the statement."""

from collections.abc import Sequence

import pytest

from bwtui.errors import RefusedError
from bwtui.settings import RelaySettings
from bwtui.source import preflight
from bwtui.source.catalog import CatalogRelation, TableInfo
from bwtui.source.connection import Connection
from bwtui.source.publication import PublishedTable

CONNECTION = Connection.__new__(Connection)


def table(name: str, *, has_key: bool = True) -> TableInfo:
    return TableInfo(1, "public", name, "d", has_key, True, False, None)


def refused(
    monkeypatch: pytest.MonkeyPatch,
    selected: str,
    tables: list[TableInfo],
    ancestors: Sequence[str] = (),
) -> RefusedError:
    """Return the error if publication shop has only table other."""
    monkeypatch.setattr(preflight, "list_tables", lambda *_, **__: tables)
    monkeypatch.setattr(
        preflight,
        "find_named",
        lambda _, names: [CatalogRelation(name, "r", list(ancestors)) for name in names],
    )
    settings = RelaySettings(tables=(selected,), publication="shop")
    published = PublishedTable("public", "other", None, None, True, True, True)
    with pytest.raises(RefusedError) as error:
        preflight.chosen_tables(CONNECTION, settings, [published])
    return error.value


def test_a_table_outside_the_publication_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(monkeypatch, "orders", [table("orders"), table("other")])
    assert error.message == "table public.orders is not in publication shop"
    assert error.hint == 'let the owner run: ALTER PUBLICATION "shop" ADD TABLE only "public"."orders";'


def test_many_tables_are_some_and_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(monkeypatch, "t.*", [table(f"t{number}") for number in range(8)])
    assert error.message.startswith("tables public.t0, public.t1, ")
    assert error.message.endswith("public.t4 and 3 more are not in publication shop")
    assert error.hint.count("only") == 8


def test_a_table_without_a_key_is_not_added_to_published_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """PostgreSQL would reject the application's UPDATE and DELETE on it."""
    error = refused(monkeypatch, "bare", [table("bare", has_key=False)])
    assert error.message == "table public.bare is not in publication shop"
    assert "ALTER" not in error.hint
    assert "'bwtui doctor'" in error.hint


def test_a_partition_of_a_published_table_is_no_table_to_add(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(monkeypatch, "orders_1", [table("orders_1")], ["public.orders", "public.other"])
    assert "as part of table public.other" in error.message
    assert error.hint == "select the root table: --table 'public\\.other'"


def test_a_pattern_without_a_table_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no table matches --table" in refused(monkeypatch, "nothing", [table("other")]).message


def test_a_database_without_tables_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(monkeypatch, "orders", [])
    assert error.message.endswith(": the database has no permanent table")
    assert "check the database name" in error.hint

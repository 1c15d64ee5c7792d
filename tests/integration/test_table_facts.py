"""The facts of all tables are from one moment, whatever is committed while they are read."""

from typing import Any

import pytest

from bwtui.settings import RelaySettings
from bwtui.source import table_facts
from bwtui.source.connection import Connection, connect, query
from tests.database import session


def test_a_publication_that_goes_while_it_is_read_is_in_the_facts(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with session(database) as source, connect(database) as connection:
        source.run("create table doc (id int primary key)")
        source.run("create publication going for table doc")
        source.run("create publication staying for table doc")
        calls: list[str] = []

        def between(asked: Connection, sql: str, *args: Any) -> list[tuple[Any, ...]]:
            rows = query(asked, sql, *args)
            if not calls:
                source.run("drop publication going")
                source.run("create publication going for table doc")
                source.run("drop publication staying")
            calls.append(sql)
            return rows

        monkeypatch.setattr(table_facts, "query", between)
        facts = table_facts.read_facts(connection, ["going", "staying"], RelaySettings())
        assert sorted(facts["public.doc"].publications) == ["going", "staying"]
        assert len(calls) > 1
        later = table_facts.read_facts(connection, ["going", "staying"], RelaySettings())
        assert sorted(later["public.doc"].publications) == ["going"]
        assert later["public.doc"].publications["going"] != facts["public.doc"].publications["going"]
    connection.close()


def test_maintenance_and_grants_are_no_change(database: str) -> None:
    with session(database) as source, connect(database) as connection:
        source.run("create type mood as enum ('sad', 'glad')")
        source.run("create type pair as (a int, b int)")
        source.run(
            "create table doc (id int primary key, n int not null, mood mood, pair pair)"
            " partition by range (id)"
        )
        source.run("create table doc_low partition of doc for values from (0) to (100)")
        source.run("create unique index doc_low_n on doc_low (n)")
        source.run("create table doc_other (like doc including all)")
        source.run("insert into doc values (1, 1, 'sad', '(1,2)')")
        source.run("create publication docs for table doc with (publish_via_partition_root)")
        (before,) = table_facts.read_facts(connection, ["docs"], RelaySettings()).values()
        for statement in (
            "analyze doc",
            "vacuum freeze doc_low",
            "create index on doc (n)",
            "create unique index doc_id_n on doc (id, n)",
            "reindex table doc_low",
            "grant select on doc, doc_low to public",
            "revoke select on doc from public",
            "alter table doc attach partition doc_other for values from (100) to (200)",
            "alter type mood add value 'calm'",
            "alter table doc add column more text",
            "alter table doc_low replica identity full",
            "alter table doc_low replica identity default",
        ):
            source.run(statement)
        (now,) = table_facts.read_facts(connection, ["docs"], RelaySettings()).values()
        assert list(now.changes_since(before)) == []
    connection.close()

"""Facts of tables are of one moment, whatever is committed while they are read."""

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

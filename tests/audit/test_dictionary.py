"""The dictionary of the audit's tables names what the statements create, and nothing else."""

import re
from importlib.resources import files

from bwtui.audit import core
from tests.audit import judging
from tests.audit.made import Made


def test_every_table_and_column_is_explained() -> None:
    made = Made()
    # A missing message starts the search, which creates all tables.
    made.send(1, 10)
    made.send(2, 20, arrives=False, state="unknown")
    _, connection = judging.audit(made.world)
    for statement in core.statements("99_findings"):
        connection.execute(statement)
    created = connection.execute(
        "select table_name, column_name, lower(data_type) from duckdb_columns() where not internal"
    ).fetchall()
    text = (files("bwtui.audit") / "sql" / "00_dictionary.md").read_text()
    common, tables = text.split("## Tables")
    shared = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", common, re.MULTILINE))
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", tables, re.MULTILINE))
    assert set(rows) == {table for table, *_ in created}
    unexplained = [
        (table, column, kind)
        for table, column, kind in created
        if shared.get(column) != kind and f"`{column}` {kind}" not in rows[table]
    ]
    assert unexplained == []
    kinds = "smallint|integer|bigint|varchar|boolean"
    named = {
        (table, column) for table, row in rows.items() for column in re.findall(rf"`(\w+)` (?:{kinds})", row)
    }
    assert named <= {(table, column) for table, column, _ in created}
    assert set(shared) <= {column for _, column, _ in created}

"""Random schema and row changes, drawn from a seed, and the expected contents of the topics.

A trigger on every table records each row as its last change left it, under the table's name at that time. The
topic of that name must hold exactly these rows, whatever was altered after them.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from tests.database import Session

Table = str
#: Column types, each with a function that draws a literal of the type.
TYPES: dict[str, Callable[[Random], str]] = {
    "int": lambda rng: str(rng.randrange(-(2**31), 2**31)),
    "bigint": lambda rng: str(rng.randrange(-(2**63), 2**63)),
    "numeric(12,2)": lambda rng: f"{rng.randrange(-(10**9), 10**9)}.{rng.randrange(100):02d}",
    "numeric": lambda rng: f"{rng.randrange(10**30)}e-{rng.randrange(20)}",
    "boolean": lambda rng: rng.choice(("true", "false")),
    "text": lambda rng: "'" + rng.choice(("", "ß %s \\ \t", rng.randbytes(1_500).hex())) + "'",
    "varchar(60)": lambda rng: f"'{rng.randrange(10**6)}'",
    "uuid": lambda rng: f"'{rng.randbytes(16).hex()}'",
    "mood": lambda rng: "'glad'",
    "price": lambda rng: f"{rng.randrange(1000)}.5",
    "int[]": lambda rng: f"'{{{rng.randrange(9)},null}}'",
}
#: Type changes after which a reader with the new schema accepts the old rows.
WIDER = {"int": "bigint", "varchar(60)": "text", "mood": "text"}

SETUP = """
create schema told;
create type mood as enum ('glad'); create domain price as numeric(6,1);
create unlogged table told.rows (name text, id bigint, image jsonb, primary key (name, id));
create function told.note() returns trigger language plpgsql set search_path = pg_catalog as $$
begin
  if tg_op <> 'INSERT' then
    delete from told.rows where name = tg_table_schema || '.' || tg_table_name and id = old.id;
  end if;
  if tg_op <> 'DELETE' then
    insert into told.rows select tg_table_schema || '.' || tg_table_name, new.id, told.image(to_jsonb(new))
      on conflict (name, id) do update set image = excluded.image;
  end if;
  return null;
end $$;
create function told.image(jsonb) returns jsonb language sql return (
  select jsonb_object_agg(key, case jsonb_typeof(value) when 'array' then value::text else value #>> '{}' end)
    from jsonb_each($1));
"""


class Storm:
    """The current tables, and the random changes to them."""

    def __init__(self, session: Session, seed: int) -> None:
        self.session = session
        self.rng = Random(seed)
        self.rows = 0
        self.changes = 0
        self.done: dict[str, int] = {}
        self.tables: dict[Table, dict[str, str]] = {}
        self._ids: dict[Table, list[int]] = {}
        self._number = 0
        session.run(SETUP)
        for _ in range(4):
            self._create_table()
        #: A table whose key columns change. By ADR 6 its old keys stay, so nothing is expected of its topic.
        session.run("create table public.rekeyed (id bigint primary key, other bigint not null, n int)")

    def step(self, row_changes: int, schema_changes: int) -> None:
        """Run one transaction of ``row_changes`` with ``schema_changes`` somewhere between them."""
        at = sorted(self.rng.randrange(row_changes + 1) for _ in range(schema_changes))
        self.session.run("begin")
        for number in range(row_changes + 1):
            while at and at[0] == number:
                at.pop(0)
                self._change_schema()
            if number < row_changes:
                self._change_row()
        self.session.run("commit")

    def touch(self) -> None:
        """Update every row, so that its topic holds its current state."""
        for table in self.tables:
            self.session.run(f"update {table} set touched = touched + 1")

    # -- rows ----------------------------------------------------------------------------------------------

    def _change_row(self) -> None:
        self.rows += 1
        table = self.rng.choice(list(self.tables))
        columns, ids = self.tables[table], self._ids[table]
        kind = self.rng.choice(("insert", "insert", "update", "update", "update", "delete", "move"))
        if kind == "insert" or not ids:
            self._number += 1
            ids.append(self._number)
            names = ", ".join(["id", *columns])
            values = ", ".join([str(self._number), *(self._literal(kind) for kind in columns.values())])
            self.session.run(f"insert into {table} ({names}) values ({values})")
            return
        at = self.rng.randrange(len(ids))
        if kind == "delete":
            self.session.run(f"delete from {table} where id = {ids.pop(at)}")
        elif kind == "move":
            self._number += 1
            self.session.run(f"update {table} set id = {self._number} where id = {ids[at]}")
            ids[at] = self._number
        else:
            name, column_type = self.rng.choice([*columns.items(), ("touched", "int")])
            value = self._literal(column_type) if name != "touched" else "touched + 1"
            self.session.run(f"update {table} set {name} = {value} where id = {ids[at]}")

    def _literal(self, column_type: str) -> str:
        return "null" if self.rng.random() < 0.1 else TYPES[column_type](self.rng)

    # -- schemas -------------------------------------------------------------------------------------------

    def _change_schema(self) -> None:
        self.changes += 1
        kinds: dict[str, tuple[int, Callable[[], Any]]] = {
            "add column": (6, self._add_column),
            "drop column": (4, self._drop_column),
            "rename column": (4, self._rename_column),
            "alter type": (3, self._alter_type),
            "rename table": (1, self._rename_table),
            "create table": (1, self._create_table),
            "drop table": (1, self._drop_table),
            "identity": (2, self._change_identity),
            "rekey": (2, self._rekey),
            "enum": (1, self._change_enum),
        }
        kind = self.rng.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
        self.done[kind] = self.done.get(kind, 0) + 1
        kinds[kind][1]()

    def _table(self) -> Table:
        return self.rng.choice(list(self.tables))

    def _fresh(self, prefix: str) -> str:
        self._number += 1
        return f'"{prefix} {self._number}"'

    def _create_table(self) -> None:
        table = f"public.{self._fresh('table')}"
        self.session.run(
            f"create table {table} (id bigint primary key, touched int default 0);"
            f"create trigger note after insert or update or delete on {table}"
            f" for each row execute function told.note()"
        )
        self.tables[table], self._ids[table] = {}, []
        for _ in range(4):
            self._add_column(table)

    def _drop_table(self) -> None:
        if len(self.tables) > 2:
            table = self._table()
            self.session.run(f"drop table {table}")
            del self.tables[table], self._ids[table]

    def _rename_table(self) -> None:
        table, name = self._table(), self._fresh("renamed")
        self.session.run(f"alter table {table} rename to {name}")
        self.tables[f"public.{name}"] = self.tables.pop(table)
        self._ids[f"public.{name}"] = self._ids.pop(table)

    def _add_column(self, table: Table | None = None) -> None:
        table = table or self._table()
        # Large values, so that updates leave them out and the relay fetches them.
        column_type = "text" if self.rng.random() < 0.3 else self.rng.choice(list(TYPES))
        name = self._fresh("c")
        default = f" default {TYPES[column_type](self.rng)}" if self.rng.random() < 0.5 else ""
        self.session.run(f"alter table {table} add column {name} {column_type}{default}")
        if column_type == "text":
            self.session.run(f"alter table {table} alter {name} set storage external")
        self.tables[table][name] = column_type

    def _drop_column(self) -> None:
        table = self._table()
        if len(self.tables[table]) > 1:
            name = self.rng.choice(list(self.tables[table]))
            self.session.run(f"alter table {table} drop column {name}")
            del self.tables[table][name]

    def _rename_column(self) -> None:
        table = self._table()
        name, new = self.rng.choice(list(self.tables[table])), self._fresh("r")
        self.session.run(f"alter table {table} rename column {name} to {new}")
        self.tables[table][new] = self.tables[table].pop(name)

    def _alter_type(self) -> None:
        table = self._table()
        for name, column_type in self.tables[table].items():
            if column_type in WIDER:
                self.session.run(f"alter table {table} alter {name} type {WIDER[column_type]}")
                self.tables[table][name] = WIDER[column_type]
                return

    def _change_identity(self) -> None:
        self.session.run(
            f"alter table {self._table()} replica identity {self.rng.choice(('full', 'default'))}"
        )

    def _rekey(self) -> None:
        columns = self.rng.choice(("id", "id, other", "other"))
        self._number += 1
        self.session.run(
            f"insert into public.rekeyed values ({self._number}, {self._number});"
            " alter table public.rekeyed drop constraint rekeyed_pkey;"
            f" alter table public.rekeyed add primary key ({columns});"
            f" update public.rekeyed set n = {self._number} where id = {self._number}"
        )

    def _change_enum(self) -> None:
        self._number += 1
        self.session.run(f"alter type mood add value 'mood {self._number}'")

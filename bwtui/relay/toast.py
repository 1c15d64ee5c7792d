"""Unchanged TOAST values: PostgreSQL leaves a large value out of an UPDATE that did not touch it.

It is never NULL and never empty. Where the old row is at hand (REPLICA IDENTITY FULL) the value comes from
there, exactly. Otherwise no exact source exists, and ``--toast`` decides:

- ``fetch`` reads the row's present value by key. The topic's latest value is right; one in between may hold a
  value that is newer than its commit. A row that is gone by now has its delete still to come, so that this
  version of it is passed over.
- ``error`` leaves the row to ``--on-error``.
- ``placeholder`` sends null for the column, and names the column in the record's field ``__escaped``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import psycopg2

from bwtui.encode.avro import UnchangedToastError
from bwtui.errors import RowError
from bwtui.pgoutput.copy_text import unescape_copy_line
from bwtui.pgoutput.messages import UNCHANGED, Field
from bwtui.relay.routing import Route
from bwtui.settings import RelaySettings
from bwtui.source.connection import Connection, query, quote_identifier, quote_literal
from bwtui.source.snapshot import copy_out

_NAME_SQL = """select n.nspname, c.relname, c.relkind = 'p' from pg_catalog.pg_class c
                 join pg_catalog.pg_namespace n on n.oid = c.relnamespace where c.oid = %s"""


class RowIsGone(Exception):
    """The row was deleted, or got another key, after the change that is being relayed."""


class ToastFill:
    """Completes rows by the rules above."""

    def __init__(
        self, settings: RelaySettings, ask: Callable[[Callable[[Connection], object]], object]
    ) -> None:
        """``ask`` runs a question over a session to PostgreSQL, and waits while the server is away."""
        self._mode = settings.toast
        self._ask = ask

    def fill(
        self, route: Route, new: Sequence[Field], old: Sequence[Field] | None, *, full: bool
    ) -> list[Field]:
        """Return ``new`` without UNCHANGED, or with it where a placeholder is to stand for it.

        ``old`` holds the whole old row when ``full``, and else the key's old values. Raises
        UnchangedToastError under --toast error, RowError when the value can't be read, and RowIsGone.
        """
        names = route.column_names
        row = list(new)
        for index, field in enumerate(new):
            if field is UNCHANGED and old is not None and (full or names[index] in route.key_columns):
                row[index] = old[index]
        missing = [index for index, field in enumerate(row) if field is UNCHANGED]
        if not missing:
            return row
        if self._mode == "error" or not route.key_columns:
            raise UnchangedToastError(names[missing[0]])
        if self._mode == "placeholder":
            route.counters.toast_placeholders += len(missing)
            return row
        present = self._fetch(route, row, [names[index] for index in missing])
        route.counters.toast_fetched += len(missing)
        for index, field in zip(missing, present, strict=True):
            row[index] = field
        return row

    def _fetch(self, route: Route, new: Sequence[Field], columns: Sequence[str]) -> list[Field]:
        lines: list[bytes] = []

        def question(connection: Connection) -> object:
            rows = query(connection, _NAME_SQL, route.relation.oid)
            if not rows:
                raise RowIsGone
            try:
                copy_out(connection, _select(rows[0], columns, route, new), lines.append)
            except psycopg2.errors.UndefinedColumn as error:
                name = (error.diag.message_primary or "a column").split(" does not")[0]
                raise RowError(f"an unchanged TOAST value can't be fetched: {name} is gone") from error
            return None

        self._ask(question)
        if not lines:
            raise RowIsGone
        return list(unescape_copy_line(lines[0]))


def _select(table: tuple[Any, ...], columns: Sequence[str], route: Route, new: Sequence[Field]) -> str:
    namespace, name, partitioned = table
    wanted = ", ".join(map(quote_identifier, columns))
    source = f"{'' if partitioned else 'only '}{quote_identifier(namespace)}.{quote_identifier(name)}"
    values = dict(zip(route.column_names, new, strict=True))
    conditions = []
    for key in route.key_columns:
        value = values[key]
        if not isinstance(value, bytes):
            raise UnchangedToastError(key)
        conditions.append(f"{quote_identifier(key)} = {quote_literal(value.decode())}")
    return f"select {wanted} from {source} where {' and '.join(conditions)}"

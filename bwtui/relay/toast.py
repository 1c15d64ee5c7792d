"""Unchanged TOAST values: PostgreSQL leaves a large value out of an UPDATE that did not touch it.

It is never NULL and never empty. Where the old row is at hand (REPLICA IDENTITY FULL) the value comes from
there, exactly. Otherwise no exact source exists, and ``--toast`` decides:

- ``fetch`` reads the row's present value by key. The topic's latest value is right; one in between may hold a
  value that is newer than its commit. A row that is gone by now has its delete still to come, so that this
  version of it is passed over. A column that was dropped meanwhile gets a placeholder.
- ``error`` leaves the row to ``--on-error``.
- ``placeholder`` sends null for the column, and names the column in the record's field ``__escaped``.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import psycopg2

from bwtui.encode.avro import UnchangedToastError
from bwtui.errors import ServiceRefused
from bwtui.model.sql import quote_qualified
from bwtui.pgoutput.messages import UNCHANGED, Field
from bwtui.relay.routes.route import Route
from bwtui.settings import RelaySettings
from bwtui.source.connection import Connection, query
from bwtui.source.present_row import present_fields
from bwtui.source.printed import printed
from bwtui.source.snapshot import right_to_read

_LOCKED_SQL = """select exists (select from pg_catalog.pg_locks
                  where locktype = 'transactionid' and transactionid = %s::text::xid)"""


T = TypeVar("T")


class RowIsGone(Exception):
    """The row was deleted, or got another key, after the change that is being relayed.

    ``row`` is as complete as the change itself made it: its key is there.
    """

    def __init__(self, row: list[Field]) -> None:
        super().__init__()
        self.row = row


class Ask(Protocol):
    """Runs a question over a session to PostgreSQL, and waits while the server is away."""

    def __call__(self, question: Callable[[Connection], T]) -> T:
        """Return the answer. Raises RefusedError."""


class ToastFill:
    """Completes rows by the rules above."""

    def __init__(self, settings: RelaySettings, ask: Ask, pulse: Callable[[float], None]) -> None:
        """``pulse(seconds)`` waits, keeps the stream alive, and raises to stop the relay."""
        self._mode = settings.toast
        self._ask = ask
        self._pulse = pulse
        self._visible_xid = 0

    def begin_session(self) -> None:
        """Forget which transaction is visible: a number says nothing of another server's."""
        self._visible_xid = 0

    def fill(
        self, route: Route, new: Sequence[Field], old: Sequence[Field] | None, *, full: bool, xid: int
    ) -> list[Field]:
        """Return ``new`` without UNCHANGED, or with it where a placeholder is to stand for it.

        ``old`` holds the whole old row when ``full``, and else the key's old values; ``xid`` is the
        transaction that changed the row. Raises
        UnchangedToastError under --toast error, BwtuiError when the value can't be read, and RowIsGone.
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
            error = UnchangedToastError(names[missing[0]])
            table = quote_qualified(route.relation.namespace, route.relation.name)
            alter = printed(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
            error.hint = f"use --toast fetch, or run: {alter}"
            raise error
        if self._mode == "fetch":
            self._wait_until_visible(xid)
            for index, field in zip(missing, self._fetch(route, row, missing), strict=True):
                row[index] = field
        marked = sum(row[index] is UNCHANGED for index in missing)
        route.counters.toast_placeholders += marked
        route.counters.toast_fetched += len(missing) - marked
        return row

    def _wait_until_visible(self, xid: int) -> None:
        """Wait until other sessions see what the transaction did.

        PostgreSQL streams a commit once its WAL is flushed. Other sessions see it a moment later; with
        synchronous replication, only when the standby has answered. Until then the row's present value would
        be an old one. A transaction gives up the lock on its id after it has become visible.
        """
        while xid != self._visible_xid:
            if self._ask(lambda session: bool(query(session, _LOCKED_SQL, str(xid))[0][0])):
                self._pulse(0.01)
            else:
                self._visible_xid = xid

    def _fetch(self, route: Route, row: list[Field], missing: Sequence[int]) -> list[Field]:
        key: dict[str, bytes] = {}
        for name, field in zip(route.column_names, row, strict=True):
            if name in route.key_columns:
                if not isinstance(field, bytes):
                    raise UnchangedToastError(name)
                key[name] = field
        wanted = [route.column_names[index] for index in missing]

        def question(session: Connection) -> list[Field] | None:
            try:
                return present_fields(session, route.relation, key, wanted)
            except psycopg2.errors.InsufficientPrivilege as error:
                reason = error.diag.message_primary or "no right to read the table"
                hint = right_to_read(reason, route.relation, session)
                raise ServiceRefused(f"an unchanged TOAST value can't be fetched: {reason}", hint) from error

        fetched = self._ask(question)
        if fetched is None:
            raise RowIsGone(row)
        return fetched

"""Check in each session that the slot's publications exist, and that they publish the same operations.

This does not detect a publication that was missing in between. For changes of that time PostgreSQL itself
reports an error when it decodes them, see `bwtui.source.raw.stream.changes_skipped`.
"""

from typing import NamedTuple

from psycopg import pq

from bwtui.errors import RefusedError
from bwtui.model.sql import quote_literal
from bwtui.relay.run_state import RunState
from bwtui.relay.slot_checkpoint import SlotCheckpointStore
from bwtui.source.publication import create_statements, unkeyed_name
from bwtui.source.raw.session import execute_raw
from bwtui.source.sql_hints import format_sql

_OPERATIONS = ("inserts", "updates", "deletes", "truncates")


class PublicationState(NamedTuple):
    """A publication's oid, and the operations that it publishes."""

    oid: str
    operations: frozenset[str]


PublicationStates = dict[str, PublicationState]


class PublicationCheck:
    """The publications of one slot, from one session to the next."""

    def __init__(self, publication: str, report: RunState, checkpoint: SlotCheckpointStore) -> None:
        """``publication`` is the one in the settings; it implies its unkeyed companion."""
        self._family = (publication, unkeyed_name(publication))
        self._report = report
        self._checkpoint = checkpoint
        self._before: dict[str, PublicationState] = {}

    def ask(self, connection: pq.abc.PGconn, names: tuple[str, ...]) -> PublicationStates:
        """Return the states of ``names``, and of those that an earlier run read. Raises ServerError."""
        listed = ", ".join(map(quote_literal, self._required(names)))
        sql = f"""select pubname, oid, pubinsert, pubupdate, pubdelete, pubtruncate
                    from pg_catalog.pg_publication where pubname in ({listed})"""
        return {
            name or "": PublicationState(
                oid or "", frozenset(one for one, flag in zip(_OPERATIONS, flags, strict=True) if flag == "t")
            )
            for name, oid, *flags in execute_raw(connection, sql)
        }

    def take(self, names: tuple[str, ...], states: PublicationStates) -> None:
        """Check that all requested publications exist, and report what has changed. Raises RefusedError."""
        required = self._required(names)
        for name in required:
            if name not in states:
                raise RefusedError(
                    f"publication {name} is missing, but the slot was read with it",
                    "if rows were written meanwhile, the relay reports that a new snapshot is needed; "
                    f"'bwtui doctor' shows which tables to add after this: {self._create_statement(name)}",
                )
        for name, now in states.items():
            self._report_changes(name, self._before.get(name, now), now)
        self._before = states
        self._checkpoint.remember_publications(required)

    def _required(self, names: tuple[str, ...]) -> tuple[str, ...]:
        remembered = self._checkpoint.last.publications if self._checkpoint.last is not None else ()
        return tuple(dict.fromkeys((*names, *(name for name in remembered if name in self._family))))

    def _create_statement(self, name: str) -> str:
        keyed, unkeyed = create_statements(self._family[0], ())
        return format_sql(unkeyed if name == self._family[1] else keyed)

    def _report_changes(self, name: str, before: PublicationState, now: PublicationState) -> None:
        if before.oid != now.oid:
            self._notice(f"publication {name} was dropped and recreated")
        if removed := before.operations - now.operations:
            listed = ", ".join(operation for operation in _OPERATIONS if operation in removed)
            self._notice(f"publication {name} no longer publishes {listed}")

    def _notice(self, message: str) -> None:
        hint = "'bwtui verify --database' shows what topics lack"
        self._report.error("notice", RefusedError(message, hint))

"""``bwtui snapshot``: have the running relay send tables, or part of one, again."""

import contextlib
from typing import TYPE_CHECKING

import click

from bwtui.cli.inputs.relay_options import (
    json_option,
    only_relay,
    relay_option,
    running_or_stopped,
    status_of,
    wait_option,
)
from bwtui.console import say, say_json
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError, UsageError, mutually_exclusive
from bwtui.options import nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence, Set

    from bwtui.model.backfill import BackfillCommand, BackfillRequest, BackfillStatus
    from bwtui.source.catalog import TableInfo
    from bwtui.source.connection import Connection

#: pg_class.relkind of relations that are read like tables, but have no rows in the stream.
_NO_TABLES = {"v": "view", "m": "materialized view", "f": "foreign table"}

_EPILOG = """\b
Examples:
  bwtui snapshot orders                       all rows of a table, while its changes stream
  bwtui snapshot orders --where "id between 1 and 5000"
  bwtui snapshot orders sales.items --no-wait
  bwtui snapshot --status
  bwtui snapshot --pause 3-orders             --resume continues it, --cancel ends it

\b
--status, --pause, --resume and --cancel also work while the relay is stopped.

\b
Exit codes: 0 all is sent · 1 rows were dropped as dead letters · 2 refused, failed or
cancelled · 4 no relay runs, or it ended meanwhile (it continues after its next start) ·
130 interrupted (the relay continues)
"""


@click.command(epilog=_EPILOG)
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option(
    "--where",
    metavar="SQL",
    help="Only rows of one table for which this SQL expression is true, as after WHERE.",
)
@relay_option("The relay that sends the rows; required if several run.")
@click.option(
    "-u",
    "--unkeyed",
    is_flag=True,
    help="Allow tables without a key, whose rows are then in the topic twice.",
)
@wait_option
@click.option("--status", "shows", is_flag=True, help="List current and recent requests.")
@click.option("--pause", metavar="ID", help="Pause request ID until --resume.")
@click.option("--resume", metavar="ID", help="Continue paused request ID.")
@click.option("--cancel", metavar="ID", help="Cancel request ID; rows already sent stay in the topic.")
@json_option("Print one JSON object per request.")
def snapshot(
    tables: tuple[str, ...],
    where: str | None,
    relay: str | None,
    unkeyed: bool,
    wait: bool,
    shows: bool,
    pause: str | None,
    resume: str | None,
    cancel: str | None,
    as_json: bool,
) -> None:
    """Have the running relay send all rows of TABLEs again, while it streams their changes.

    The relay sends the current state of each row, never over a newer state of the same key. Requests survive
    restarts of the relay, which may then send some rows twice. For rows deleted in the meantime, the stream
    sends tombstones; use 'bwtui repair' for surplus keys in a topic.
    """
    ids_by_command: dict[BackfillCommand, str | None] = {"pause": pause, "resume": resume, "cancel": cancel}
    actions = [f"--{command}" for command, id in ids_by_command.items() if id is not None]
    _check_usage([*(["TABLE"] if tables else []), *(["--status"] if shows else []), *actions], tables, where)
    if unkeyed and not tables:
        raise UsageError("-u/--unkeyed requires a table", "give a table, or omit the option")
    if tables:
        _send(only_relay(relay), tables, where or "", unkeyed=unkeyed, wait=wait, as_json=as_json)
        return
    name = relay or running_or_stopped(_has_backfills)
    for command, id in ids_by_command.items():
        if id is not None:
            _print([_control(name, id, command)], as_json=as_json)
    if shows:
        _print(_statuses(name), as_json=as_json)


def _has_backfills(name: str) -> bool:
    from bwtui.relay.history.backfill_store import FOLDER
    from bwtui.state_folder import state_folder

    return any((state_folder(name) / FOLDER).glob("*.json"))


def _control(name: str, id: str, command: "BackfillCommand") -> "BackfillStatus":
    """Pause, resume or cancel a task; for a relay that does not run, at its next start."""
    from bwtui.relay.backfill.chunk_snapshot import offline_store
    from bwtui.relay.process.control import RelaySilent, RequestRefused, control_backfill

    try:
        return control_backfill(name, id, command)
    except (RelaySilent, RequestRefused):
        raise
    except ConnectionFailed as error:
        with offline_store(name, error) as store:
            return store.control(id, command)


def _statuses(name: str) -> "Sequence[BackfillStatus]":
    from bwtui.relay.backfill.chunk_snapshot import offline_store
    from bwtui.relay.process.control import RelaySilent

    try:
        return status_of(name).backfills
    except RelaySilent:
        raise
    except ConnectionFailed as error:
        with offline_store(name, error) as store:
            return store.statuses()


def _check_usage(actions: list[str], tables: tuple[str, ...], where: str | None) -> None:
    if not actions:
        raise UsageError(
            "no table was given", "usage: bwtui snapshot TABLE…; --status lists current and recent requests"
        )
    if len(actions) > 1:
        raise mutually_exclusive(actions[0], actions[1])
    if where is None:
        return
    if not where.strip():
        raise UsageError("--where is empty", "give an SQL expression over the table's columns, or omit it")
    if len(tables) != 1:
        raise UsageError("--where requires exactly one table", "give one table per command")


def _print(statuses: "Sequence[BackfillStatus]", *, as_json: bool) -> None:
    from bwtui.cli.output.table import as_table
    from bwtui.model.backfill import to_json

    if as_json:
        for status in statuses:
            say_json(to_json(status))
    elif statuses:
        say(*as_table(statuses))
    else:
        say("no requests, neither current nor recent")


def _send(
    name: str, tables: "Sequence[str]", where: str, *, unkeyed: bool, wait: bool, as_json: bool
) -> None:
    from bwtui.cli.output.table import dropped, ended_badly, wait_for
    from bwtui.relay.process.control import name_if_several, send_again

    requests = _requests(name, tables, where, unkeyed=unkeyed)
    ids: list[str] = []
    for request in requests:
        try:
            ids.append(send_again(name, request))
        except BwtuiError:
            # The relay has already accepted the others.
            for id in ids:
                say(f"bwtui: {id} was requested", err=True)
            raise

    def look() -> "Sequence[BackfillStatus]":
        return status_of(name).backfills

    if not wait:
        _print([status for status in look() if status.id in ids], as_json=as_json)
        return
    ended = wait_for(ids, look, relay=name_if_several(name), quiet=as_json)
    _print(ended, as_json=as_json)
    if (error := ended_badly(ended, ids) or dropped(ended)) is not None:
        raise error


def _requests(name: str, tables: "Sequence[str]", where: str, *, unkeyed: bool) -> "list[BackfillRequest]":
    """Return the requests, checked against the relay's database. Raises BwtuiError."""
    import psycopg2

    from bwtui.cli.inputs.audit_sources import running_settings, without_variables
    from bwtui.model.backfill import BackfillRequest
    from bwtui.source.catalog import TableFilter, find_named, list_tables
    from bwtui.source.connection import connect, statement_failed
    from bwtui.source.present_rows import check_condition

    settings, status = running_settings(name), status_of(name)
    with without_variables():
        try:
            with contextlib.closing(connect(settings.postgres)) as connection:
                there = {table.qualified_name: table for table in list_tables(connection, partitions=True)}
                carried = status.tables.keys() or {
                    name for name, table in there.items() if TableFilter(settings)(table)
                }
                # In the order given, without duplicates.
                selected = list(dict.fromkeys(_carried(name, table, carried, connection) for table in tables))
                unlogged = {
                    one.qualified_name: one.quoted for one in find_named(connection, selected) if one.unlogged
                }
        except psycopg2.Error as error:
            raise statement_failed(error) from error
        for table in selected:
            if table in unlogged:
                raise _is_unlogged(table, unlogged[table])
            _check_key(table, there, unkeyed=unkeyed)
        if where:
            info = there[selected[0]]
            check_condition(settings.postgres, info.namespace, info.name, where)
    return [BackfillRequest(table, where=where, unkeyed=unkeyed) for table in selected]


def _carried(relay: str, table: str, carried: "Set[str]", connection: "Connection") -> str:
    """Return the full name of one of the relay's tables; ``public`` is optional, and quotes are as in SQL."""
    names = {name.removeprefix("public."): name for name in carried} | {name: name for name in carried}
    if table in names:
        return names[table]
    full_name = _whole(table)
    if full_name in names:
        return full_name
    if (error := _no_table(relay, full_name, carried, connection)) is not None:
        raise error
    raise UsageError(f"table {table} is not captured by relay {relay}", _meant(relay, full_name, names))


def _whole(table: str) -> str:
    """Return ``schema.table`` for a given name; one with a quote is parsed like PostgreSQL does."""
    from bwtui.model.sql import split_qualified

    if '"' in table and (parts := split_qualified(table)) is not None:
        return f"{parts[0] or 'public'}.{parts[1]}"
    return table


def _meant(relay: str, table: str, names: "Collection[str]") -> str:
    """Return the hint that names the table that was probably meant."""
    spelled = sorted(name for name in names if name.casefold() == table.casefold())
    if spelled:
        return f"did you mean {' or '.join(spelled)}? Table names are case-sensitive here"
    close = nearest(table, names)
    return f"did you mean {close}?" if close else f"'bwtui status {relay}' lists the tables of the relay"


def _no_table(relay: str, full_name: str, carried: "Set[str]", connection: "Connection") -> BwtuiError | None:
    """Return the catalog's explanation for a name that is not one of the relay's tables, if there is one."""
    import psycopg2

    from bwtui.source.catalog import find_named

    try:
        relations = find_named(connection, [full_name, f"public.{full_name}"])
    except (psycopg2.DataError, UnicodeError):
        # Its characters do not exist in the database's encoding, so nothing there has the name.
        return None
    for one in relations:
        if one.unlogged:
            return _is_unlogged(one.qualified_name, one.quoted)
        if one.kind in _NO_TABLES:
            return UsageError(
                f"{one.qualified_name} is a {_NO_TABLES[one.kind]} and has no rows of its own in the stream",
                f"give tables of the relay; 'bwtui status {relay}' lists them",
            )
        for root in filter(carried.__contains__, one.ancestors):
            return UsageError(
                f"{one.qualified_name} is a partition; relay {relay} captures its rows as {root}",
                f"give {root}, with --where to select rows",
            )
    return None


def _is_unlogged(name: str, quoted: str) -> RefusedError:
    from bwtui.source.sql_hints import format_sql

    statement = format_sql(f"ALTER TABLE {quoted} SET LOGGED")
    return RefusedError(
        f"table {name} is unlogged: PostgreSQL streams none of its changes, so its topic could not follow it",
        f"run: {statement}; the relay then sends its rows",
    )


def _check_key(name: str, there: "Mapping[str, TableInfo]", *, unkeyed: bool) -> None:
    """Reject a missing table, and one whose rows would be in the topic twice."""
    table = there.get(name)
    if table is None:
        raise RefusedError(
            f"table {name} does not exist in the database",
            "it was dropped or renamed, so there is nothing to send",
        )
    if not table.has_key and not unkeyed:
        raise RefusedError(
            f"table {name} has no key: every row that is sent again would be in its topic twice",
            "add -u/--unkeyed if that is acceptable, or add a primary key to the table",
        )

"""``bwtui snapshot``: have the running relay send tables, or part of one, again."""

import contextlib
from typing import TYPE_CHECKING

import click

from bwtui.cli.options.relay_name import only_relay, relay_option, status_of
from bwtui.console import say, say_json
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError, UsageError
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
  bwtui snapshot orders                       all rows of a table, beside its changes
  bwtui snapshot orders --where "id between 1 and 5000"
  bwtui snapshot orders sales.items --no-wait
  bwtui snapshot --status
  bwtui snapshot --pause 3-orders             --resume goes on, --cancel ends it

\b
--status, --pause, --resume and --cancel also work while the relay is stopped.

\b
Exit codes: 0 all is sent · 1 rows were dropped as dead letters · 2 refused, failed or
cancelled · 4 no relay runs, or it ended meanwhile (it continues after its next start) ·
130 interrupted (the relay continues)
"""


@click.command(epilog=_EPILOG)
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option("--where", metavar="SQL", help="Only rows of one table for which this expression is true.")
@relay_option("The relay that sends them, where several run.")
@click.option(
    "-u",
    "--unkeyed",
    is_flag=True,
    help="Also a table without a key, whose rows are in the topic twice then.",
)
@click.option("--wait/--no-wait", default=True, help="Wait until all is sent; on by default.")
@click.option("--status", "shows", is_flag=True, help="List what is sent again, and what was last.")
@click.option("--pause", metavar="ID", help="Send no more of it until --resume.")
@click.option("--resume", metavar="ID", help="Go on where it was paused.")
@click.option("--cancel", metavar="ID", help="Send no more of it; what was sent stays in the topic.")
@click.option("--json", "as_json", is_flag=True, help="An object a line for each.")
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
    """Have the running relay send the rows of TABLEs again, while it goes on with their changes.

    Each row is sent as it is in the database, never over a newer state of the same key. What was asked for
    survives restarts of the relay: at most a small part is sent twice. Rows that were deleted meanwhile
    have had their tombstone from the stream; for others that a topic has too much, see 'bwtui repair'.
    """
    asked: dict[BackfillCommand, str | None] = {"pause": pause, "resume": resume, "cancel": cancel}
    given = [f"--{what}" for what, id in asked.items() if id is not None]
    _check_usage([*(["TABLE"] if tables else []), *(["--status"] if shows else []), *given], tables, where)
    if unkeyed and not tables:
        raise UsageError("-u/--unkeyed is of tables to send", "name a table, or leave it out")
    if tables:
        _send(only_relay(relay), tables, where or "", unkeyed=unkeyed, wait=wait, as_json=as_json)
        return
    name = _relay_or_stopped(relay)
    for what, id in asked.items():
        if id is not None:
            _print([_control(name, id, what)], as_json=as_json)
    if shows:
        _print(_statuses(name), as_json=as_json)


def _relay_or_stopped(named: str | None) -> str:
    """Return the selected relay; if none runs, the only one with stored backfills."""
    from bwtui.relay.backfill.store import FOLDER
    from bwtui.state_folder import relay_names, state_folder

    try:
        return only_relay(named)
    except ConnectionFailed:
        stopped = [name for name in relay_names() if any((state_folder(name) / FOLDER).glob("*.json"))]
        if not stopped:
            raise
    if len(stopped) > 1:
        raise UsageError("no relay is running", f"name one of them with --relay: {', '.join(stopped)}")
    return stopped[0]


def _control(name: str, id: str, what: "BackfillCommand") -> "BackfillStatus":
    """Pause, resume or cancel a task; for a relay that does not run, at its next start."""
    from bwtui.relay.backfill.offline_store import offline_store
    from bwtui.relay.process.control import RelayUnresponsive, RequestRefused, control_backfill

    try:
        return control_backfill(name, id, what)
    except (RelayUnresponsive, RequestRefused):
        raise
    except ConnectionFailed as error:
        with offline_store(name, error) as store:
            return store.ask(id, what)


def _statuses(name: str) -> "Sequence[BackfillStatus]":
    from bwtui.relay.backfill.offline_store import offline_store
    from bwtui.relay.process.control import RelayUnresponsive

    try:
        return status_of(name).backfills
    except RelayUnresponsive:
        raise
    except ConnectionFailed as error:
        with offline_store(name, error) as store:
            return store.statuses()


def _check_usage(given: list[str], tables: tuple[str, ...], where: str | None) -> None:
    if not given:
        raise UsageError(
            "no table is named", "write it as: bwtui snapshot orders; --status lists what is sent again"
        )
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} exclude each other", "give one of them")
    if where is None:
        return
    if not where.strip():
        raise UsageError(
            "--where is empty", "give an SQL expression over the table's columns, or leave it out"
        )
    if len(tables) != 1:
        raise UsageError("--where goes with one table", "name the table whose columns it is about")


def _print(statuses: "Sequence[BackfillStatus]", *, as_json: bool) -> None:
    from bwtui.cli.output.backfills import as_table
    from bwtui.model.backfill import to_json

    if as_json:
        for status in statuses:
            say_json(to_json(status))
    elif statuses:
        say(*as_table(statuses))
    else:
        say("nothing is sent again, and nothing was")


def _send(
    name: str, tables: "Sequence[str]", where: str, *, unkeyed: bool, wait: bool, as_json: bool
) -> None:
    from bwtui.cli.output.backfills import dropped, ended_badly, wait_for
    from bwtui.relay.process.control import name_if_several, send_again

    wanted = _requests(name, tables, where, unkeyed=unkeyed)
    ids: list[str] = []
    for request in wanted:
        try:
            ids.append(send_again(name, request))
        except BwtuiError:
            # The relay has already accepted the others.
            for id in ids:
                say(f"bwtui: {id} is asked for", err=True)
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

    from bwtui.cli.auditing.relay import running_settings, without_variables
    from bwtui.model.backfill import BackfillRequest
    from bwtui.source.catalog import TableFilter, list_tables
    from bwtui.source.connection import connect, statement_failed
    from bwtui.source.row_condition import check_condition

    settings, status = running_settings(name), status_of(name)
    with without_variables():
        try:
            with contextlib.closing(connect(settings.postgres)) as connection:
                there = {table.qualified_name: table for table in list_tables(connection, partitions=True)}
                carried = status.tables.keys() or {
                    name for name, table in there.items() if TableFilter(settings)(table)
                }
                # In the order given, without duplicates.
                named = list(dict.fromkeys(_carried(name, table, carried, connection) for table in tables))
        except psycopg2.Error as error:
            raise statement_failed(error) from error
        for table in named:
            _check_key(table, there, unkeyed=unkeyed)
        if where:
            info = there[named[0]]
            check_condition(settings.postgres, info.namespace, info.name, where)
    return [BackfillRequest(table, where=where, unkeyed=unkeyed) for table in named]


def _carried(relay: str, named: str, carried: "Set[str]", connection: "Connection") -> str:
    """Return the full name of one of the relay's tables; ``public`` is optional, and quotes are as in SQL."""
    names = {name.removeprefix("public."): name for name in carried} | {name: name for name in carried}
    if named in names:
        return names[named]
    whole = _whole(named)
    if whole in names:
        return whole
    if (error := _no_table(relay, whole, carried, connection)) is not None:
        raise error
    raise UsageError(f"relay {relay} carries no table {named}", _meant(relay, whole, names))


def _whole(named: str) -> str:
    """Return ``schema.table`` for a given name; one with a quote is parsed like PostgreSQL does."""
    from bwtui.model.sql import split_qualified

    if '"' in named and (parts := split_qualified(named)) is not None:
        return f"{parts[0] or 'public'}.{parts[1]}"
    return named


def _meant(relay: str, named: str, names: "Collection[str]") -> str:
    """Return the hint that names the table that was probably meant."""
    spelled = sorted(name for name in names if name.casefold() == named.casefold())
    if spelled:
        return f"did you mean {' or '.join(spelled)}? Upper and lower case count here"
    close = nearest(named, names)
    return f"did you mean {close}?" if close else f"'bwtui status {relay}' lists the tables that it carries"


def _no_table(relay: str, whole: str, carried: "Set[str]", connection: "Connection") -> UsageError | None:
    """Return the catalog's explanation for a name that is not one of the relay's tables, if there is one."""
    import psycopg2

    from bwtui.source.catalog import find_named

    try:
        found = find_named(connection, [whole, f"public.{whole}"])
    except (psycopg2.DataError, UnicodeError):
        # Its characters do not exist in the database's encoding, so nothing there has the name.
        return None
    for one in found:
        if one.kind in _NO_TABLES:
            return UsageError(
                f"{one.qualified_name} is a {_NO_TABLES[one.kind]}: it has no rows of its own in the stream",
                f"name tables of the relay; 'bwtui status {relay}' lists them",
            )
        for root in filter(carried.__contains__, one.ancestors):
            return UsageError(
                f"{one.qualified_name} is a partition, whose rows relay {relay} carries as {root}",
                f"name {root}, with --where for a part of it",
            )
    return None


def _check_key(name: str, there: "Mapping[str, TableInfo]", *, unkeyed: bool) -> None:
    """Reject a missing table, and one whose rows would be in the topic twice."""
    table = there.get(name)
    if table is None:
        raise RefusedError(
            f"table {name} is not in the database", "it was dropped or renamed: nothing need be sent of it"
        )
    if not table.has_key and not unkeyed:
        raise RefusedError(
            f"table {name} has no key: the topic would have each of its rows that are sent once more",
            "add -u/--unkeyed if that is meant, or give the table a primary key",
        )

"""``bwtui slots``: list replication slots, and drop one."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.inputs import relay_options
from bwtui.cli.inputs.relay_options import json_option
from bwtui.cli.output.table import columns, size
from bwtui.console import ask, say, say_json
from bwtui.errors import RefusedError, UsageError
from bwtui.option_checks import check_slot
from bwtui.options import nearest, split_advice

if TYPE_CHECKING:
    from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore
    from bwtui.source.connection import Connection

_EPILOG = """\b
Examples:
  bwtui slots list -d "dbname=shop"
  bwtui slots list -d service=shop --json
  bwtui slots drop bottledwater -d service=shop
"""


@click.group(epilog=_EPILOG)
def slots() -> None:
    """List and drop the replication slots of a server."""


@slots.command("list", epilog="\b\nExample:\n  bwtui slots list -d service=shop --json")
@relay_options.takes("postgres")
@json_option("Print a list of JSON objects.")
def list_slots(as_json: bool, **options: Any) -> None:
    """List all slots with plugin, reader, retained WAL and confirmed LSN."""
    with _connected(options) as connection:
        listed = _read(connection)
    if as_json:
        say_json(listed)
        return
    if not listed:
        say("the server has no replication slots")
        return
    head = ("SLOT", "PLUGIN", "DATABASE", "ACTIVE", "WAL STATUS", "RETAINED WAL", "SAFE WAL", "CONFIRMED")
    say(*columns(head, [_row(slot) for slot in listed], right=frozenset({5, 6})))


def _row(slot: dict[str, Any]) -> tuple[str, ...]:
    active = f"pid {slot['active_pid']}" if slot["active"] else "no"
    return (
        slot["name"],
        slot["plugin"] or slot["type"],
        slot["database"] or "-",
        active,
        slot["wal_status"] or "-",
        size(slot["retained_wal_bytes"]),
        size(slot["safe_wal_bytes"]),
        slot["confirmed_lsn"] or "-",
    )


@slots.command(epilog="\b\nExample:\n  bwtui slots drop bottledwater -d service=shop")
@click.argument("name")
@relay_options.takes("postgres")
@click.option("--yes", is_flag=True, help="Drop the slot without asking for its name.")
@json_option("Print the dropped slot as a JSON object.")
def drop(name: str, yes: bool, as_json: bool, **options: Any) -> None:
    """Drop the slot NAME. Changes that it has not confirmed can never be read again.

    A relay stores a checkpoint of its slot, and does not start if the slot is missing or was moved. This
    command also deletes the checkpoint, even if the slot is already missing, so that the relay's next start
    takes a new snapshot.
    """
    from bwtui.relay.backfill import chunk_snapshot
    from bwtui.relay.healing.heal import forget
    from bwtui.relay.history.slot_checkpoint import discard_position
    from bwtui.relay.process.last_status import forget_end
    from bwtui.settings import RelaySettings
    from bwtui.source.publication import drop_statement
    from bwtui.source.publication import existing as existing_publications
    from bwtui.source.slot import server_and_database
    from bwtui.state_folder import state_folder

    try:
        check_slot(name)
    except ValueError as error:
        raise UsageError(*split_advice(error)) from error
    with _connected(options) as connection:
        existing = _read(connection)
        slot = next((slot for slot in existing if slot["name"] == name), None)
        identity = (*server_and_database(connection), name)
        checkpoints = _checkpoints(identity)
        _check_droppable(name, slot, checkpoints, existing, connection)
        if not yes:
            _ask(name, slot)
        if slot is not None:
            _drop(connection, name)
        publications = existing_publications(connection, RelaySettings(slot=name).publication_name)
    for relay, checkpoint in checkpoints.items():
        # The checkpoint last: a kill in between leaves it, so the slot is refused and can be dropped again. A
        # heal without it would recreate the slot, without the new snapshot.
        discard_position(state_folder(relay), checkpoint.last)
        forget(state_folder(relay), name)
        forget_end(relay, name)
        checkpoint.forget()
    chunk_snapshot.forget(identity)
    if as_json:
        say_json({"dropped": slot, "forgotten_by": list(checkpoints)})
        return
    say(f"slot {name} dropped" if slot else f"slot {name} was already missing")
    for relay in checkpoints:
        say(f"deleted the checkpoint of relay {relay}: its next start takes a new snapshot")
    for publication in publications:
        remains = f"publication {publication} remains; if no relay is to use it again, run: "
        say(remains + drop_statement(publication))


def _checkpoints(identity: tuple[str, str, str]) -> "dict[str, SlotCheckpointStore]":
    """Return the checkpoints of local relays for a slot of server and database, by relay."""
    from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore
    from bwtui.state_folder import relay_names, state_folder

    checkpoints = {name: SlotCheckpointStore(state_folder(name), *identity) for name in relay_names()}
    return {name: checkpoint for name, checkpoint in checkpoints.items() if checkpoint.last is not None}


def _check_droppable(
    name: str,
    slot: dict[str, Any] | None,
    checkpoints: "dict[str, SlotCheckpointStore]",
    existing: list[dict[str, Any]],
    connection: "Connection",
) -> None:
    from bwtui.relay.history.slot_checkpoint import with_local_reader
    from bwtui.source.slot import SlotInUse

    if slot is None and not checkpoints:
        close = nearest(name, [slot["name"] for slot in existing])
        hint = f"did you mean {close}?" if close else "'bwtui slots list' lists the existing slots"
        raise RefusedError(f"slot {name} does not exist", hint)
    if slot is not None and slot["active"]:
        hint = "stop that consumer first; 'bwtui stop' stops a relay"
        raise with_local_reader(SlotInUse(name, f"server process {slot['active_pid']}", hint), connection)


def _ask(name: str, slot: dict[str, Any] | None) -> None:
    if not _has_terminal():
        raise UsageError(
            "dropping a slot needs a confirmation, and there is no terminal to ask",
            "add --yes to drop it without confirmation",
        )
    if slot is None:
        say(
            f"Slot {name} is missing on the server. Its relay will delete its checkpoint and take a new "
            "snapshot.",
            err=True,
        )
    else:
        retained = size(slot["retained_wal_bytes"])
        say(
            f"Slot {name} {_foreign(slot)}retains {retained} of WAL. "
            "Changes that it has not confirmed will be lost.",
            err=True,
        )
    typed = ask("Type the slot's name to drop it")
    if typed.strip() != name:
        raise RefusedError(
            "the answer was not the slot's name, so nothing was dropped", f"type {name} to drop it"
        )


def _foreign(slot: dict[str, Any]) -> str:
    """Return what a slot is that is not a relay's, before "retains"; "" for a slot that may be a relay's."""
    from bwtui.source.slot import PLUGIN

    if not slot["plugin"]:
        return "is a physical slot, which a standby may use. It "
    return "" if slot["plugin"] == PLUGIN else f"uses plugin {slot['plugin']}, so it is not a relay's. It "


def _has_terminal() -> bool:
    return sys.stdin.isatty()


@contextlib.contextmanager
def _connected(options: dict[str, Any]) -> "Iterator[Connection]":
    """Yield a connection that is closed at the end, and whose errors become plain sentences."""
    import psycopg2

    from bwtui.source.connection import connect
    from bwtui.source.sql_hints import hint_for

    with contextlib.closing(connect(relay_options.load(options).text("postgres"))) as connection:
        try:
            yield connection
        except psycopg2.Error as error:
            primary = error.diag.message_primary or "the connection was lost"
            raise RefusedError(f"PostgreSQL: {primary}", hint_for(error)) from error


def _read(connection: "Connection") -> list[dict[str, Any]]:
    from bwtui.source.lag import list_slots

    return [dataclasses.asdict(slot) for slot in list_slots(connection)]


def _drop(connection: "Connection", name: str) -> None:
    from bwtui.source.connection import execute

    execute(connection, "select pg_catalog.pg_drop_replication_slot(%s)", name)

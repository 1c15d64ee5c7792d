"""``bwtui doctor``: check every prerequisite of a relay, each with a fix, without changing anything."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.connect import relay_settings
from bwtui.cli.options.relay_options import ALL, takes
from bwtui.console import say, say_json
from bwtui.crash import crash
from bwtui.errors import BwtuiError, RefusedError
from bwtui.settings import RelaySettings

if TYPE_CHECKING:
    from bwtui.source.connection import Connection
    from bwtui.source.doctor.advice import Advice

_EPILOG = """\b
Examples:
  bwtui doctor -d "dbname=shop"
  bwtui doctor -d service=shop -b kafka:9092 -r http://registry:8081 --json
  bwtui doctor -d service=shop --table 'public\\..*' -u

\b
It takes the options of connect, because the prerequisites depend on them. The
exit code is that of the first failed prerequisite.
"""


@dataclass(frozen=True, slots=True)
class PrerequisiteResult:
    """The result of checking one prerequisite."""

    name: str
    message: str = ""
    error: BwtuiError | None = None
    skipped: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the result as an object of ``doctor --json``."""
        outcome = "failed" if self.error else "skipped" if self.skipped else "ok"
        return {
            "name": self.name,
            "result": outcome,
            "message": self.error.message if self.error else self.message,
            "hint": self.error.hint if self.error else None,
            "exit_code": self.error.exit_code if self.error else 0,
        }


@click.command(epilog=_EPILOG)
@takes(*ALL)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all results.")
def doctor(as_json: bool, **given: Any) -> None:
    """Check the prerequisites of a relay, and suggest a fix for each that fails."""
    from bwtui.relay.process.outcome import error_with_code

    settings = relay_settings(given)
    results = []
    for result in _results(settings):
        results.append(result)
        if not as_json:
            say(*_lines(result))
    considered = _advice(settings) if results[0].error is None else []
    if not as_json:
        for warning in considered:
            say(f"  !   {warning.name}: {warning.message}", f"        {warning.hint}")
    failed = [result.error for result in results if result.error]
    if as_json:
        checks = [result.to_json() for result in results]
        warnings = [dataclasses.asdict(warning) for warning in considered]
        say_json({"ok": not failed, "checks": checks, "warnings": warnings})
    if failed:
        problem = f"{len(failed)} of {len(results)} prerequisites failed"
        raise error_with_code(
            failed[0].exit_code, problem, "fix the lines marked FAIL, from the top, and run this again"
        )
    if not as_json:
        say("all prerequisites are met; start with 'bwtui connect'")


def _lines(result: PrerequisiteResult) -> list[str]:
    if result.skipped:
        return [f"  -   {result.name}: {result.message}"]
    if result.error is None:
        return [f"  ok  {result.name}: {result.message}"]
    hint = [f"        {result.error.hint}"] if result.error.hint else []
    return [f"FAIL  {result.name}: {result.error.message}", *hint]


def _results(settings: RelaySettings) -> Iterable[PrerequisiteResult]:
    from bwtui.sink.destination import kind_of

    yield from _postgres(settings)
    for name, check in kind_of(settings).preconditions(settings):
        yield _run(name, check)
    if settings.output_format == "avro":
        yield PrerequisiteResult("encoding", _encoding())


def _encoding() -> str:
    """Return which of the two encoders runs; both write the same bytes."""
    from bwtui.compiled import load

    if load() is not None:
        return "by the C extension bwtui_compiled"
    return "in Python: bwtui_compiled is not installed, or its version does not match; see docs/install.md"


def _postgres(settings: RelaySettings) -> Iterable[PrerequisiteResult]:
    from bwtui.source.connection import connect
    from bwtui.source.doctor.failover import prospect
    from bwtui.source.doctor.large_values import large_values
    from bwtui.source.preflight import server_checks

    opened: list[Connection] = []

    def open_connection() -> str:
        opened.append(connect(settings.postgres))
        info = opened[0].info
        return f"{info.user} at {info.host or 'local'}:{info.port}/{info.dbname}"

    first = _run("PostgreSQL", open_connection)
    yield first
    if first.error is not None:
        yield PrerequisiteResult("server prerequisites", "not checked: no connection", skipped=True)
        return
    connection = opened[0]
    try:
        failed = set()
        for check in server_checks(connection, settings):
            result = _run(check.name, check.run)
            failed |= {check.name} if result.error is not None else set()
            yield result
        if failed & {"replication privilege", "room for a WAL sender"}:
            yield PrerequisiteResult("replication session", "not checked, see above", skipped=True)
        else:
            yield _run("replication session", lambda: _open_replication(connection, settings))
        yield _run("unchanged large values", lambda: large_values(connection, settings))
        yield _run("slot is free", lambda: _check_free(connection, settings))
        yield _run("failover", lambda: prospect(connection, settings))
        yield _run("slot position", lambda: _check_remembered(connection, settings))
        if "publications" in failed:
            yield PrerequisiteResult("tables are captured", "not checked, see publications", skipped=True)
        else:
            yield from _captured(connection, settings)
    finally:
        connection.close()


def _open_replication(connection: "Connection", settings: RelaySettings) -> str:
    """Open a session like the stream's: a pooler in front may accept only ordinary sessions.

    Raises ConnectionFailed, and RefusedError if a different server answers.
    """
    from bwtui.source.raw.session import connect_raw
    from bwtui.source.raw.timeline import identify
    from bwtui.source.slot import server_and_database

    opened = connect_raw(settings.postgres)
    try:
        found = identify(opened).system_identifier
    finally:
        opened.finish()
    expected, _ = server_and_database(connection)
    if found != expected:
        raise RefusedError(
            "the replication connection reached a different server: its system identifier is "
            f"{found}, not {expected}",
            "give the address of a single server in -d/--postgres",
        )
    return f"connects to server {found}"


def _captured(connection: "Connection", settings: RelaySettings) -> Iterable[PrerequisiteResult]:
    """Yield the selected tables that the publications lack: nothing would report them later."""
    import psycopg2

    from bwtui.source.publication import existing
    from bwtui.source.publication_coverage import is_chosen, shortfalls

    try:
        found = [one for one in shortfalls(connection, settings) if not one.captured]
        missing = [one for one in found if is_chosen(settings, one)]
        captured = "all" if existing(connection, settings.publication_name) else "all will be captured"
        if len(missing) < len(found):
            captured = f"all of publication {settings.publication_name}"
    except (BwtuiError, psycopg2.Error):
        yield PrerequisiteResult("tables are captured", "not checked, see above", skipped=True)
        return
    hint_before = ""
    for one in missing:
        # One statement may cover many tables.
        hint = (
            one.hint if one.hint != hint_before else "the statement for the table above covers this table too"
        )
        hint_before = one.hint
        yield PrerequisiteResult(one.subject, error=RefusedError(one.says, hint))
    if not missing:
        yield PrerequisiteResult("tables are captured", captured)


def _advice(settings: RelaySettings) -> "list[Advice]":
    """Return advice; an empty list if it can't be determined, which a check has then reported."""
    import psycopg2

    from bwtui.source.connection import connect
    from bwtui.source.doctor.advice import Advice, advice, outside_publication
    from bwtui.source.doctor.failover import failover_advice
    from bwtui.source.publication_coverage import shortfalls

    try:
        with contextlib.closing(connect(settings.postgres)) as connection:
            found = list(shortfalls(connection, settings))
            narrowed = [one for one in found if one.captured]
            return [
                *advice(connection, settings),
                *failover_advice(connection, settings),
                *(Advice(one.subject, one.says, one.hint) for one in narrowed),
                *outside_publication(settings, found),
            ]
    except (BwtuiError, psycopg2.Error):
        return []


def _run(name: str, check: Callable[[], str]) -> PrerequisiteResult:
    import psycopg2

    from bwtui.source.sqlstate_hints import hint_for

    try:
        return PrerequisiteResult(name, check())
    except BwtuiError as error:
        return PrerequisiteResult(name, error=error)
    except psycopg2.Error as error:
        primary = error.diag.message_primary or "the connection was lost"
        return PrerequisiteResult(name, error=RefusedError(f"PostgreSQL: {primary}", hint_for(error)))
    except Exception as error:
        # One check that fails unexpectedly must not hide the others.
        return PrerequisiteResult(name, error=crash(error))


def _check_free(connection: "Connection", settings: RelaySettings) -> str:
    from bwtui.source.slot import slot_state

    slot = slot_state(connection, settings.slot)
    if slot is None or not slot.active:
        return "not in use"
    raise RefusedError(
        f"slot {slot.name} is already in use by server process {slot.active_pid}",
        "stop its consumer ('bwtui stop' if that is a relay), or choose a different slot with -s/--slot",
    )


def _check_remembered(connection: "Connection", settings: RelaySettings) -> str:
    """Compare the slot with the checkpoint of the relay of that name. Raises SlotLost."""
    from bwtui.model.lsn import format_lsn
    from bwtui.relay.slot_checkpoint import SlotCheckpointStore
    from bwtui.source.slot import server_and_database, slot_state
    from bwtui.state_folder import state_folder

    memory = SlotCheckpointStore(
        state_folder(settings.relay_name), *server_and_database(connection), settings.slot
    )
    if memory.last is None:
        return "no checkpoint"
    note = memory.check(slot_state(connection, settings.slot))
    return note or f"confirmed up to {format_lsn(memory.last.confirmed_lsn)}, unchanged since"

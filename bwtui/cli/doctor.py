"""``bwtui doctor``: check every prerequisite of a relay, each with a fix, without changing anything."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.connect import relay_settings
from bwtui.cli.inputs.audit_sources import refuse_replaced, without_variables
from bwtui.cli.inputs.relay_options import ALL, json_option, relay_option, status_of, takes, typed_options
from bwtui.console import say, say_json
from bwtui.crash import crash
from bwtui.errors import BwtuiError, RefusedError
from bwtui.settings import RelaySettings

if TYPE_CHECKING:
    from bwtui.model.status import Status
    from bwtui.source.connection import Connection
    from bwtui.source.doctor import Advice
    from bwtui.source.publication_coverage import Shortfall

_EPILOG = """\b
Examples:
  bwtui doctor -d "dbname=shop"
  bwtui doctor -d service=shop -b kafka:9092 -r http://registry:8081 --json
  bwtui doctor -d service=shop --table 'public\\..*' -u
  bwtui doctor --relay shop

\b
It takes the options of connect, because the prerequisites depend on them. The
exit code is that of the first failed prerequisite.
"""


_TOPICS = "topics suit the tables"
_PLURAL = {"is": "are", "has": "have"}
#: The states of a relay that has a replication session, and the prerequisites of starting one.
_WITH_SESSION = frozenset({"snapshot", "streaming", "paused"})
_TAKEN_BY_SESSION = frozenset({"room for a slot", "room for a WAL sender"})


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
@relay_option("Take every setting from the running relay NAME, whose own slot is expected to be in use.")
@json_option("Print one JSON object with all results.")
def doctor(relay: str | None, as_json: bool, **options: Any) -> None:
    """Check the prerequisites of a relay, and suggest a fix for each that fails."""
    if relay is None:
        _report(relay_settings(options), None, as_json)
        return
    from bwtui.relay.process.control import settings_of

    refuse_replaced("table", "exclude_table", "spark_master")
    # Requested first: if the relay has ended, this error says how.
    status = status_of(relay)
    with without_variables():
        _report(settings_of(status.name), status, as_json)


def _report(settings: RelaySettings, running: "Status | None", as_json: bool) -> None:
    """Check everything, and report each result; ``running`` is the relay that has these settings."""
    from bwtui.relay.process.outcome import error_with_code

    results = []
    for result in _results(settings, running):
        results.append(result)
        if not as_json:
            say(*_lines(result))
    considered = [*(_advice(settings) if results[0].error is None else []), *_extension_advice()]
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
        marked = 'checks with "result": "failed"' if as_json else "lines marked FAIL"
        hint = f"fix the {marked}, from the top, and run this again"
        raise error_with_code(failed[0].exit_code, problem, hint)
    if not as_json and running is not None:
        say(f"relay {running.name} meets all prerequisites")
    elif not as_json:
        same = " and the same options" if typed_options() else ""
        say(f"all prerequisites are met; start with 'bwtui connect'{same}")


def _lines(result: PrerequisiteResult) -> list[str]:
    if result.skipped:
        return [f"  -   {result.name}: {result.message}"]
    if result.error is None:
        return [f"  ok  {result.name}: {result.message}"]
    hint = [f"        {result.error.hint}"] if result.error.hint else []
    return [f"FAIL  {result.name}: {result.error.message}", *hint]


def _results(settings: RelaySettings, running: "Status | None" = None) -> Iterable[PrerequisiteResult]:
    from bwtui.sink.destination import kind_of

    failed: dict[tuple[str, str], str] = {}
    for result in chain(
        _postgres(settings, running),
        (_run(name, check) for name, check in kind_of(settings).preconditions(settings)),
    ):
        if result.error is not None:
            # One cause, such as a pattern that no table matches, fails several checks.
            first = failed.setdefault((result.error.message, result.error.hint), result.name)
            if first != result.name:
                yield PrerequisiteResult(result.name, f"not checked, see {first}", skipped=True)
                continue
        yield result
    if {"PostgreSQL", "tables are keyed", "Kafka"}.intersection(failed.values()):
        yield PrerequisiteResult(_TOPICS, "not checked, see above", skipped=True)
    else:
        yield from _topics(settings)
    if settings.output_format == "avro":
        yield PrerequisiteResult("encoding", _encoding())


def _topics(settings: RelaySettings) -> Iterable[PrerequisiteResult]:
    """Yield the tables that can't use their existing topics."""
    from bwtui.model.number_format import plural
    from bwtui.relay.routes.table_checks import topic_refusals
    from bwtui.source.connection import connect
    from bwtui.source.preflight import selected_tables

    refusals: list[RefusedError] = []

    def check() -> str:
        with contextlib.closing(connect(settings.postgres)) as connection:
            tables = selected_tables(connection, settings)
            refusals.extend(topic_refusals(connection, settings, tables))
        return f"no conflict in {plural(len(tables), 'topic')}"

    result = _run(_TOPICS, check)
    yield from [PrerequisiteResult(_TOPICS, error=refusal) for refusal in refusals] or [result]


def _encoding() -> str:
    """Return which of the two encoders runs; both write the same bytes."""
    from bwtui.compiled import load, version_mismatch

    if load() is not None:
        return "by the C extension bwtui_compiled"
    if version_mismatch() is not None:
        return "in Python: bwtui_compiled is installed, but for a different version of bwtui"
    return "in Python: bwtui_compiled is not installed; see docs/install.md"


def _extension_advice() -> "list[Advice]":
    from bwtui.compiled import version_mismatch
    from bwtui.source.doctor import Advice

    mismatch = version_mismatch()
    return [] if mismatch is None else [Advice("encoding", *mismatch)]


def _postgres(settings: RelaySettings, running: "Status | None" = None) -> Iterable[PrerequisiteResult]:
    from bwtui.source.connection import connect
    from bwtui.source.doctor import large_values, prospect
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
        has_session = running is not None and running.state in _WITH_SESSION
        for check in server_checks(connection, settings):
            if has_session and check.name in _TAKEN_BY_SESSION:
                yield PrerequisiteResult(check.name, f"relay {settings.relay_name} has its own")
                continue
            result = _run(check.name, check.run)
            failed |= {check.name} if result.error is not None else set()
            if check.name == "publications" and {"slot", "publications"} <= failed:
                # The slot may not be a relay's, and the hint would drop it.
                result = PrerequisiteResult(check.name, "not checked, see slot", skipped=True)
            yield result
        if failed & {"replication privilege", "room for a WAL sender"}:
            yield PrerequisiteResult("replication session", "not checked, see above", skipped=True)
        else:
            yield _run("replication session", lambda: _open_replication(connection, settings))
        yield _run("unchanged large values", lambda: large_values(connection, settings))
        if "slot" in failed:
            # A physical slot may be in use by a standby, which must not be stopped.
            yield PrerequisiteResult("slot is free", "not checked, see slot", skipped=True)
        elif has_session:
            yield PrerequisiteResult("slot is free", f"relay {settings.relay_name} uses it")
        else:
            yield _run("slot is free", lambda: _check_free(connection, settings))
        yield _run("failover", lambda: prospect(connection, settings))
        yield _run("slot position", lambda: _check_slot_position(connection, settings))
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
    from bwtui.source.raw_session import connect_raw
    from bwtui.source.raw_stream import identify
    from bwtui.source.slot import server_and_database

    opened = connect_raw(settings.postgres)
    try:
        actual = identify(opened).system_identifier
    finally:
        opened.finish()
    expected, _ = server_and_database(connection)
    if actual != expected:
        raise RefusedError(
            "the replication connection reached a different server: its system identifier is "
            f"{actual}, not {expected}",
            "give the address of a single server in -d/--postgres",
        )
    return f"connects to server {actual}"


def _captured(connection: "Connection", settings: RelaySettings) -> Iterable[PrerequisiteResult]:
    """Yield the selected tables that the publications lack: nothing would report them later."""
    import psycopg2

    from bwtui.source.publication import existing
    from bwtui.source.publication_coverage import is_chosen, shortfalls

    try:
        gaps = [one for one in shortfalls(connection, settings) if not one.captured]
        missing = [one for one in gaps if is_chosen(settings, one)]
        captured = "all" if existing(connection, settings.publication_name) else "all will be captured"
        if len(missing) < len(gaps):
            captured = f"all of publication {settings.publication_name}"
    except (BwtuiError, psycopg2.Error):
        yield PrerequisiteResult("tables are captured", "not checked, see above", skipped=True)
        return
    yield from _combined(missing)
    if not missing:
        yield PrerequisiteResult("tables are captured", captured)


def _combined(missing: "Sequence[Shortfall]") -> Iterable[PrerequisiteResult]:
    """Yield one result for all tables with the same shortfall and the same kind of fix."""
    from bwtui.source.sql_hints import exclude_option

    groups: dict[tuple[str, str], list[tuple[str, Shortfall]]] = {}
    for one in missing:
        exclude = exclude_option([one.table]) if one.table else ""
        way, added, table = one.hint.rpartition(" ADD TABLE ")
        common = one.hint if not added or table.count(";") != 1 else f"{way}{added}"
        if exclude:
            common = common.replace(exclude, "--exclude-table …")
        groups.setdefault((one.says, common), []).append((table.removesuffix(";"), one))
    for (says, common), these in groups.items():
        tables, first = [one.table or "" for _, one in these], these[0][1]
        if len(these) == 1:
            yield PrerequisiteResult(first.subject, error=RefusedError(says, first.hint))
            continue
        hint = common.replace("--exclude-table …", exclude_option(tables))
        if hint.endswith(" ADD TABLE "):
            hint += ", ".join(clause for clause, _ in these) + ";"
        verb, _, rest = says.partition(" ")
        message = f"{_PLURAL.get(verb, verb)} {rest}"
        hint = hint.replace("it has ", "they have ", 1).replace("leave it out", "leave them out")
        yield PrerequisiteResult(f"tables {', '.join(tables)}", error=RefusedError(message, hint))


def _advice(settings: RelaySettings) -> "list[Advice]":
    """Return advice; an empty list if it can't be determined, which a check has then reported."""
    import psycopg2

    from bwtui.source.connection import connect
    from bwtui.source.doctor import Advice, advice, failover_advice, outside_publication
    from bwtui.source.publication_coverage import shortfalls

    try:
        with contextlib.closing(connect(settings.postgres)) as connection:
            gaps = list(shortfalls(connection, settings))
            narrowed = [one for one in gaps if one.captured]
            return [
                *advice(connection, settings),
                *failover_advice(connection, settings),
                *(Advice(one.subject, one.says, one.hint) for one in narrowed),
                *outside_publication(settings, gaps),
            ]
    except (BwtuiError, psycopg2.Error):
        return []


def _run(name: str, check: Callable[[], str]) -> PrerequisiteResult:
    import psycopg2

    from bwtui.source.sql_hints import hint_for

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
    from bwtui.relay.history.slot_checkpoint import with_local_reader
    from bwtui.source.slot import SlotInUse, slot_state

    slot = slot_state(connection, settings.slot)
    if slot is None or not slot.active:
        return "not in use"
    hint = "stop its consumer ('bwtui stop' if that is a relay), or choose a different slot with -s/--slot"
    raise with_local_reader(SlotInUse(slot.name, f"server process {slot.active_pid}", hint), connection)


def _check_slot_position(connection: "Connection", settings: RelaySettings) -> str:
    """Compare the slot with the checkpoint of the relay of that name. Raises SlotLost."""
    from bwtui.model.lsn import format_lsn
    from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore
    from bwtui.source.slot import server_and_database, slot_state
    from bwtui.state_folder import state_folder

    # Read before the checkpoint: a running relay writes that before it confirms an LSN.
    slot = slot_state(connection, settings.slot)
    checkpoints = SlotCheckpointStore(
        state_folder(settings.relay_name),
        *server_and_database(connection),
        settings.slot,
        drop=settings.drop_command,
    )
    if checkpoints.last is None:
        return "no checkpoint"
    note = checkpoints.check(slot)
    return note or f"confirmed up to {format_lsn(checkpoints.last.confirmed_lsn)}, unchanged since"

"""Determine the relay for ``bwtui repair``, and check that it is the intended one."""

import contextlib
import json
import re
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bwtui.audit.report import AuditSummary
from bwtui.cli.auditing.database import request_of, source_of
from bwtui.cli.auditing.prechecks import on_command_line, refuse_replaced
from bwtui.cli.auditing.registry import ask_registry
from bwtui.cli.auditing.relay import reconnecting, running_settings, without_variables
from bwtui.cli.options import relay_options
from bwtui.cli.options.librdkafka import check
from bwtui.cycles import look_rarely
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError, UsageError
from bwtui.kafka.config import client_config
from bwtui.kafka.offsets import partitions
from bwtui.model.number_format import duration
from bwtui.relay.backfill.chunk_snapshot import chunk_snapshot_path
from bwtui.relay.process.control import request as ask_relay
from bwtui.relay.process.control import running_relays, settings_of
from bwtui.relay.process.lock import is_held
from bwtui.relay.slot_checkpoint import SlotCheckpointStore
from bwtui.repair.relay_repair import spellings
from bwtui.settings import RelaySettings
from bwtui.source.catalog import TableFilter
from bwtui.source.connection import connect
from bwtui.source.slot import slot_state
from bwtui.state_folder import relay_names, state_folder
from bwtui.verify.database import OnDifferences, verify_database

#: Keys that identify a JSON object as a report about tables.
_WANTED = {"verdict", "question", "tables"}


@dataclass(frozen=True, slots=True)
class RepairTarget:
    """A running relay and the selected tables; with "" as its name, the settings that were given."""

    relay: str
    settings: RelaySettings
    narrower: RelaySettings
    cluster: str
    source: dict[str, str]
    #: Whether only tables count that the relay captures, not those that it lacks.
    only_carried: bool = False
    #: Notes on the report that named it.
    notes: list[str] = field(default_factory=list)

    def topics(self) -> dict[str, str]:
        """Return the topics of the selected tables. Raises UsageError and ConnectionFailed."""
        return {one.full_name: one.topic for one in request_of(self.settings, self.narrower).tables}

    @property
    def is_whole(self) -> bool:
        """Whether all tables of the relay are selected."""
        return not (self.narrower.tables or self.narrower.exclude_tables)

    def compare(self, on_differences: OnDifferences | None, on_phase: Callable[[str], None]) -> AuditSummary:
        """Compare the tables with their topics. Raises the errors of `verify_database`."""
        request = request_of(
            self.settings, self.narrower, of_relay=bool(self.relay), on_differences=on_differences
        )
        if self.only_carried:
            request = replace(request, not_captured={})
        if self.relay:
            # Once a table's key has changed, even most of its keys may be ones that the relay never writes.
            own = spellings(ask_relay(self.relay, {"request": "status"}))
            named = {one.topic: own[one.full_name] for one in request.tables if one.full_name in own}
            request = replace(request, spellings=named)
        look_rarely()
        return verify_database(request, ask_registry(self.settings), on_phase)


def target_of(
    report: Path | None, relay: str | None, given: dict[str, Any], *, database: bool
) -> RepairTarget:
    """Return the intended relay, after checking that it matches the report or the options.

    Raises UsageError, ConnectionFailed, or RefusedError if it sends from a different database, or to a
    different Kafka, than the report or the options say.
    """
    _refuse_both(report, database=database)
    _refuse_unused()
    if report is None and relay is None and not database:
        raise UsageError("nothing was selected to repair", "give a report, --relay NAME, or --database")
    if relay is not None or report is not None:
        refuse_replaced()
    told = _read(report) if report is not None else {}
    narrower = relay_options.load(given, alone=not database or relay is not None).settings()
    source: dict[str, str] = told.get("source") or {}
    cluster = str(told.get("cluster") or "")
    if relay is None and report is None:
        check(narrower)
        source = source_of(narrower)
        cluster = partitions(client_config(narrower))[0]
    name = relay or _running_with(source, report, narrower)
    settings = running_settings(name)
    with without_variables():
        found = RepairTarget(
            name, settings, narrower, partitions(client_config(settings))[0], source_of(settings)
        )
    if relay is None and report is None:
        # The publication, the prefix and all other settings are the relay's.
        _refuse_others(name, narrower, settings)
        narrower = relay_options.load(given, alone=True).settings()
    return _checked(replace(found, narrower=narrower), source, cluster, told)


def target_alone(report: Path | None, given: dict[str, Any], *, database: bool) -> RepairTarget:
    """Return the target of a repair without a relay. Raises the errors of `target_of`."""
    _refuse_both(report, database=database)
    told = _read(report) if report is not None else {}
    loaded = relay_options.load(given)
    settings = loaded.settings()
    relay_options.check_properties(settings, loaded.property_place)
    found = RepairTarget("", settings, settings, partitions(client_config(settings))[0], source_of(settings))
    return _checked(found, told.get("source") or {}, str(told.get("cluster") or ""), told)


def refuse_ours(target: RepairTarget, topics: Collection[str]) -> None:
    """Raise RefusedError if a local running relay reads the slot, or sends to one of ``topics``."""
    slot, silent, answered = target.settings.slot, list[str](), set[str]()
    for status in running_relays(silent=silent):
        answered.add(status.name)
        sent = sorted({table.topic for table in status.tables.values()}.intersection(topics))
        database = status.database.rpartition("/")[2]
        if (status.slot, database) == (slot, target.source["database"]):
            raise _ours(status.name, f"reads slot {slot}")
        if sent and partitions(client_config(settings_of(status.name)))[0] == target.cluster:
            raise _ours(status.name, f"sends to topic {sent[0]}")
    for name in sorted({*silent, *filter(is_held, relay_names())} - answered):
        if name == slot or _has_read(name, slot, target.source):
            raise _ours(name, "does not answer")


def _has_read(name: str, slot: str, source: dict[str, str]) -> bool:
    """Return whether a relay's folder has this database's slot recorded, or can't be read."""
    folder, identity = state_folder(name), (source["system_identifier"], source["database"], slot)
    try:
        memory = SlotCheckpointStore(folder, *identity)
    except BwtuiError:
        return True
    return memory.last is not None or chunk_snapshot_path(folder, identity).exists()


def _ours(relay: str, what: str) -> RefusedError:
    return RefusedError(
        f"relay {relay} runs on this machine and {what}, so this command must not send alongside it",
        f"run 'bwtui repair --relay {relay}': that relay then sends the rows, in the right order "
        "with its stream",
    )


def _refuse_both(report: Path | None, *, database: bool) -> None:
    if report is not None and database:
        raise UsageError("--database and a report exclude each other", "give only one of them")


def _refuse_unused() -> None:
    """Raise UsageError for an option on the form of messages, which the relay determines."""
    for name, option in on_command_line():
        if name in ("output_format", "toast", "headers", "namespace", "connect_names"):
            raise UsageError(
                f"{option} has no effect here, because the relay sends the rows",
                "omit it: the relay's own settings apply",
            )


def _read(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"report {path} can't be read: {error.strerror}",
            "give a file written by 'bwtui verify --database --json'",
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{path} is not an audit report", "give a file written by 'bwtui verify --database --json'"
        ) from error
    if not isinstance(told, dict) or not told.keys() >= _WANTED - {"tables"}:
        raise UsageError(
            f"{path} is not an audit report", "give a file written by 'bwtui verify --database --json'"
        )
    if told["question"] == "recording":
        raise UsageError(
            f"{path} is a report on a recording, not on tables",
            "run 'bwtui replay RECORDING --only-missing REPORT' to send the missing messages",
        )
    if told["question"] != "database":
        raise UsageError(
            f"{path} is not a report on tables", "give a file written by 'bwtui verify --database --json'"
        )
    for name, is_right, words in _SHAPE:
        if not is_right(told.get(name)):
            raise UsageError(
                f"report {path} is incomplete: its {name} is not {words}",
                "create it again with 'bwtui verify --database --json'",
            )
    return told


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(one, str) for one in values)


def _is_source(value: object) -> bool:
    return value is None or (isinstance(value, dict) and _are_texts([*value.values()]))


def _is_window(value: object) -> bool:
    if value is None or not isinstance(value, dict):
        return value is None
    now = value.get("now_ms")
    # JSON may contain infinity and NaN.
    return now is None or (isinstance(now, int | float) and 0 <= now < 1e15)


#: The fields of a report that are used, and their types; all but the tables may be missing.
_SHAPE: tuple[tuple[str, Callable[[object], bool], str], ...] = (
    ("tables", _are_texts, "a list of table names"),
    ("source", _is_source, "an object with server, database and slot"),
    ("window", _is_window, "an object with a time"),
)


def _running_with(source: dict[str, str], report: Path | None, given: RelaySettings) -> str:
    if not source:
        raise UsageError(f"report {report} does not name its replication slot", "give the relay with --relay")
    slot = str(source.get("slot", ""))
    name = reconnecting(slot, str(source.get("database", "")))
    if name is not None:
        return name
    hint = "start it with 'bwtui connect', or choose the relay that sends with --relay"
    if report is not None:
        hint += "; if another machine's relay writes the topics, use --without-relay with -d, -s, -b and -r"
    elif _is_read(given):
        hint += "; if a different program reads the slot and writes the topics, use --without-relay"
    raise ConnectionFailed(
        f"no running relay uses slot {slot} of database {source.get('database', '')}", hint
    )


def _is_read(settings: RelaySettings) -> bool:
    with contextlib.closing(connect(settings.postgres)) as connection:
        state = slot_state(connection, settings.slot)
    return state is not None and state.active


def _refuse_others(name: str, given: RelaySettings, settings: RelaySettings) -> None:
    """Raise RefusedError for options that differ from the settings of the relay, which are used."""
    options = (
        ("-p/--topic-prefix", given.topic_prefix, settings.topic_prefix),
        ("--publication", given.publication, settings.publication_name),
    )
    for option, meant, own in options:
        if meant not in ("", own):
            raise RefusedError(
                f"relay {name} was started with a different {option}: {own or 'none'}, not {meant}",
                "nothing was sent; omit the option, or choose the right relay with --relay",
            )


def _of_report(told: dict[str, Any], patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tables of a report as patterns; with --table, only those that it selects."""
    chosen = filter(TableFilter(RelaySettings(tables=patterns)).passes_whole, told["tables"])
    # An empty result would select all tables.
    return tuple(map(re.escape, chosen)) or (r"(?!)",)


def _not_carried(target: RepairTarget, told: dict[str, Any], given: RelaySettings) -> list[str]:
    """Return the selected tables of a report that can't be compared because they are not in the publication.

    ``given`` has the values of --table and --exclude-table. Raises UsageError and RefusedError if no table is
    left, and the errors of `request_of`.
    """
    if not told["tables"]:
        raise UsageError(
            "the report lists no tables",
            "create it again with 'bwtui verify --database --json', or use --relay NAME without a report",
        )
    meant = list(filter(TableFilter(given).passes_whole, told["tables"]))
    if not meant:
        raise UsageError(
            "--table and --exclude-table exclude all tables of the report",
            f"the report lists {_some(told['tables'])}",
        )
    request = request_of(target.settings, target.narrower)
    known = {table.full_name for table in request.tables} | request.not_captured.keys()
    lacking = [table for table in meant if table not in known]
    if len(lacking) == len(meant):
        raise RefusedError(
            f"{_owner(target)} includes none of the tables in the report: {_some(meant)}",
            f"nothing was sent; 'bwtui status {target.relay}' lists the tables of the relay"
            if target.relay
            else "nothing was sent; check -s and --publication, or create the report again",
        )
    return lacking


def _some(tables: Sequence[str]) -> str:
    return ", ".join(tables[:3]) + (f" and {len(tables) - 3} more" if len(tables) > 3 else "")


def _owner(target: RepairTarget) -> str:
    return f"relay {target.relay}" if target.relay else f"publication {target.settings.publication_name}"


def _age_note(told: dict[str, Any]) -> str:
    made = (told.get("window") or {}).get("now_ms")
    age = "" if made is None else f" is {duration(max(time.time() - made / 1000, 0))} old;"
    report = f"the report{age}" if age else "of the report,"
    return f"{report} only its list of tables is used, and all of them are compared again"


def _checked(
    target: RepairTarget, source: dict[str, str], cluster: str, told: dict[str, Any]
) -> RepairTarget:
    meant = "the report" if told else "the options"
    owner = f"relay {target.relay}" if target.relay else "the options"
    mend = "nothing was sent; choose the right relay with --relay"
    if not target.relay:
        mend = "nothing was sent; give -d, -s and -b of the system that the report describes"
    for name, words in (("system_identifier", "server"), ("database", "database"), ("slot", "slot")):
        if source.get(name) and source[name] != target.source[name]:
            raise RefusedError(
                f"{owner} and {meant} refer to different {words}s: {target.source[name]} and {source[name]}",
                mend + (", without this report" if target.relay else ""),
            )
    if cluster and cluster != target.cluster:
        raise RefusedError(
            f"{owner} and {meant} refer to different Kafka clusters: {target.cluster} and {cluster}",
            mend,
        )
    if not told:
        return target
    given = target.narrower
    target = replace(target, narrower=replace(given, tables=_of_report(told, given.tables)))
    lacking = _not_carried(target, told, given)
    notes = [_age_note(told)]
    if lacking:
        notes.append(f"not compared, because {_owner(target)} does not include them: {_some(lacking)}")
    return replace(target, notes=notes)

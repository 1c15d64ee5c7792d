"""Determine the relay for ``bwtui repair``, and check that it is the intended one."""

import contextlib
import json
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bwtui.audit.report import AuditSummary
from bwtui.cli.inputs import relay_options
from bwtui.cli.inputs.audit_sources import (
    on_command_line,
    reconnecting,
    refuse_replaced,
    running_settings,
    without_variables,
)
from bwtui.cli.inputs.compared_tables import request_of, source_of
from bwtui.cli.inputs.librdkafka import check
from bwtui.cycles import collect_rarely
from bwtui.encode.registry import ask_registry
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError, UsageError, mutually_exclusive
from bwtui.kafka.client import client_config
from bwtui.kafka.scan import partitions
from bwtui.model.number_format import duration
from bwtui.relay.backfill.chunk_snapshot import chunk_snapshot_path
from bwtui.relay.history.slot_checkpoint import SlotCheckpointStore
from bwtui.relay.process.control import running_relays, settings_of
from bwtui.relay.process.lock import is_held
from bwtui.settings import RelaySettings
from bwtui.source.catalog import TableFilter
from bwtui.source.connection import connect
from bwtui.source.slot import slot_state
from bwtui.state_folder import relay_names, state_folder
from bwtui.verify.database import OnDifferences, verify_database

#: Keys that identify a JSON object as a report about tables.
_REPORT_KEYS = {"verdict", "question", "tables"}


@dataclass(frozen=True, slots=True)
class RepairTarget:
    """A running relay and the selected tables; with "" as its name, the settings that were given."""

    relay: str
    settings: RelaySettings
    narrower: RelaySettings
    cluster: str
    source: dict[str, str]
    #: Whether only tables count that the relay captures, not those that it lacks.
    only_captured: bool = False
    #: Notes on the report that named it.
    notes: list[str] = field(default_factory=list)

    def topics(self) -> dict[str, str]:
        """Return the topics of the selected tables. Raises UsageError and ConnectionFailed."""
        return {one.full_name: one.topic for one in request_of(self.settings, self.narrower).tables}

    @property
    def is_whole(self) -> bool:
        """Whether all tables of the relay are selected."""
        return not (self.narrower.tables or self.narrower.exclude_tables)

    def compare(
        self,
        on_differences: OnDifferences | None,
        on_phase: Callable[[str], None],
        encodings: Mapping[str, str],
    ) -> AuditSummary:
        """Compare the tables with their topics; ``encodings`` has the relay's key encodings by table.

        Raises the errors of `verify_database`.
        """
        request = request_of(
            self.settings, self.narrower, of_relay=bool(self.relay), on_differences=on_differences
        )
        if self.only_captured:
            request = replace(request, not_captured={})
        # Once a table's key has changed, even most of its keys may be ones that the relay never writes.
        topic_encodings = {
            one.topic: encodings[one.full_name] for one in request.tables if one.full_name in encodings
        }
        request = replace(request, spellings=topic_encodings)
        collect_rarely()
        return verify_database(request, ask_registry(self.settings), on_phase)


def target_of(
    report: Path | None, relay: str | None, options: dict[str, Any], *, database: bool
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
    report_data = _read(report) if report is not None else {}
    narrower = relay_options.load(options, alone=not database or relay is not None).settings()
    source: dict[str, str] = report_data.get("source") or {}
    cluster = str(report_data.get("cluster") or "")
    if relay is None and report is None:
        check(narrower)
        source = source_of(narrower)
        cluster = partitions(client_config(narrower))[0]
    name = relay or _relay_of_slot(source, report, narrower)
    settings = running_settings(name)
    with without_variables():
        target = RepairTarget(
            name, settings, narrower, partitions(client_config(settings))[0], source_of(settings)
        )
    if relay is None and report is None:
        # The publication, the prefix and all other settings are the relay's.
        _refuse_different_settings(name, narrower, settings)
        narrower = relay_options.load(options, alone=True).settings()
    return _verified(replace(target, narrower=narrower), source, cluster, report_data)


def target_without_relay(report: Path | None, options: dict[str, Any], *, database: bool) -> RepairTarget:
    """Return the target of a repair without a relay. Raises the errors of `target_of`."""
    _refuse_both(report, database=database)
    report_data = _read(report) if report is not None else {}
    loaded = relay_options.load(options)
    settings = loaded.settings()
    relay_options.check_properties(settings, loaded.property_place)
    target = RepairTarget("", settings, settings, partitions(client_config(settings))[0], source_of(settings))
    return _verified(
        target, report_data.get("source") or {}, str(report_data.get("cluster") or ""), report_data
    )


def refuse_local_relays(target: RepairTarget, topics: Collection[str]) -> None:
    """Raise RefusedError if a local running relay reads the slot, or sends to one of ``topics``."""
    slot, silent, answered = target.settings.slot, list[str](), set[str]()
    for status in running_relays(silent=silent):
        answered.add(status.name)
        sent = sorted({table.topic for table in status.tables.values()}.intersection(topics))
        database = status.database.rpartition("/")[2]
        if (status.slot, database) == (slot, target.source["database"]):
            raise _conflict_with(status.name, f"reads slot {slot}")
        if sent and partitions(client_config(settings_of(status.name)))[0] == target.cluster:
            raise _conflict_with(status.name, f"sends to topic {sent[0]}")
    for name in sorted({*silent, *filter(is_held, relay_names())} - answered):
        if name == slot or _has_read(name, slot, target.source):
            raise _conflict_with(name, "does not answer")


def _has_read(name: str, slot: str, source: dict[str, str]) -> bool:
    """Return whether a relay's folder has this database's slot recorded, or can't be read."""
    folder, identity = state_folder(name), (source["system_identifier"], source["database"], slot)
    try:
        checkpoints = SlotCheckpointStore(folder, *identity)
    except BwtuiError:
        return True
    return checkpoints.last is not None or chunk_snapshot_path(folder, identity).exists()


def _conflict_with(relay: str, activity: str) -> RefusedError:
    return RefusedError(
        f"relay {relay} runs on this machine and {activity}, so this command must not send alongside it",
        f"run 'bwtui repair --relay {relay}': that relay then sends the rows, in the right order "
        "with its stream",
    )


def _refuse_both(report: Path | None, *, database: bool) -> None:
    if report is not None and database:
        raise mutually_exclusive("--database", "a report")


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
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"report {path} can't be read: {error.strerror}",
            "give a file written by 'bwtui verify --database --json'",
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{path} is not an audit report", "give a file written by 'bwtui verify --database --json'"
        ) from error
    if not isinstance(data, dict) or not data.keys() >= _REPORT_KEYS - {"tables"}:
        raise UsageError(
            f"{path} is not an audit report", "give a file written by 'bwtui verify --database --json'"
        )
    if data["question"] == "recording":
        raise UsageError(
            f"{path} is a report on a recording, not on tables",
            "run 'bwtui replay RECORDING --only-missing REPORT' to send the missing messages",
        )
    if data["question"] != "database":
        raise UsageError(
            f"{path} is not a report on tables", "give a file written by 'bwtui verify --database --json'"
        )
    for name, is_right, expected_type in _SHAPE:
        if not is_right(data.get(name)):
            raise UsageError(
                f"report {path} is incomplete: its {name} is not {expected_type}",
                "create it again with 'bwtui verify --database --json'",
            )
    return data


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


def _relay_of_slot(source: dict[str, str], report: Path | None, settings: RelaySettings) -> str:
    if not source:
        raise UsageError(f"report {report} does not name its replication slot", "give the relay with --relay")
    slot = str(source.get("slot", ""))
    name = reconnecting(slot, str(source.get("database", "")))
    if name is not None:
        return name
    hint = "start it with 'bwtui connect', or choose the relay that sends with --relay"
    if report is not None:
        hint += "; if another machine's relay writes the topics, use --without-relay with -d, -s, -b and -r"
    elif _is_read(settings):
        hint += "; if a different program reads the slot and writes the topics, use --without-relay"
    raise ConnectionFailed(
        f"no running relay uses slot {slot} of database {source.get('database', '')}", hint
    )


def _is_read(settings: RelaySettings) -> bool:
    with contextlib.closing(connect(settings.postgres)) as connection:
        state = slot_state(connection, settings.slot)
    return state is not None and state.active


def _refuse_different_settings(name: str, requested: RelaySettings, settings: RelaySettings) -> None:
    """Raise RefusedError for options that differ from the settings of the relay, which are used."""
    options = (
        ("-p/--topic-prefix", requested.topic_prefix, settings.topic_prefix),
        ("--publication", requested.publication, settings.publication_name),
    )
    for option, expected, actual in options:
        if expected not in ("", actual):
            raise RefusedError(
                f"relay {name} was started with a different {option}: {actual or 'none'}, not {expected}",
                "nothing was sent; omit the option, or choose the right relay with --relay",
            )


def _report_tables(report_data: dict[str, Any], patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tables of a report as patterns; with --table, only those that it selects."""
    selected = filter(TableFilter(RelaySettings(tables=patterns)).passes_whole, report_data["tables"])
    # An empty result would select all tables.
    return tuple(map(re.escape, selected)) or (r"(?!)",)


def _unpublished_tables(
    target: RepairTarget, report_data: dict[str, Any], selection: RelaySettings
) -> list[str]:
    """Return the selected tables of a report that can't be compared because they are not in the publication.

    ``selection`` has the values of --table and --exclude-table. Raises UsageError and RefusedError if no
    table remains, and the errors of `request_of`.
    """
    if not report_data["tables"]:
        raise UsageError(
            "the report lists no tables",
            "create it again with 'bwtui verify --database --json', or use --relay NAME without a report",
        )
    selected = list(filter(TableFilter(selection).passes_whole, report_data["tables"]))
    if not selected:
        raise UsageError(
            "--table and --exclude-table exclude all tables of the report",
            f"the report lists {_first_names(report_data['tables'])}",
        )
    request = request_of(target.settings, target.narrower)
    available = {table.full_name for table in request.tables} | request.not_captured.keys()
    missing = [table for table in selected if table not in available]
    if len(missing) == len(selected):
        raise RefusedError(
            f"{_owner(target)} includes none of the tables in the report: {_first_names(selected)}",
            f"nothing was sent; 'bwtui status {target.relay}' lists the tables of the relay"
            if target.relay
            else "nothing was sent; check -s and --publication, or create the report again",
        )
    return missing


def _first_names(tables: Sequence[str]) -> str:
    return ", ".join(tables[:3]) + (f" and {len(tables) - 3} more" if len(tables) > 3 else "")


def _owner(target: RepairTarget) -> str:
    return f"relay {target.relay}" if target.relay else f"publication {target.settings.publication_name}"


def _age_note(report_data: dict[str, Any]) -> str:
    created_ms = (report_data.get("window") or {}).get("now_ms")
    age = "" if created_ms is None else f" is {duration(max(time.time() - created_ms / 1000, 0))} old;"
    report = f"the report{age}" if age else "of the report,"
    return f"{report} only its list of tables is used, and all of them are compared again"


def _verified(
    target: RepairTarget, source: dict[str, str], cluster: str, report_data: dict[str, Any]
) -> RepairTarget:
    expected_by = "the report" if report_data else "the options"
    owner = f"relay {target.relay}" if target.relay else "the options"
    hint = "nothing was sent; choose the right relay with --relay"
    if not target.relay:
        hint = "nothing was sent; give -d, -s and -b of the system that the report describes"
    for name, noun in (("system_identifier", "server"), ("database", "database"), ("slot", "slot")):
        if source.get(name) and source[name] != target.source[name]:
            raise RefusedError(
                f"{owner} and {expected_by} refer to different {noun}s: "
                f"{target.source[name]} and {source[name]}",
                hint + (", without this report" if target.relay else ""),
            )
    if cluster and cluster != target.cluster:
        raise RefusedError(
            f"{owner} and {expected_by} refer to different Kafka clusters: {target.cluster} and {cluster}",
            hint,
        )
    if not report_data:
        return target
    selection = target.narrower
    target = replace(
        target, narrower=replace(selection, tables=_report_tables(report_data, selection.tables))
    )
    missing = _unpublished_tables(target, report_data, selection)
    notes = [_age_note(report_data)]
    if missing:
        notes.append(f"not compared, because {_owner(target)} does not include them: {_first_names(missing)}")
    return replace(target, notes=notes)

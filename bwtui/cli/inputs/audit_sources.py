"""What ``verify``, ``repair`` and the screens read from: a running relay's settings, registry and recordings.

What would make a long ``bwtui verify`` fail at its end, or run for nothing, is rejected early.
"""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bwtui.cli.inputs.relay_options import status_of, typed_options
from bwtui.errors import BwtuiError, RefusedError, UsageError
from bwtui.settings import OPTIONS

if TYPE_CHECKING:
    from bwtui.settings import RelaySettings
    from bwtui.tui.audit.records import SingleRecordReader
    from bwtui.verify.audit_inputs import OpenedRecording


def running_settings(name: str) -> "RelaySettings":
    """Return the settings of relay ``name``. Raises ConnectionFailed; UsageError if it only records."""
    from bwtui.relay.process.control import settings_of

    # Requested first: if the relay has ended, this error says how.
    settings = settings_of(status_of(name).name)
    if settings.record_only:
        raise UsageError(
            f"relay {name} only records, so it has no topics",
            "choose a relay that was started with 'bwtui connect'",
        )
    return settings


def reconnecting(slot: str, database: str) -> str | None:
    """Return the name of the running relay with this slot, although nothing reads the slot at present."""
    from bwtui.relay.process.control import running_relays

    for status in running_relays():
        # It may address the server by another name.
        if status.slot == slot and status.database.rpartition("/")[2] == database:
            return status.name
    return None


@contextlib.contextmanager
def without_variables() -> Iterator[None]:
    """Remove libpq's variables meanwhile: the relay had its own, and its settings include their values."""
    taken = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PG")}
    try:
        yield
    finally:
        os.environ.update(taken)


def records_by(settings: "RelaySettings") -> "SingleRecordReader":
    """Return a reader of the Kafka and the registry in ``settings``."""
    from bwtui.encode.registry import ask_registry
    from bwtui.kafka.client import client_config
    from bwtui.tui.audit.records import SingleRecordReader

    return SingleRecordReader(client_config(settings), ask_registry(settings))


def records_of(relay: str) -> "SingleRecordReader":
    """Return a reader of the topics of the running relay ``relay``. Raises ConnectionFailed."""
    from bwtui.relay.process.control import settings_of

    return records_by(settings_of(relay))


#: Options that apply to only one of the three kinds of audit; the others would silently ignore them.
_OF_DATABASE = ("postgres", "slot", "publication", "topic_prefix", "table", "exclude_table", "relay")
_OF_ONE_RECORDING = ("deep", "work_folder")
_WHOLE = "an audit covers the whole recording and the topics that it was sent to"
#: Options whose values come from the running relay itself; a subset of its tables may be selected.
_OF_RELAY = {option.name.replace("-", "_") for option in OPTIONS} | {"profile"}
# The engine of an audit is chosen independently of the relay.
_OF_RELAY -= {"table", "exclude_table", "spark_master"}


def refuse_unused(recordings: tuple[Path, ...], database: bool) -> None:
    """Raise UsageError for an option that does not apply to this kind of audit."""
    unused = [] if database else [*_OF_DATABASE]
    unused += [] if len(recordings) == 1 else [*_OF_ONE_RECORDING]
    unused += ["spark_master"] if database else []
    for name, option in on_command_line():
        if name not in unused:
            continue
        if database:
            raise UsageError(f"{option} can't be used with --database", "omit it")
        hint = "a comparison covers both recordings completely" if len(recordings) == 2 else _WHOLE
        if name in _OF_DATABASE:
            hint += f"; {option} is an option of --database"
        audit_kind = (
            "in the audit of a recording" if len(recordings) == 1 else "in a comparison of recordings"
        )
        raise UsageError(f"{option} can't be used {audit_kind}", hint)


def refuse_replaced(*more: str) -> None:
    """Raise UsageError for an option whose value comes from a running relay, and for ``more``."""
    for name, option in on_command_line():
        if name in _OF_RELAY or name in more:
            raise UsageError(f"{option} can't be used with --relay", "the settings of the relay apply")


def on_command_line() -> Iterator[tuple[str, str]]:
    """Yield the name of every option that was given, and the option as it was typed."""
    context = click.get_current_context()
    typed = typed_options()
    for parameter in context.command.params:
        name = parameter.name or ""
        if context.get_parameter_source(name) == click.core.ParameterSource.COMMANDLINE:
            yield name, typed.get(name.replace("_", "-"), max(parameter.opts, key=len))


def unwritable(html: Path, reason: str | None) -> BwtuiError:
    """Return the error for a page that can't be written."""
    return BwtuiError(f"{html} can't be written: {reason}", "choose a different file with --html")


def refuse_unwritable(html: Path) -> None:
    """Raise BwtuiError if the page could not be written; the check creates nothing."""
    folder, code = html.parent, 0
    try:
        if html.is_dir():
            code = errno.EISDIR
        elif not folder.is_dir():
            code = errno.ENOTDIR if folder.exists() else errno.ENOENT
        elif not os.access(html if html.exists() else folder, os.W_OK):
            code = errno.EACCES
    except OSError as error:
        raise unwritable(html, error.strerror) from error
    if code:
        raise unwritable(html, os.strerror(code))


def open_all(folders: Sequence[Path]) -> "list[OpenedRecording]":
    """Open recordings, all of them before any is processed.

    Raises UsageError, DamagedRecording or StateFailed; RefusedError if one is empty, or has no finished
    segment yet.
    """
    from bwtui.verify.audit_inputs import open_recorded

    opened = []
    for folder in folders:
        opened.append(open_recorded(folder))
        _refuse_empty(opened[-1])
    return opened


def _refuse_empty(recorded: "OpenedRecording") -> None:
    sealed, changes = recorded.sealed, recorded.facts.changes
    if sealed is None:
        _refuse_unfinished(recorded.folder)
    # The changes of later segments are counted when these are sealed.
    if changes or (sealed is not None and sealed.behind):
        return
    raise RefusedError(
        f"recording {recorded.folder} is empty: nothing changed while it was recorded",
        "record while the database changes, then verify again",
    )


def _refuse_unfinished(folder: Path) -> None:
    from bwtui.recording.folder import existing_segments
    from bwtui.seal.task import SealPlan, finished_segments

    if not finished_segments(folder, existing_segments(folder), SealPlan()):
        raise RefusedError(
            f"recording {folder} can't be verified yet: it is still being written, and no segment "
            "is complete",
            "stop the relay, or wait: a segment is complete at 64 MiB, or after five minutes",
        )

"""Export changes of a recording as JSON lines or Parquet, to stdout or to a file that appears complete."""

import contextlib
import itertools
import json
import os
import sys
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO

from bwtui.durable_files import open_private, sync
from bwtui.errors import BwtuiError, UsageError
from bwtui.file_errors import file_failed
from bwtui.pgoutput.messages import Field, UnchangedToast
from bwtui.recording.change import Change, SentMessage
from bwtui.recording.query_language import (
    ChangeSelection,
    UnknownValue,
    key_is_old,
    sent_value,
    unchanged_columns,
)
from bwtui.recording.view import OnProgress, RecordingView

# The base class of the export formats' writers.


class Writer:
    """Writes changes into a file that the caller opened; a writer without a buffer needs only `write`."""

    def write(self, change: Change) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """Write what is buffered, and the file's ending."""

    def abandon(self) -> None:
        """Release the file, which is about to be discarded."""


# Export changes as JSON, one object per line (see docs/export.md). Values are exact.

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class JsonWriter(Writer):
    """Writes one line per change, with exact values."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

    def write(self, change: Change) -> None:
        self._file.write(self._encode(change_object(change)).encode() + b"\n")


def change_object(change: Change) -> dict[str, Any]:
    """Return the JSON object of a change."""
    return {
        "position": change.position,
        "pass": change.pass_number,
        "lsn": change.lsn_text,
        "ordinal": change.ordinal,
        "xid": change.xid,
        "op": change.operation,
        "schema": change.relation.namespace,
        "table": change.relation.name,
        "tables": list(change.tables),
        "commit_time": time_text(change.commit_time),
        "received": time_text(change.received),
        "key": _key(change),
        "before": _row(change, old=True),
        "after": _row(change, old=False),
        "unchanged": unchanged_columns(change),
        "filled": list(change.filled),
        "without": change.without,
        "is_repeat": change.is_repeat,
        "messages": [_message(message) for message in change.messages],
    }


def time_text(micros: int) -> str:
    """Return a time as ISO 8601 in UTC, with microseconds."""
    moment = _EPOCH + timedelta(microseconds=micros)
    return f"{moment.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _key(change: Change) -> dict[str, Any] | None:
    row = _row(change, old=key_is_old(change, None))
    if row is None or not change.key_columns:
        return None
    return {name: row[name] for name in change.key_columns if name in row}


def _row(change: Change, *, old: bool) -> dict[str, Any] | None:
    if (change.before if old else change.after) is None:
        return None
    row = {}
    for index, column in enumerate(change.relation.columns):
        value = sent_value(change, index, old=old)
        if not isinstance(value, UnknownValue | UnchangedToast):
            row[column.name] = exact(value)
    return row


def exact(value: Field) -> Any:
    """Return a value's text; bytes that are not UTF-8 become ``{"hex": …}``, which no text value can be."""
    if value is None:
        return None
    assert isinstance(value, bytes)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}


def _message(message: SentMessage) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "state": message.state,
        "key_schema_id": message.key_schema_id,
        "value_schema_id": message.value_schema_id,
        "key": _base64(message.key),
        "value": _base64(message.value),
        "headers": [[name, _base64(value)] for name, value in message.headers],
    }


def _base64(raw: bytes | None) -> str | None:
    return None if raw is None else b64encode(raw).decode()


# Export a recording: pass the selected changes to a format's writer, holding one batch in memory.

_PROGRESS_EVERY = 1024


def export(
    view: RecordingView, selection: ChangeSelection, writer: Writer, on_progress: OnProgress | None = None
) -> int:
    """Write the selected changes of ``view`` with ``writer`` and return their number.

    Raises DamagedRecording.
    """
    count = 0
    try:
        for change in _read(view, selection, on_progress):
            if selection.takes(change):
                writer.write(change)
                count += 1
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    return count


def _read(
    view: RecordingView, selection: ChangeSelection, on_progress: OnProgress | None
) -> Iterator[Change]:
    # Earlier positions commit before ``from_lsn``; later ones need a check, since a new pass may restart
    # lower.
    start = 0 if selection.from_lsn is None else view.at_lsn(selection.from_lsn)
    for change in view.changes(start):
        if on_progress is not None and change.position % _PROGRESS_EVERY == 0:
            on_progress(change.position, view.length)
        yield change
    if on_progress is not None:
        on_progress(view.length, view.length)


# The target of an export: stdout, or a new file that appears only once it is complete.

_NUMBERS = itertools.count(1)


def target_path(output: str, name: str, suffix: str) -> Path:
    """Return the file that ``output`` names: itself, or in a folder a file named after the recording."""
    path = Path(output)
    if path.is_dir() or output.endswith("/"):
        return path / f"{Path(name).name or 'recording'}.{suffix}"
    return path


@contextlib.contextmanager
def opened(path: Path | None, *, force: bool) -> Iterator[BinaryIO]:
    """Open ``path``, or stdout, for writing; a file gets its name when the block ends without an error.

    Raises UsageError when the file exists and ``force`` is not set, StateFailed when it can't be written.
    """
    if path is None:
        with _explained("the output"):
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
    elif path.exists() and not path.is_file():
        # A pipe or a device can't be replaced atomically.
        with _explained(str(path)), path.open("wb") as file:
            yield file
    else:
        if path.exists() and not force:
            raise _exists(path)
        with _explained(str(path)):
            yield from _new_file(path, force)


def _new_file(path: Path, force: bool) -> Iterator[BinaryIO]:
    # Another export of this process may be writing to the same path.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{next(_NUMBERS)}.partial")
    try:
        # Other users must not read the rows, as in the recording itself.
        with open(temporary, "xb", opener=open_private) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if force:
            temporary.replace(path)
        else:
            _publish(temporary, path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _publish(temporary: Path, path: Path) -> None:
    """Give the file its name, unless another process has taken it in the meantime."""
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise _exists(path) from None
    except OSError:
        # Not every file system has hard links.
        if path.exists():
            raise _exists(path) from None
        temporary.rename(path)


def _exists(path: Path) -> BwtuiError:
    return UsageError(f"{path} already exists", "choose a different file, or overwrite it with --force")


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"can't write {name}: {error.strerror}", "create the folder first") from error
    except OSError as error:
        raise file_failed(f"can't write {name}", error, name=name) from error

"""The target of an export: stdout, or a new file that appears only once it is complete."""

import contextlib
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from bwtui.durable_files import open_private, sync
from bwtui.errors import BwtuiError, UsageError
from bwtui.file_errors import file_failed

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
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"can't write {what}: {error.strerror}", "create the folder first") from error
    except OSError as error:
        raise file_failed(f"can't write {what}", error, name=what) from error

"""Seal a recording: convert its journal to Parquet files that any Spark or DuckDB can read.

The seal is a Spark job whose tasks are runs of consecutive segments. Each task decodes its segments and
writes its files itself (ADR 23), in its own folder under ``sealing/``; that folder gets its final name once
everything in it is durable and was read back. After all tasks, the files move to ``sealed/`` and the manifest
is written. A run resumes a killed one: it keeps complete tasks and repeats all others.
"""

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from bwtui.durable_files import locked, private_parent, write_durably
from bwtui.errors import DamagedRecording, RefusedError, StateFailed
from bwtui.recording.folder import existing_segments
from bwtui.recording.sealed import MANIFEST, SEALED, SEALING, Manifest, SealedFile, check_all, check_sizes
from bwtui.seal.task import (
    SCHEMAS,
    TASK_BYTES,
    SealedPart,
    SealPlan,
    SealTask,
    finished_segments,
    make_plan,
    read_part,
    run,
    sync_folders,
    write_table,
)
from bwtui.spark.task_progress import watching

#: Called with the number of sealed changes and the total.
OnProgress = Callable[[int, int], None]
#: Opens a Spark session, or returns None to run the tasks in this process.
OpenSession = Callable[[], contextlib.AbstractContextManager[Any]]
_LOCK = "seal.lock"


@dataclass(frozen=True, slots=True)
class SealOutcome:
    """The result of a seal; ``changes`` and ``seconds`` are those of this run."""

    manifest: Manifest
    changes: int
    segments: int
    #: Number of changes that an earlier, unfinished run had sealed already.
    resumed: int
    #: Number of segments that were skipped because the recording is being written.
    skipped_segments: int
    seconds: float

    @property
    def was_sealed(self) -> bool:
        """Return whether there was nothing to do."""
        return not self.segments


def seal(
    folder: str | Path,
    open_session: OpenSession,
    on_progress: OnProgress | None = None,
    *,
    cores: int | None = None,
    task_bytes: int = TASK_BYTES,
) -> SealOutcome:
    """Seal what is not sealed yet. Spark is started only if there is something to do.

    ``cores`` is the minimum number of tasks, by default the number of this machine's cores. Raises
    UsageError, RefusedError, DamagedRecording, StateFailed, and what `spark_session` raises.
    """
    folder = Path(os.path.realpath(folder))
    # Check this before anything is created for the work.
    finished_segments(folder, existing_segments(folder), SealPlan())
    begin = time.monotonic()
    in_use = RefusedError(f"another process is sealing the recording {folder}", "wait until it has ended")
    # The lock excludes other seals of the recording, but not the relay that writes the journal.
    with _plain_os_errors(folder), locked(folder / _LOCK, in_use):
        work = _private_folder(folder / SEALING)
        plan = make_plan(folder, work, cores or os.cpu_count() or 1, task_bytes)
        resumed = sum(segment.changes for part in plan.parts.values() for segment in part.segments)
        if plan.is_empty:
            shutil.rmtree(work.parent)
            if plan.manifest is None:
                raise RefusedError(
                    f"{folder.name} can't be sealed yet: it is being written, and has no complete segment",
                    "stop the relay, or wait: a segment ends at 64 MiB, or when it is five minutes old",
                )
            check_sizes(folder / SEALED, plan.manifest.files)
            check_all(folder / SEALED, plan.manifest.files)
            return SealOutcome(plan.manifest, 0, 0, 0, plan.skipped_segments, time.monotonic() - begin)
        before = len(plan.manifest.segments) if plan.manifest else 0
        if plan.manifest is not None:
            check_sizes(folder / SEALED, plan.manifest.files)
        if plan.tasks:
            with open_session() as spark, _watched(plan, work, on_progress):
                _run(spark, plan.tasks)
        manifest = _commit(folder, work, plan)
        seconds = time.monotonic() - begin
        segments = len(manifest.segments) - before
        return SealOutcome(manifest, plan.changes, segments, resumed, plan.skipped_segments, seconds)


def _private_folder(sealing: Path) -> Path:
    """Return a folder for this run's work, with the results that a killed run left in its own.

    Tasks of a killed run may continue for a moment: renaming their folder makes them fail.
    """
    work = sealing / f"{secrets.token_hex(4)}.run"
    sealing.mkdir(mode=0o700, exist_ok=True)
    for leftover in list(sealing.iterdir()):
        if leftover.suffix == ".run" and not work.exists():
            leftover.rename(work)
        elif leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
    work.mkdir(mode=0o700, exist_ok=True)
    return work


def _run_tasks(tasks: Iterator[SealTask]) -> Iterator[int]:
    for task in tasks:
        try:
            yield run(task)
        except DamagedRecording as error:
            # Spark transports an error by the name of its class, which may be a subclass here.
            raise DamagedRecording(error.message, error.hint) from error
        except OSError as error:
            raise _refused(Path(task.folder), error) from error


def _run(spark: Any, tasks: list[SealTask]) -> None:
    if spark is None:
        list(_run_tasks(iter(tasks)))
        return
    # Import PySpark only when it is needed.
    from bwtui.spark.failure import in_task

    spark.sparkContext.parallelize(tasks, len(tasks)).mapPartitions(in_task(_run_tasks)).collect()


# -- publication of sealed files -----------------------------------------------------------------------------


def _commit(folder: Path, work: Path, plan: SealPlan) -> Manifest:
    """Move all parts' files to their final places, and write the manifest; this may safely be repeated."""
    parts = dict(plan.parts)
    for task in plan.tasks:
        parts[task.name] = read_part(work / task.name)
    manifest = plan.manifest or Manifest("")
    sealed = folder / SEALED
    sealed.mkdir(mode=0o700, exist_ok=True)
    for name, part in sorted(parts.items()):
        _move(work / name, sealed, part.files)
        manifest.segments += part.segments
        manifest.files += part.files
        manifest.recording, manifest.source = part.recording, part.source
    new = _new_schemas(manifest, [parts[name] for name in sorted(parts)])
    if new or not any(file.kind == "schemas" for file in manifest.files):
        manifest.files.append(_schemas_file(sealed, f"schemas/{min(parts)[:8]}.parquet", new))
    sync_folders(sealed)
    check_all(sealed, manifest.files)
    write_durably(sealed / MANIFEST, manifest.to_text())
    _remove_strangers(sealed, manifest)
    shutil.rmtree(work.parent)
    return manifest


def _move(source: Path, sealed: Path, files: list[SealedFile]) -> None:
    for file in files:
        here = source / file.path
        if here.exists():
            private_parent(sealed / file.path)
            here.replace(sealed / file.path)


def _new_schemas(manifest: Manifest, parts: list[SealedPart]) -> list[dict[str, Any]]:
    new = []
    for part in parts:
        for schema in part.schemas:
            identity = (schema["subject"], schema["id"])
            if identity not in manifest.schemas:
                manifest.schemas.append(identity)
                new.append(schema)
    return new


def _schemas_file(sealed: Path, relative: str, schemas: list[dict[str, Any]]) -> SealedFile:
    rows = [{name: one[name] for name in SCHEMAS.names} for one in schemas]
    return write_table(sealed, relative, "schemas", pa.Table.from_pylist(rows, schema=SCHEMAS))


def _remove_strangers(sealed: Path, manifest: Manifest) -> None:
    """Remove the leftovers of a killed run, so that a reader of all Parquet files reads no row twice."""
    listed = {sealed / file.path for file in manifest.files}
    for path in sealed.rglob("*.parquet"):
        if path not in listed:
            path.unlink()


# -- errors and progress -------------------------------------------------------------------------------------


@contextlib.contextmanager
def _plain_os_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _refused(folder, error) from error


def _refused(folder: Path, error: OSError) -> StateFailed:
    return StateFailed(
        f"the recording {folder} can't be sealed: {error.strerror or error}",
        "fix this and run 'bwtui recording seal' again; it resumes where it stopped",
    )


@contextlib.contextmanager
def _watched(plan: SealPlan, work: Path, on_progress: OnProgress | None) -> Iterator[None]:
    """Report the tasks' progress, which they record in ``work``."""
    if on_progress is None:
        yield
        return
    finished: dict[str, int] = {}
    with watching(lambda: on_progress(_progress(plan, work, finished), plan.changes)):
        yield
    on_progress(plan.changes, plan.changes)


def _progress(plan: SealPlan, work: Path, finished: dict[str, int]) -> int:
    done = 0
    for task in plan.tasks:
        if task.name not in finished:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                finished[task.name] = sum(one.changes for one in read_part(work / task.name).segments)
        if task.name in finished:
            done += finished[task.name]
        else:
            with contextlib.suppress(OSError, ValueError):
                done += int((work / f"{task.name}.progress").read_text())
    return done

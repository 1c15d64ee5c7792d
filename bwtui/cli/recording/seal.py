"""``bwtui recording seal``: convert a recording to Parquet, for Spark, DuckDB and the audit."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.inputs.relay_options import json_option
from bwtui.cli.recording.progress import bar
from bwtui.console import say, say_json
from bwtui.model.number_format import plural

if TYPE_CHECKING:
    from bwtui.seal.sealing import SealOutcome

_EPILOG = """\b
Examples:
  bwtui recording seal recordings/shop
  duckdb -c "select op, count(*) from 'recordings/shop/sealed/changes/**/*.parquet' group by op"

\b
Sealing again adds later changes. A new run continues an interrupted one.
docs/recording-format.md describes the files. Exit code 6: the recording is damaged or unfinished.
"""


@click.command(epilog=_EPILOG)
@click.argument("recording", type=click.Path(path_type=Path))
@click.option(
    "--spark-master",
    metavar="MASTER",
    default="local[*]",
    show_default=True,
    help="Spark master; on a cluster, all workers must have access to the recording.",
)
@json_option("Print the result as a JSON object.")
def seal(recording: Path, spark_master: str, as_json: bool) -> None:
    """Convert RECORDING's journal to Parquet files with a manifest; the journal is not changed."""
    from bwtui.seal.sealing import seal as run
    from bwtui.spark.session import check_master, spark_session

    check_master(spark_master)

    def open_session() -> Any:
        return spark_session(spark_master, "bwtui recording seal", memory="512m")

    with bar("sealing", unit="changes") as on_progress:
        outcome = run(recording, open_session, on_progress)
    if as_json:
        say_json(to_json(outcome))
    else:
        say(line(outcome))


def line(outcome: "SealOutcome") -> str:
    """Return the result of a run as text."""
    manifest = outcome.manifest
    files = f"{plural(len(manifest.files), 'file')}, {manifest.bytes:,} bytes"
    sealed = f"{plural(manifest.changes, 'change')} {'is' if manifest.changes == 1 else 'are'} sealed"
    skipped = (
        f"; {outcome.skipped_segments} at the end skipped: still being written"
        if outcome.skipped_segments
        else ""
    )
    if outcome.was_sealed:
        files += ", all checksums match"
        return f"nothing to do: {sealed}, {files}{skipped}"
    resumed = f", {outcome.resumed:,} of an earlier run" if outcome.resumed else ""
    rate = f" ({outcome.changes / outcome.seconds:,.0f} changes/s)" if outcome.changes else ""
    return (
        f"sealed {plural(outcome.changes, 'change')} of {plural(outcome.segments, 'segment')}{resumed} in "
        f"{outcome.seconds:.1f} s{rate}; {sealed}, {files}{skipped}"
    )


def to_json(outcome: "SealOutcome") -> dict[str, Any]:
    """Return the result for a program."""
    manifest = outcome.manifest
    return {
        "sealed_now": outcome.changes,
        "resumed": outcome.resumed,
        "segments_now": outcome.segments,
        "segments_left": outcome.skipped_segments,
        "seconds": round(outcome.seconds, 3),
        "changes": manifest.changes,
        "rows": manifest.rows,
        "segments": len(manifest.segments),
        "files": len(manifest.files),
        "bytes": manifest.bytes,
    }

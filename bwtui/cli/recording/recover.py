"""``bwtui recording recover``: finish a recording that a crash has left unfinished."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bwtui.cli.inputs.relay_options import json_option
from bwtui.console import say, say_json
from bwtui.model.lsn import format_lsn
from bwtui.model.number_format import plural

if TYPE_CHECKING:
    from bwtui.recording.recover import RecoveryResult

_EPILOG = """\b
Examples:
  bwtui recording recover recordings/shop
  bwtui recording recover recordings/shop --force

\b
A relay that continues a recording recovers it automatically; run this command only for
a recording that no relay continues. It cuts off data that a crash kept from reaching
the disk. The relay never confirmed such data, and records it again. Data that reached
the disk and is damaged now is left unchanged (exit code 6). With --force, an unfinished
segment is cut at the damage, a finished one never, and a missing segment after the last
one counts as empty. At the end, the command checks the whole recording, as 'bwtui
recording check' does.
"""


@click.command(epilog=_EPILOG)
@click.argument("recording", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Also cut at damage, and lose everything recorded after it.")
@json_option("Print a JSON list with the result for each unfinished segment.")
def recover(recording: Path, force: bool, as_json: bool) -> None:
    """Cut off what a crash left incomplete at the end of RECORDING, and finish it."""
    from bwtui.cli.recording.check import damage_lines, error_of
    from bwtui.cli.recording.progress import bar
    from bwtui.recording.check import check
    from bwtui.recording.folder import segments
    from bwtui.recording.recover import recover as finish

    finished = finish(recording, force=force)
    if as_json:
        say_json([_to_json(one) for one in finished])
    else:
        for one in finished:
            say(_line(one))
        if not finished:
            say("nothing was cut: no segment is open")
    if not segments(recording):
        return
    # Damage in other segments is reported, and left as it is.
    with bar("checking") as on_progress:
        checked = check(recording, on_progress)
    if not as_json:
        say(*damage_lines(checked))
    error = error_of(recording, checked)
    if error is not None:
        raise error


def _line(one: "RecoveryResult") -> str:
    cut = f", cut {one.cut:,} bytes ({one.reason})" if one.cut else ", cut nothing"
    if not one.segment and not one.cut:
        return f"{one.file}: kept nothing ({one.reason})"
    if not one.segment:
        return f"{one.file}: kept nothing{cut}"
    last = f" up to {format_lsn(one.last_lsn)}" if one.last_lsn else ""
    part = f", the last, at {format_lsn(one.open_lsn)}, in part" if one.open_lsn else ""
    return (
        f"{one.segment}: kept {one.kept:,} bytes, {plural(one.changes, 'change')} in "
        f"{plural(one.transactions, 'transaction')}{last}{part}{cut}"
    )


def _to_json(one: "RecoveryResult") -> dict[str, Any]:
    names = ("file", "segment", "kept", "cut", "reason", "changes", "transactions")
    return {
        **{name: getattr(one, name) for name in names},
        "last_lsn": format_lsn(one.last_lsn),
        "open_lsn": format_lsn(one.open_lsn),
    }

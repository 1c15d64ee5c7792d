"""Make the README's screenshots of an audit: a recording is verified against the services that run.

Run as ``.venv/bin/python docs/screenshots/audit.py RECORDING -b BROKER -r URL [--png FOLDER]``. The pictures
show whatever that audit finds, so plant something.
"""

import argparse
import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

from textual.pilot import Pilot

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER.parent.parent), str(FOLDER)]

from make import to_png  # noqa: E402

from bwtui.cli.open import connections  # noqa: E402
from bwtui.recording.reader import open_recording  # noqa: E402
from bwtui.tui.audit.session import RecordingAuditSession  # noqa: E402
from bwtui.tui.recording_app import RecordingApp  # noqa: E402
from bwtui.tui.screens.dialogs import Ending  # noqa: E402
from bwtui.tui.screens.jobs import JobScreen  # noqa: E402
from bwtui.tui.sources.model import ViewSettings  # noqa: E402
from bwtui.tui.sources.recorded_model import RecordingSource  # noqa: E402

#: File name → terminal.
SIZES = {"audit-progress": (120, 34), "audit-report": (160, 40), "audit-sides": (130, 34)}
#: For looking at, not for the README.
MORE = {"audit-report-small": (80, 24), "audit-sides-small": (80, 24), "audit-report-large": (200, 60)}


async def pictures(folder: Path, broker: str, registry: str) -> dict[str, str]:
    """Verify, and return the pictures as SVG."""
    given = {"broker": broker, "schema_registry": registry, "kafka_config": (), "profile": None}
    view = open_recording(folder)
    source = RecordingSource(view, lambda: open_recording(folder))
    audit = RecordingAuditSession(folder, connections(given, broker, registry))
    app = RecordingApp(source, ViewSettings(rate=10), audit=audit)
    found: dict[str, str] = {}
    async with app.run_test(size=SIZES["audit-progress"]) as pilot:

        async def shoot(name: str) -> None:
            for scene, size in (SIZES | MORE).items():
                if scene.startswith(name):
                    await pilot.resize_terminal(*size)
                    await _watch(pilot, lambda: False, 1.0)
                    found[scene] = app.export_screenshot(title="bwtui")

        await _watch(pilot, lambda: False, 3.0)
        await pilot.press("2", "v", "enter")
        await _watch(pilot, lambda: _share(audit) > 0.4)
        # At once: it does not stay so for long.
        await _watch(pilot, lambda: False, 0.3)
        found["audit-progress"] = app.export_screenshot(title="bwtui")
        await _watch(pilot, lambda: not isinstance(app.screen, JobScreen))
        await pilot.resize_terminal(*SIZES["audit-report"])
        await _watch(pilot, lambda: False, 1.0)
        place = _telling(audit)
        await pilot.press("enter", *["down"] * place)
        await shoot("audit-report")
        await pilot.press("enter")
        await _watch(pilot, lambda: False, 3.0)
        await shoot("audit-sides")
    return found


def _telling(audit: RecordingAuditSession) -> int:
    """Return which finding has most to show: one with a value on both sides, or any with fields."""
    found = list(enumerate(audit.report.findings)) if audit.report is not None else []
    both = [n for n, one in found if any(field.get("sent") and field.get("kafka") for field in one.fields)]
    return next(iter(both + [n for n, one in found if one.fields]), 0)


def _share(audit: RecordingAuditSession) -> float:
    """How much of both sides is read."""
    progress = audit.job.child.progress if audit.job is not None else None
    is_kafka = progress is not None and progress.now is not None and "and Kafka" in progress.now.name
    return (progress.share or 0.0) if is_kafka and progress is not None else 0.0


async def _watch(pilot: Pilot[Ending], done: Callable[[], bool], seconds: float = 600.0) -> None:
    """Let the app work until something holds, or for a while: its clock is the real one."""
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end and not done():
        await pilot.pause(0.1)


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recording", type=Path)
    parser.add_argument("-b", "--broker", required=True)
    parser.add_argument("-r", "--registry", required=True)
    parser.add_argument("--png", type=Path, help="a folder for PNG files as well")
    options = parser.parse_args()
    for scene, svg in asyncio.run(pictures(options.recording, options.broker, options.registry)).items():
        if scene in SIZES:
            (FOLDER / f"{scene}.svg").write_text(svg)
        if options.png:
            to_png(svg, options.png / f"{scene}.png")
        print(scene)


if __name__ == "__main__":
    main()

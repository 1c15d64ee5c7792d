"""Make the pictures of docs/tour.md and of the README from a running relay.

With ``bwtui demo --headless --seconds 600 --record DIR`` running beside it:
``.venv/bin/python docs/screenshots/live.py [--png FOLDER] [NAME [SCENE …]]``. The pictures show whatever that
relay does at the moment. Two consumer groups read meanwhile: "search" keeps up, "reporting" has stopped.
"""

import argparse
import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from textual.pilot import Pilot

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER.parent.parent), str(FOLDER)]

from make import even, to_png  # noqa: E402

from bwtui.cli.inputs.audit_sources import records_of  # noqa: E402
from bwtui.model.status import Status  # noqa: E402
from bwtui.relay.process.control import ControlClient, request  # noqa: E402
from bwtui.tui.app import RelayApp  # noqa: E402
from bwtui.tui.audit.session import RelayAuditSession  # noqa: E402
from bwtui.tui.screens.dialogs import Ending  # noqa: E402
from bwtui.tui.sources.relay_model import RelayModel  # noqa: E402

MEDIUM, WIDE = (130, 38), (160, 45)
#: Seconds of history that a picture of the overview should have.
HISTORY = 90.0
#: File name → terminal, and the keys that lead to the scene.
SCENES: dict[str, tuple[tuple[int, int], tuple[str, ...]]] = {
    "live-overview": (WIDE, ()),
    "live-journey": (WIDE, ("2", "slash", *"update.*orders", "enter", "up", "up", "x")),
    "live-changes": (MEDIUM, ("2", "slash", *"update.*orders", "enter", "up", "up")),
    "live-transactions": (MEDIUM, ("0",)),
    "live-registry": (MEDIUM, ("3", "down", "down")),
    "live-table": (MEDIUM, ("down", "down", "enter")),
    "live-errors": ((130, 24), ("4",)),
    "live-slots": (MEDIUM, ("6",)),
    "live-consumers": (MEDIUM, ("7",)),
    "live-log": (MEDIUM, ("8",)),
    "live-settings": (MEDIUM, ("9",)),
    # Beside it: bwtui snapshot of two tables, one with --where.
    "live-requests": (MEDIUM, ("b",)),
}


@contextmanager
def readers(name: str) -> Iterator[None]:
    """Let two groups read the relay's topics during the block, one of which stops at once."""
    status = Status.from_json(request(name, {"request": "status"}))
    topics = [table.topic for table in status.tables.values()]
    stop = threading.Event()
    server = {"bootstrap.servers": status.broker}
    stopped = Consumer({**server, "group.id": "reporting"})
    stopped.commit(offsets=[TopicPartition(topics[0], 0, 1)], asynchronous=False)
    stopped.close()

    def read() -> None:
        consumer = Consumer({**server, "group.id": "search", "auto.offset.reset": "latest"})
        consumer.subscribe(topics)
        while not stop.is_set():
            if consumer.consume(10_000, 0.5):
                consumer.commit(asynchronous=False)
        consumer.close()

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


async def picture(name: str, scene: str) -> str:
    """Return a scene of the relay called ``name`` as SVG."""
    size, keys = SCENES[scene]
    app = RelayApp(RelayModel(ControlClient(name)))
    app.audit = RelayAuditSession(name, lambda: records_of(name))
    async with app.run_test(size=size) as pilot:
        await _watch(pilot, HISTORY if not keys else 6.0)
        await pilot.press(*keys)
        await _watch(pilot, 6.0)
        return even(app.export_screenshot(title="bwtui"))


async def _watch(pilot: Pilot[Ending], seconds: float) -> None:
    """Let the app sample for a while: its clock is the real one."""
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        await pilot.pause(0.1)


def main() -> None:
    """Make all scenes, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--png", type=Path, help="a folder for PNG files as well")
    parser.add_argument("name", nargs="?", default="demo")
    parser.add_argument("scenes", nargs="*", help="all when none is named")
    options = parser.parse_args()
    with readers(options.name):
        for scene in options.scenes or SCENES:
            svg = asyncio.run(picture(options.name, scene))
            (FOLDER / f"{scene}.svg").write_text(svg)
            if options.png:
                to_png(svg, options.png / f"{scene}.png")
            print(scene)


if __name__ == "__main__":
    main()

"""An honest relay is killed and restarted while its recording is audited repeatedly: no audit finds anything.

``BWTUI_AUDITED_KILLS=50`` runs longer; ``BWTUI_SEED`` repeats the moments of the kills.
"""

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from bwtui.errors import DamagedRecording, UsageError
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.verify import recording as verify
from tests.faults.recordings import size
from tests.faults.relays import Relay, wait_for
from tests.faults.writer import Writer, create_tables

pytestmark = pytest.mark.services

KILLS = int(os.environ.get("BWTUI_AUDITED_KILLS", "3"))
SEED = int(os.environ.get("BWTUI_SEED") or random.getrandbits(32))
ROWS = 200
#: Maximum growth of the recording before a kill, and maximum size of a segment, in bytes.
GROWTH, SEGMENT_BYTES = 60_000, 15_000


class Kills:
    """Starts and kills the relay in a separate thread until the last run has caught up."""

    def __init__(self, relay: Relay, folder: Path) -> None:
        self._relay = relay
        self._folder = folder
        self._chance = random.Random(SEED)
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Kills":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    @property
    def go_on(self) -> bool:
        """Return whether more runs will follow."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            for _ in range(KILLS):
                self._relay.start()
                self._wait(self._chance.randrange(SEGMENT_BYTES, GROWTH))
                self._relay.kill()
            # Wait for GROWTH bytes: the records that this run sends again stay unsealed for a long time.
            self._relay.start()
            self._wait(GROWTH)
        except BaseException as error:
            self.failure = error

    def _wait(self, growth: int) -> None:
        wanted = size(self._folder) + growth
        wait_for(f"{growth} bytes more", lambda: size(self._folder) >= wanted or self._relay.has_ended)
        assert not self._relay.has_ended, self._relay.last_words()


def test_nothing_is_found(
    services: ServiceAddresses, database: str, new_relay: Callable[..., Relay], tmp_path: Path
) -> None:
    folder = tmp_path / "recording"
    create_tables(database, ROWS)
    relay = new_relay("--record", str(folder), "--segment-bytes", str(SEGMENT_BYTES))
    relay.run()
    audits = 0

    def audit() -> None:
        nonlocal audits
        try:
            report = verify.verify_recording(folder, {"bootstrap.servers": services.broker})
        except (DamagedRecording, UsageError) as error:
            # Between a kill and the next start, the recording must be recovered.
            assert "is unfinished" in error.message, error.message
            return
        audits += 1
        assert report.verdict == "clean", f"seed {SEED}: {report.found} {report.findings[:3]}"

    with Writer(database, ROWS).going_on():
        with Kills(relay, folder) as kills:
            while kills.go_on:
                audit()
        audit()
    relay.stop()
    audit()
    # The last two audits always complete.
    assert audits >= 2
    print(f"\nseed {SEED}: {audits} audits beside {KILLS} kills")

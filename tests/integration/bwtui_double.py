"""The ``bwtui`` command with a double of the engine, for tests of processes and signals.

``DOUBLE_MODE`` selects the double's behaviour. With ``--engine`` it is the engine's process itself.
"""

import os
import sys
import types
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from bwtui.blocking import leave  # noqa: E402
from bwtui.relay import main as process  # noqa: E402
from bwtui.relay.process import launch  # noqa: E402
from bwtui.settings import RelaySettings  # noqa: E402
from tests.unit.relay_double import DoubleEngine  # noqa: E402


def double(settings: RelaySettings) -> DoubleEngine:
    """Return the double that the environment selects."""
    return DoubleEngine(settings, os.environ.get("DOUBLE_MODE", "stream"))


def main() -> None:
    """Run the engine's process, or the command line."""
    if sys.argv[1:] == ["--engine"]:
        leave(process.main(double))
    launch._READY_SECONDS = float(os.environ.get("DOUBLE_READY_SECONDS", launch._READY_SECONDS))
    launch.ENGINE_COMMAND = (sys.executable, __file__, "--engine")
    engine = types.ModuleType("bwtui.relay.engine")
    engine.RelayEngine = double  # type: ignore[attr-defined]
    sys.modules["bwtui.relay.engine"] = engine
    from bwtui.cli.main import main as bwtui

    bwtui()


if __name__ == "__main__":
    main()

"""A Python without the large packages: only relay, screens and recordings are installed."""

import os
from pathlib import Path

from bwtui.crash import LARGE

#: Python imports it automatically when it starts.
_BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def without_packages(folder: Path) -> dict[str, str]:
    """Return the environment for commands without these packages; ``folder`` must be empty."""
    block = folder / "block"
    block.mkdir()
    (block / "sitecustomize.py").write_text(_BLOCK.format(names=(*LARGE, "py4j")))
    ours = {name: value for name, value in os.environ.items() if not name.startswith("BWTUI_")}
    homes = {f"BWTUI_{name}_HOME": str(folder / name.lower()) for name in ("STATE", "CACHE")}
    return {**ours, **homes, "PYTHONPATH": str(block)}

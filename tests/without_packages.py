"""A Python in which the large packages are missing: relay, screens and recordings alone are installed."""

import os
from pathlib import Path

from bwtui.crash import LARGE

#: Python imports it by itself at its start.
_BLOCK = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def without_packages(folder: Path) -> dict[str, str]:
    """Return the environment of commands that find none of them; ``folder`` must be empty."""
    block = folder / "block"
    block.mkdir()
    (block / "sitecustomize.py").write_text(_BLOCK.format(names=(*LARGE, "py4j")))
    ours = {name: value for name, value in os.environ.items() if not name.startswith("BWTUI_")}
    homes = {f"BWTUI_{name}_HOME": str(folder / name.lower()) for name in ("STATE", "CACHE")}
    return {**ours, **homes, "PYTHONPATH": str(block)}

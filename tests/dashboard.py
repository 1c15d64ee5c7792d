"""The Grafana dashboard and the Prometheus queries of its panels."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).parents[1] / "packaging" / "grafana" / "bwtui.json"


@dataclass(frozen=True)
class Query:
    """One line of a panel."""

    panel: str
    expression: str
    #: The labels that its legend shows.
    shown: frozenset[str]


def dashboard() -> dict[str, Any]:
    """Return the file as an object."""
    made = json.loads(PATH.read_text())
    assert isinstance(made, dict)
    return made


def queries() -> Iterator[Query]:
    """Yield every query of every panel, with Grafana's own variables replaced."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "1m").replace("$instance", ".*")
            yield Query(
                panel["title"], expression, frozenset(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            )

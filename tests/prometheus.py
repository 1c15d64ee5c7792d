"""Prometheus and promtool, from this machine or unpacked from Debian's package without installation."""

import functools
import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.debian import run, unpacked

_PACKAGE = "prometheus"
_ANSWER_SECONDS, _END_SECONDS = 30.0, 30.0


@functools.cache
def programs() -> Path:
    """Return the folder with prometheus and promtool. Fails with the reason if they can't be downloaded."""
    found = shutil.which("promtool")
    if found is not None and shutil.which(_PACKAGE) is not None:
        return Path(found).parent
    return unpacked(_PACKAGE) / "usr" / "bin"


def promtool(*arguments: str | Path) -> str:
    """Run promtool and return its output; the test fails if promtool reports a problem."""
    return run(str(programs() / "promtool"), *map(str, arguments))


class Prometheus:
    """A Prometheus that scrapes a relay and evaluates the alert rules once a second."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def is_ready(self) -> bool:
        """Return whether it answers."""
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=_ANSWER_SECONDS):
                return True
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the current samples of an expression; the test fails if Prometheus rejects it."""
        return list(self._ask("query?" + urllib.parse.urlencode({"query": expression}))["result"])

    def value(self, expression: str) -> float | None:
        """Return the one value of an expression, or None where there is none."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def alerts(self) -> dict[str, dict[str, Any]]:
        """Return the firing and pending alerts, by name."""
        return {one["labels"]["alertname"]: one for one in self._ask("alerts")["alerts"]}

    def firing(self) -> set[str]:
        """Return the names of the firing alerts."""
        return {name for name, one in self.alerts().items() if one["state"] == "firing"}

    def _ask(self, path: str) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/{path}", timeout=_ANSWER_SECONDS) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.read().decode(errors='replace')}") from error
        return dict(told["data"])


@contextmanager
def prometheus(folder: Path, port: int, target: int, rules: Path) -> Iterator[Prometheus]:
    """Run Prometheus on ``port`` of the loopback address; it scrapes the port ``target`` as the job bwtui."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "bwtui", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}],
    }
    path = folder / "prometheus.json"
    path.write_text(json.dumps(config))
    command = (
        str(programs() / _PACKAGE),
        f"--config.file={path}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

"""Scrape a relay with --listen as Prometheus does."""

import http.client
import json
from typing import Any

from prometheus_client.openmetrics.parser import text_string_to_metric_families

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
#: A metric's name and labels, which identify a sample.
Key = tuple[str, frozenset[tuple[str, str]]]


def get(
    port: int, path: str, accept: str = OPENMETRICS, method: str = "GET", seconds: float = 30.0
) -> tuple[int, str, str]:
    """Return status, content type and body of one request to the loopback address."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request(method, path, headers={"Accept": accept})
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type", ""), response.read().decode()
    finally:
        connection.close()


class Scrape:
    """One scrape; it fails if the text is not valid OpenMetrics."""

    def __init__(self, port: int) -> None:
        status, kind, self.text = get(port, "/metrics")
        assert status == 200, self.text
        assert kind.startswith("application/openmetrics-text"), kind
        self.families = {family.name: family for family in text_string_to_metric_families(self.text)}
        self.values: dict[Key, float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        """Return the value of a sample, or None where there is none."""
        return self.values.get((name, frozenset(labels.items())))

    def total(self, name: str) -> float:
        """Return the sum of all samples of a metric."""
        return sum(value for (found, _), value in self.values.items() if found == name)

    def chosen(self, name: str) -> str:
        """Return the only label for which the metric is 1."""
        [labels] = [labels for (found, labels), value in self.values.items() if found == name and value == 1]
        [(_, chosen)] = labels
        return chosen


def probe(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """Return status and object of /healthz or /readyz."""
    status, _, body = get(port, path)
    told = json.loads(body)
    assert isinstance(told, dict)
    return status, told

"""Writes the metrics of a relay for Prometheus and others, in OpenMetrics or in the older text format."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.exposition import generate_latest as as_text
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST
from prometheus_client.openmetrics.exposition import generate_latest as as_openmetrics

from bwtui.model.histogram import BOUNDS, Distribution
from bwtui.model.latency import LATENCY_STAGES
from bwtui.relay.http_metrics.catalogue import METRICS, MetricSpec
from bwtui.relay.http_metrics.labels import Sample
from bwtui.relay.http_metrics.metric_values import samples
from bwtui.relay.http_metrics.table_series import TableSeriesSelection
from bwtui.relay.metrics.measures import Measures

OPENMETRICS = "application/openmetrics-text"
_NOTHING = Distribution()


class Exposition:
    """Writes measurements as metrics; one thread at a time may call it."""

    def __init__(self) -> None:
        #: The highest value of each counter. A falling counter would count as restarted from zero: messages
        #: that are read again after an outage were already counted when the sink received them.
        self._highest: dict[tuple[str, tuple[str, ...]], float] = {}
        #: For counters of the server: the last value.
        self._last: dict[str, float] = {}
        self._listing = TableSeriesSelection()
        self._measures: Measures | None = None
        self._registry = CollectorRegistry()
        # The process's memory, CPU time, descriptors and start time, as every client library exports them.
        ProcessCollector(registry=self._registry)
        self._registry.register(_RelayCollector(self))

    def content_type(self, accept: str) -> str:
        """Return the content type of the answer to a request with the Accept header ``accept``."""
        kind: str = CONTENT_TYPE_LATEST if OPENMETRICS in accept else CONTENT_TYPE_PLAIN_0_0_4
        return kind

    def text(self, measures: Measures, content_type: str) -> bytes:
        """Return ``measures`` in a type that `content_type` returned."""
        self._measures = measures
        write = as_openmetrics if content_type == CONTENT_TYPE_LATEST else as_text
        text: bytes = write(self._registry)
        return text

    def families(self) -> Iterable[Metric]:
        """Return every metric with its samples."""
        if self._measures is None:
            return []
        by_name: dict[str, list[Sample]] = {metric.name: [] for metric in METRICS}
        for sample in samples(self._measures, self._listing.part(self._measures.status.tables)):
            by_name[sample[0]].append(sample)
        return [self._family(metric, by_name[metric.name]) for metric in METRICS]

    def _family(self, metric: MetricSpec, values: list[Sample]) -> Metric:
        if metric.kind == "info":
            info = InfoMetricFamily(metric.family, metric.help, labels=())
            for _, labels, _ in values:
                info.add_metric((), dict(zip(metric.labels, labels, strict=True)))
            return info
        if metric.kind == "histogram":
            return self._latency(metric)
        kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        family = kind(metric.family, metric.help, labels=metric.labels, unit=metric.unit)
        for name, labels, value in values:
            assert len(labels) == len(metric.labels), name
            shown = self._since_first(name, value) if metric.is_servers else value
            if metric.kind == "counter":
                shown = self._highest_of(name, labels, shown)
            family.add_metric(labels, float(shown))
        return family

    def _since_first(self, name: str, value: float) -> float:
        """Return the count since the first observation; a server that restarts counts from zero."""
        last = self._last.get(name, value)
        self._last[name] = value
        return self._highest.get((name, ()), 0.0) + (value - last if value >= last else value)

    def _highest_of(self, name: str, labels: tuple[str, ...], value: float) -> float:
        highest = self._highest[name, labels] = max(value, self._highest.get((name, labels), value))
        return highest

    def _latency(self, metric: MetricSpec) -> Metric:
        assert self._measures is not None
        latency = self._measures.latency
        family = HistogramMetricFamily(metric.family, metric.help, labels=metric.labels, unit=metric.unit)
        for stage in LATENCY_STAGES:
            if (stage == "total") != bool(metric.labels):
                labels = (stage,) if metric.labels else ()
                family.add_metric(labels, *_buckets(latency.get(stage, _NOTHING)))
        return family


class _RelayCollector:
    """A collector for the client library's registry."""

    def __init__(self, exposition: Exposition) -> None:
        self._exposition = exposition

    def collect(self) -> Iterable[Metric]:
        return self._exposition.families()


def _buckets(distribution: Distribution) -> tuple[list[tuple[str, float]], float]:
    """Return the buckets, each with the count below its bound, and the sum."""
    ends = [(str(bound), float(below)) for bound, below in zip(BOUNDS, distribution.below, strict=True)]
    return [*ends, ("+Inf", float(distribution.count))], distribution.sum

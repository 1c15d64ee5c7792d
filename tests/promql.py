"""Compare the metrics and labels in a PromQL expression with those that a relay exports."""

from collections.abc import Iterator

import promql_parser as promql

from bwtui.relay.serving.metrics import BY_NAME
from tests.unit.test_metrics import MEASURED, samples_of

#: Labels that Prometheus adds to every sample.
_TARGET = {"job", "instance"}
#: Labels whose values are names outside of the relay's control.
_FREE = {*_TARGET, "table", "topic"}
#: Metrics from elsewhere: of Prometheus itself, and of every client on Linux.
_OTHERS = {"up", "process_start_time_seconds", "process_resident_memory_bytes", "process_open_fds"}


def complaints(expression: str, shown: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the errors of an expression: metrics, labels or values that no relay has.

    ``shown`` are the labels of a legend. Raises ValueError if the expression is not valid PromQL.
    """
    there: set[str] = set()
    for one in _parts(expression):
        if not isinstance(one, promql.VectorSelector):
            continue
        name = one.name or ""
        if (labels := _labels(name)) is None:
            yield f"{name} is no metric"
            continue
        there |= labels
        for matcher in one.matchers.matchers:
            if matcher.name not in labels:
                yield f"{name} has no label {matcher.name}"
            elif matcher.name not in _FREE and not matcher.value.startswith("$"):
                for value in set(matcher.value.split("|")) - _values(name, matcher.name):
                    yield f"{matcher.name} of {name} is never {value}"
    for label in sorted(_named(expression) - there):
        yield f"nothing has the label {label}"
    for label in sorted(shown - _result(promql.parse(expression))):
        yield f"no result has the label {label}"


def names(expression: str) -> set[str]:
    """Return the relay's metrics in an expression."""
    found = {one.name for one in _parts(expression) if isinstance(one, promql.VectorSelector)}
    return {_base(name) for name in found if name is not None} & set(BY_NAME)


def _parts(expression: str) -> list[promql.Expr]:
    parts: list[promql.Expr] = []
    promql.walk(promql.parse(expression), parts.append)
    return parts


def _base(name: str) -> str:
    """Return the metric that a sample's name belongs to."""
    base, _, end = name.rpartition("_")
    is_histogram = base in BY_NAME and BY_NAME[base].kind == "histogram"
    return base if is_histogram and end in ("bucket", "count", "sum") else name


def _labels(name: str) -> set[str] | None:
    if name in _OTHERS:
        return _TARGET
    metric = BY_NAME.get(_base(name))
    if metric is None or (metric.kind == "histogram") != (_base(name) != name):
        return None
    return {*metric.labels, *_TARGET, *({"le"} if name.endswith("_bucket") else ())}


def _result(part: promql.Expr) -> set[str]:
    """Return the labels of a subexpression's result."""
    if isinstance(part, promql.VectorSelector):
        return _labels(part.name or "") or set()
    if isinstance(part, promql.MatrixSelector):
        return _result(part.vector_selector)
    if isinstance(part, promql.BinaryExpr):
        # Whatever matches, the left side's labels are kept; a number has none.
        return _result(part.lhs) or _result(part.rhs)
    if isinstance(part, promql.Call):
        return set().union(*map(_result, part.args)) - ({"le"} if "quantile" in part.func.name else set())
    if isinstance(part, promql.AggregateExpr) and part.modifier is not None:
        assert part.modifier.type == promql.AggModifierType.By
        return set(part.modifier.labels)
    if isinstance(part, promql.AggregateExpr):
        return _result(part.expr) if "topk" in str(part.op) else set()
    return _result(part.expr) if isinstance(part, promql.ParenExpr) else set()


def _values(name: str, label: str) -> set[str]:
    """Return the values of a label in a streaming relay."""
    return {dict(labels)[label] for found, labels in samples_of(MEASURED) if found == name}


def _named(expression: str) -> set[str]:
    """Return the labels by which an expression aggregates or matches."""
    labels: set[str] = set()
    for one in _parts(expression):
        if isinstance(one, promql.AggregateExpr) and one.modifier is not None:
            labels.update(one.modifier.labels)
        if (
            isinstance(one, promql.BinaryExpr)
            and one.modifier is not None
            and one.modifier.matching is not None
        ):
            labels.update(one.modifier.matching.labels)
    return labels

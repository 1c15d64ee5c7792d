"""The Grafana dashboard: every panel queries metrics that the relay has, and shows labels that it gets."""

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.dashboard import dashboard, queries
from tests.prometheus import promtool
from tests.promql import complaints, names
from tests.unit.test_alerts import alerts


def test_each_panel_asks_for_what_a_relay_has() -> None:
    wrong = [(query, found) for query in queries() for found in complaints(query.expression, query.shown)]
    assert wrong == []


def test_a_legend_with_a_label_that_is_not_there_is_found() -> None:
    expression = "sum by (instance) (bwtui_table_snapshot_rows)"
    assert list(complaints(expression, frozenset(("table",)))) == ["no result has the label table"]
    assert list(complaints("bwtui_ready", frozenset(("table",)))) == ["no result has the label table"]
    assert list(complaints("bwtui_table_snapshot_rows", frozenset(("table",)))) == []


def test_what_an_alert_speaks_of_is_on_the_dashboard() -> None:
    shown = {name for query in queries() for name in names(query.expression)}
    # Panels next to these show the same numbers.
    elsewhere = {
        *("bwtui_build_info", "bwtui_main_thread_idle_seconds", "bwtui_slot_wal_status"),
        *("bwtui_recording_state", "bwtui_recording_runway_seconds"),
    }
    assert {name for rule in alerts().values() for name in names(rule["expr"])} - shown == elsewhere


def test_panels_are_told_apart_and_cover_nothing() -> None:
    board = dashboard()
    panels: list[dict[str, Any]] = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${source}"
            assert panel["fieldConfig"]["defaults"]["unit"]
    used = set(re.findall(r"\$\{?([a-z]\w*)", str(panels)))
    assert used == {variable["name"] for variable in board["templating"]["list"]}


@pytest.mark.long
def test_prometheus_takes_each_expression(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": query.expression} for number, query in enumerate(queries())
    ]
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in promtool("check", "rules", path)

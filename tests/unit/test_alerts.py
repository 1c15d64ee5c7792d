"""Alert rules use existing metrics; each has a documentation page and tests that do and do not fire it."""

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tests.command_lines import parsed
from tests.prometheus import promtool
from tests.promql import complaints

ROOT = Path(__file__).parents[2]
RULES = ROOT / "packaging" / "prometheus" / "bwtui.rules.yml"
CASES = RULES.with_name("bwtui.test.yml")


def alerts() -> dict[str, dict[str, Any]]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def pages() -> dict[str, str]:
    """Return the page of each alert."""
    text = (ROOT / "docs" / "incidents.md").read_text().partition("\n## Alerts\n")[2]
    [_, *parts] = re.split(r"^### (?=\w+$)", text, flags=re.MULTILINE)
    return {part.split("\n")[0]: part for part in parts}


def test_each_alert_asks_for_what_a_relay_has() -> None:
    for name, rule in alerts().items():
        assert list(complaints(rule["expr"])) == [], name


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("bwtui_wal_lag_second > 1", "bwtui_wal_lag_second is no metric"),
        ("rate(bwtui_latency_seconds[5m])", "bwtui_latency_seconds is no metric"),
        ("rate(bwtui_wal_lag_bytes_count[5m])", "bwtui_wal_lag_bytes_count is no metric"),
        ('bwtui_ready{table="a"}', "bwtui_ready has no label table"),
        ('bwtui_state{state=~"streaming|sleeping"}', "state of bwtui_state is never sleeping"),
        ("sum by (table) (rate(bwtui_rows_read_total[5m]))", "nothing has the label table"),
        ("bwtui_ready == 0 unless on (slot) bwtui_ready", "nothing has the label slot"),
    ],
)
def test_what_no_relay_has_is_found(expression: str, complaint: str) -> None:
    assert list(complaints(expression)) == [complaint]


def test_each_alert_has_its_page_and_each_page_its_alert() -> None:
    assert list(pages()) == list(alerts())
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook"] == f"docs/incidents.md#{name.lower()}"
        assert rule["labels"]["severity"] in ("critical", "warning")
        for word in ("*Means:*", "*Look:*", "*Do:*"):
            assert pages()[name].count(word) == 1, (name, word)


def test_each_command_of_a_page_can_be_given() -> None:
    commands = [one for page in pages().values() for one in re.findall(r"`(bwtui [^`]+)`", page)]
    assert len(commands) > 15
    for command in commands:
        parsed(shlex.split(command)[1:])
    with pytest.raises(click.UsageError):
        parsed(["slots", "list", "--relay", "shop"])


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_stays_silent() -> None:
    cases = yaml.safe_load(CASES.read_text())["tests"]
    for name in alerts():
        fires, silent = (one for one in cases if one["name"].split()[0] == name)
        assert fires["name"] == f"{name} fires"
        assert silent["name"].startswith(f"{name} stays silent where ")
        for case, expects in ((fires, True), (silent, False)):
            for look in case["alert_rule_test"]:
                assert look["alertname"] == name
                assert bool(look["exp_alerts"]) == expects
            for series in case["input_series"]:
                assert list(complaints(series["series"])) == [], series
    assert len(cases) == 2 * len(alerts())


@pytest.mark.long
def test_the_cases_hold_in_prometheus() -> None:
    promtool("test", "rules", CASES)
    assert f"SUCCESS: {len(alerts())} rules found" in promtool("check", "rules", RULES)

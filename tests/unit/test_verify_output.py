"""`bwtui verify` reports its findings even if the requested page can't be written."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bwtui.audit.report import AuditSummary
from bwtui.cli.main import CONTEXT
from bwtui.cli.verify import _tell, verify
from bwtui.errors import BwtuiError, UsageError


@pytest.mark.parametrize("as_json", [True, False])
def test_a_page_that_can_not_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    counts = {"expected": {"matched": 7}, "actual": {"matched": 7}}
    report = AuditSummary("clean", {}, 7, 7, counts, {"matched": 7}, {}, [], {}, [], [])
    with pytest.raises(BwtuiError, match=r"page\.html can't be written: No such file"):
        _tell(report, as_json, tmp_path / "gone" / "page.html")
    told = capsys.readouterr().out
    assert (json.loads(told)["verdict"] == "clean") if as_json else ("clean" in told.lower())


def test_a_property_that_librdkafka_does_not_know(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"-C: librdkafka has no property nonsense"):
        # click keeps a command's help options from its first call.
        CliRunner().invoke(verify, [str(tmp_path), "-C", "nonsense=1"], catch_exceptions=False, **CONTEXT)

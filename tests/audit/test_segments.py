"""Faults planted by rewriting Kafka's own segment files, one of each kind."""

from pathlib import Path

import pytest

from bwtui.sandbox.sandbox import Sandbox
from tests.audit.segment_faults import FAULTS
from tests.audit.segments import round_of

pytestmark = pytest.mark.services


@pytest.mark.usefixtures("shared_spark")
def test_faults_in_segment_files(sandbox: Sandbox, tmp_path: Path) -> None:
    wrong, report = round_of(sandbox, tmp_path, ("--headers",), 1, list(FAULTS))
    assert not wrong
    # In its second round, `reheadered` gives a header a name that is not valid text.
    assert report.classes["headers_differ"] == 1
    assert "1 records have different headers than the messages that were sent" in report.notes

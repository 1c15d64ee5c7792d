"""Faults that are planted by rewriting Kafka's own segment files, one of each kind."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bwtui.sandbox.supervisor import Sandbox
from tests.audit.segment_faults import FAULTS
from tests.audit.segments import round_of

pytestmark = pytest.mark.services


def test_faults_in_segment_files(
    sandbox: Sandbox, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def shared(*_: Any, **__: Any) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("bwtui.verify.recording.spark_session", shared)
    wrong, report = round_of(sandbox, tmp_path, ("--headers",), 1, list(FAULTS))
    assert not wrong
    # The second turn of `reheadered` gives a header a name that is no text.
    assert report.classes["headers_differ"] == 1
    assert "1 records have other headers than their messages were sent with" in report.notes

"""Two recordings of the same changes, one of a relay with a backfill request."""

from pathlib import Path

from bwtui.verify.audit_inputs import open_recorded
from bwtui.verify.recordings import verify_recordings
from tests.pipeline.test_seal import local
from tests.recorded_stream import Stream, table


def recorded(folder: Path, *, puts: bool, body: bytes = b"x") -> Path:
    """Record twenty transactions, and between them backfilled rows if ``puts`` is true."""
    stream, orders = Stream(folder), table(1, "orders")
    stream.begin_pass()
    for key in range(20):
        stream.change("insert", orders, key, body if key == 7 else b"x")
        stream.commit()
        if puts and key % 5 == 4:
            stream.put(orders, [1, 2, 3], [100])
    stream.stop()
    local(folder)
    return folder


def test_rows_put_into_one_of_them_are_compared_with_nothing(tmp_path: Path) -> None:
    plain, put = recorded(tmp_path / "a", puts=False), recorded(tmp_path / "b", puts=True)
    for first, second in ((plain, put), (put, plain)):
        report = verify_recordings(
            open_recorded(first), open_recorded(second), spark_master="local[1]", samples=5
        )
        assert report.verdict == "clean" and report.expected == report.actual == 20
        assert f"12 backfilled rows of {put} were not compared" in report.notes


def test_what_differs_is_found_beside_them(tmp_path: Path) -> None:
    first = recorded(tmp_path / "a", puts=True)
    second = recorded(tmp_path / "b", puts=True, body=b"another")
    report = verify_recordings(
        open_recorded(first), open_recorded(second), spark_master="local[1]", samples=5
    )
    assert report.wrong == {"said_differs": 1}

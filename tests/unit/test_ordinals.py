"""In a transaction of billions of changes, each has its number, or is rejected before it gets a wrong one."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from bwtui.errors import StateFailed
from bwtui.model.headers import make_headers
from bwtui.recording.payloads import LARGEST_ORDINAL
from bwtui.recording.reader import open_recording
from bwtui.relay.rows.batch import OpenTransaction
from bwtui.verify.recording import _number
from tests.faults.doubles import Reject
from tests.faults.fed_stream import Fed, insert, transaction
from tests.recorded_stream import Stream, table

WIDEST = (1 << 32) - 1
ITEMS = table(16_384, "items")


@pytest.mark.parametrize(("ordinal", "width"), [(1, 4), (1 << 31, 4), (WIDEST, 4), (WIDEST + 1, 8)])
def test_a_header_holds_every_ordinal(ordinal: int, width: int) -> None:
    headers = dict(make_headers(7, ordinal, "insert", 5, bytes(8)))
    assert len(headers["bwtui.ordinal"]) == width
    assert _number(headers["bwtui.ordinal"]) == ordinal


def test_a_relay_goes_past_four_billion_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = OpenTransaction.begin

    def late(transaction: OpenTransaction, data: bytes) -> None:
        begin(transaction, data)
        transaction.ordinal = WIDEST - 1

    monkeypatch.setattr(OpenTransaction, "begin", late)
    sink = Reject(lambda message: b'"bad' in (message.value or b""))
    rows = [insert(1, "a"), insert(2, "b"), insert(3, "bad")]
    fed = Fed(sink, tmp_path, [transaction(100, *rows)], headers=True)
    fed.run()
    found = {int.from_bytes(dict(m.headers or ())["bwtui.ordinal"], "big") for _, m in sink.delivered}
    assert found == {WIDEST, WIDEST + 1}
    assert [letter["ordinal"] for letter in fed.letters] == [WIDEST + 2]


def of_the_stream(stream: Stream, number: int) -> None:
    stream.change("insert", ITEMS, number, b"x")


def of_the_snapshot(stream: Stream, number: int) -> None:
    stream.row(ITEMS, number, b"x")


Add = Callable[[Stream, int], None]


@pytest.mark.parametrize(
    ("add", "words"), [(of_the_stream, "changes of one transaction"), (of_the_snapshot, "rows of one table")]
)
@pytest.mark.parametrize("policy", ["stop", "stop-recording"])
def test_a_recording_ends_before_it_numbers_wrong(tmp_path: Path, add: Add, words: str, policy: str) -> None:
    stream = Stream(tmp_path / "recording", {"on_record_error": policy})
    if add is of_the_stream:
        stream.begin_pass()
    add(stream, 1)
    stream.flush()
    stream.deliver()
    before = stream.recorder._under_way.transaction
    stream.recorder._under_way.transaction = before._replace(ordinal=LARGEST_ORDINAL - 1)
    add(stream, 2)
    stream.flush()
    add(stream, 3)
    if policy == "stop":
        with pytest.raises(StateFailed, match=f"can't number more than 2,147,483,647 {words}") as refused:
            stream.flush()
        assert "without --record" in (refused.value.hint or "")
    else:
        stream.flush()
        told = [entry for entry in stream.report.errors() if entry.kind == "recording"]
        assert words in told[0].message and "without --record" in (told[0].hint or "")
        stream.recorder.reach(1 << 40)
    stream.recorder.close()
    with closing(open_recording(tmp_path / "recording")) as recording:
        assert [change.ordinal for change in recording.changes()] == [1, LARGEST_ORDINAL]


def test_the_next_transaction_is_numbered_from_one(tmp_path: Path) -> None:
    stream = Stream(tmp_path / "recording")
    stream.begin_pass()
    of_the_stream(stream, 1)
    stream.commit()
    stream.flush()
    stream.recorder._under_way.transaction = stream.recorder._under_way.transaction._replace(
        ordinal=LARGEST_ORDINAL
    )
    of_the_stream(stream, 2)
    stream.flush()
    assert stream.recorder._under_way.transaction.ordinal == 1
    stream.stop()

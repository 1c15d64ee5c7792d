"""After a rejection: the rejected row is found, all others are sent, and the cost stays bounded."""

import json
from pathlib import Path
from typing import Any, cast

import pytest

from bwtui.encode.names import UNCHANGED_KEY
from bwtui.errors import ConnectionFailed, RowError
from bwtui.sink.dead_letters import DeadLetterWriter
from bwtui.sink.destination import Message
from tests.faults.doubles import EndAtRefusal, MemorySink
from tests.faults.fed_stream import ITEMS, OTHERS, Fed, insert, transaction, truncate, update

Row = tuple[int, str | None]


def is_bad(message: Message) -> bool:
    """Return whether Kafka rejects the message."""
    return b'"bad' in (message.value or b"")


def found(sink: EndAtRefusal, topic: str = "items") -> list[Row]:
    """Return the ids and bodies in the topic, in order; the body of a tombstone is None."""
    return [
        (json.loads(m.key or b"")["id"], json.loads(m.value)["body"] if m.value else None)
        for name, m in sink.delivered
        if name == topic
    ]


def letters(kept: DeadLetterWriter) -> list[tuple[str, int, int, str | None]]:
    """Return operation, LSN, ordinal and body of the dead letters."""
    told = []
    for letter in kept:
        high, low = letter["commit_lsn"].split("/")
        lsn = (int(high, 16) << 32) + int(low, 16)
        told.append((letter["operation"], lsn, letter["ordinal"], (letter["after"] or {}).get("body")))
    return told


def assert_in_order(rows: list[Row], wanted: list[Row]) -> None:
    """Check that the rows of each key are in order, none after a newer one, and that no row is missing."""
    for key in {key for key, _ in wanted}:
        mine = [row for row in wanted if row[0] == key]
        places = [mine.index(row) for row in rows if row[0] == key]
        assert places == sorted(places), key
        assert set(places) == set(range(len(mine))), key


def test_the_row_that_widens_its_route_is_the_one_that_is_dropped(tmp_path: Path) -> None:
    """A placeholder for an unchanged TOAST value needs a different schema in the middle of the row."""
    sink = EndAtRefusal(lambda message: UNCHANGED_KEY.encode() in (message.value or b""))
    rows = (insert(1, "first"), update(2, None), insert(3, "third"), insert(4, "fourth"))
    fed = Fed(sink, tmp_path, [transaction(100, *rows)], output_format="avro")
    fed.run()
    assert [letter[:3] for letter in letters(fed.letters)] == [("update", 100, 2)]
    texts = b" ".join(message.value or b"" for _, message in sink.delivered)
    assert all(text in texts for text in (b"first", b"third", b"fourth"))


def test_each_table_that_was_truncated_is_known_from_the_other(tmp_path: Path) -> None:
    """The two messages of a changed key have one identity, and a flush between them."""
    sink = EndAtRefusal(lambda message: message.key == b"public.items")
    frames = transaction(100, insert(1, "a"), truncate(ITEMS, OTHERS), insert(2, "b"))
    fed = Fed(sink, tmp_path, [frames], truncate_topic="truncated")
    fed.run()
    assert [(one["table"], one["operation"], one["ordinal"]) for one in fed.letters] == [
        ("public.items", "truncate", 2)
    ]
    assert {m.key for name, m in sink.delivered if name == "truncated"} == {b"public.others"}
    assert_in_order(found(sink), [(1, "a"), (2, "b")])


def test_a_row_of_two_messages_is_named_by_all_of_it(tmp_path: Path) -> None:
    sink = EndAtRefusal(lambda message: message.value is None)
    frames = transaction(100, insert(1, "a"), update(2, "moved", old=1), insert(3, "b"))
    fed = Fed(sink, tmp_path, [frames])
    fed.run()
    assert letters(fed.letters) == [("update", 100, 2, "moved")]


@pytest.mark.parametrize("on_error", ["log", "exit"])
def test_the_policy_decides_about_the_row(tmp_path: Path, on_error: str) -> None:
    sink = EndAtRefusal(is_bad)
    before = transaction(100, insert(1, "a"))
    frames = transaction(200, insert(2, "b"), insert(3, "bad"), insert(4, "c"))
    fed = Fed(sink, tmp_path, [before, frames], on_error=on_error)
    if on_error == "exit":
        with pytest.raises(RowError, match=r"insert on public\.items at 0/C8 #2: refused"):
            fed.run()
        assert fed.confirmed == 108
        assert letters(fed.letters) == []
    else:
        fed.run()
        assert fed.confirmed == 208
        assert letters(fed.letters) == [("insert", 200, 2, "bad")]


def test_a_long_transaction_is_not_read_one_row_at_a_time(tmp_path: Path) -> None:
    """If the first rows are rejected, the rows after them go in batches, and no row is read a third time."""
    rows = [insert(n % 50, "bad" if n == 5 else str(n)) for n in range(5_000)]
    sink = EndAtRefusal(is_bad)
    fed = Fed(sink, tmp_path, [transaction(100, *rows)])
    fed.run()
    assert letters(fed.letters) == [("insert", 100, 6, "bad")]
    assert fed.redrives == 1
    assert sink.waits < 150
    assert_in_order(found(sink), [(n % 50, str(n)) for n in range(5_000) if n != 5])


def test_many_refused_rows_cost_no_more_than_they_are(tmp_path: Path) -> None:
    """Each rejected row is found within its batch: the transaction is read twice, whatever their number."""
    bad = range(0, 5_000, 200)
    rows = [insert(n % 50, f"bad {n}" if n in bad else str(n)) for n in range(5_000)]
    sink = EndAtRefusal(is_bad)
    fed = Fed(sink, tmp_path, [transaction(100, *rows)])
    fed.run()
    assert [letter[2] for letter in letters(fed.letters)] == [n + 1 for n in bad]
    assert fed.redrives == 1
    assert_in_order(found(sink), [(n % 50, str(n)) for n in range(5_000) if n not in bad])


def test_every_row_of_a_batch_may_be_refused(tmp_path: Path) -> None:
    sink = EndAtRefusal(is_bad)
    fed = Fed(sink, tmp_path, [transaction(100, *(insert(n, f"bad {n}") for n in range(300)))])
    fed.run()
    assert [letter[2] for letter in letters(fed.letters)] == list(range(1, 301))
    assert found(sink) == []


@pytest.mark.parametrize("refused", [insert(1, "bad"), update(1, None)], ids=["any row", "a row that widens"])
def test_a_dead_letter_is_durable_before_its_row_is_confirmed(tmp_path: Path, refused: bytes) -> None:
    confirmed: list[int] = []

    class SlowLetters(EndAtRefusal):
        held = 5

        def poll(self, timeout: float) -> None:
            if any(waiting.topic == "letters" for waiting in self._waiting):
                confirmed.append(fed.stream.confirmed)
                self.held -= 1
                if self.held >= 0:
                    return
            super().poll(timeout)

    marks = (UNCHANGED_KEY.encode(), b"\x06bad")
    sink = SlowLetters(lambda message: any(mark in (message.value or b"") for mark in marks))
    form = {"output_format": "avro", "dead_letter_topic": "letters"}
    fed = Fed(sink, tmp_path, [transaction(100, refused), transaction(200, insert(2, "b"))], **form)
    fed.run()
    assert [json.loads(m.value or b"")["ordinal"] for name, m in sink.delivered if name == "letters"] == [1]
    assert set(confirmed) == {0}
    assert fed.confirmed == 208


def test_a_letter_that_its_topic_refuses_holds_nothing_up(tmp_path: Path) -> None:
    """With an in-order sink the producer ends at the dead letter too.

    The dead letter is sent without its row.
    """
    sink = EndAtRefusal(lambda message: is_bad(message) or b"too much" in (message.value or b""), size=100)
    frames = transaction(100, insert(1, "a"), insert(2, "bad too much"), insert(3, "b"))
    fed = Fed(sink, tmp_path, [frames], dead_letter_topic="letters")
    fed.run()
    sent = [json.loads(m.value or b"") for name, m in sink.delivered if name == "letters"]
    assert [(letter["ordinal"], letter.get("cut")) for letter in sent] == [(2, True)]
    assert_in_order(found(sink), [(1, "a"), (3, "b")])


def test_a_letter_that_is_refused_while_the_batch_is_read_is_settled_with_it(tmp_path: Path) -> None:
    """While the relay waits in the middle of a batch for a TOAST value, it learns of the rejected letter."""
    sink = EndAtRefusal(lambda message: b"too much" in (message.value or b""))
    rows = (insert(1, "first"), insert("no number", "too much"), update(2, None), insert(3, "third"))
    form = {"output_format": "avro", "dead_letter_topic": "letters"}
    fed = Fed(sink, tmp_path, [transaction(100, *rows)], **form)
    fed.run()
    sent = [json.loads(m.value or b"") for name, m in sink.delivered if name == "letters"]
    assert {(letter["ordinal"], letter.get("cut")) for letter in sent} == {(2, True)}
    assert fed.redrives == 1
    assert letters(fed.letters) == [("insert", 100, 2, "too much")]
    assert [name for name, _ in sink.delivered].count("items") >= 3


def test_a_refused_row_costs_few_producers(tmp_path: Path) -> None:
    """Return the number of requests: one for each halving that fails, and one for each row sent alone."""
    rows = [insert(n, "bad" if n == 700 else str(n)) for n in range(1_000)]
    sink = EndAtRefusal(is_bad, size=100)
    fed = Fed(sink, tmp_path, [transaction(100, *rows)])
    fed.run()
    assert letters(fed.letters) == [("insert", 100, 701, "bad")]
    assert sink.discarded < 12
    assert found(sink)[-1] == (999, "999")


class Wakes(MemorySink):
    """A sink whose in-flight messages fail once, when the process wakes from a suspension of a minute."""

    def __init__(self) -> None:
        super().__init__()
        self.slept = 0.0
        self._has_slept = False

    def poll(self, timeout: float) -> None:
        """Wake up, or deliver all queued messages."""
        if self._waiting and not self._has_slept:
            self._has_slept, self.slept = True, 60.0
            while self._waiting:
                self._fail(self._waiting.popleft(), "held back", is_outage=True)
        super().poll(timeout)

    def take(self) -> float:
        """Return once how long the process slept."""
        slept, self.slept = self.slept, 0.0
        return slept


def test_nothing_is_sent_after_a_suspension(tmp_path: Path) -> None:
    """Another relay may have sent newer rows meanwhile, which only the slot's owner can tell."""
    sink = Wakes()
    fed = Fed(sink, tmp_path, [transaction(100, insert(1, "old"), insert(2, "old"))])
    fed.suspension = cast(Any, sink)
    with pytest.raises(ConnectionFailed, match="suspended for 60 s"):
        fed.run(careful_until=200)
    assert not sink.delivered


def test_what_letters_took_is_not_counted_down_twice(tmp_path: Path) -> None:
    """The bytes in flight limit the memory, so a negative count would remove the limit."""
    fed = Fed(
        EndAtRefusal(is_bad),
        tmp_path,
        [transaction(100, insert(1, "bad " + "x" * 10_000))],
        dead_letter_topic="l",
    )
    fed.run()
    assert fed._streaming is not None
    assert fed._streaming._acks.bytes_in_flight == 0

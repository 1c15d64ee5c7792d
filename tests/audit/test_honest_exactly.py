"""The audit finds nothing in the recording of an honest relay with --exactly-once, however it was killed."""

import random
from collections import Counter
from typing import Any

import pytest

from tests.audit.made import LAST_MS, Made
from tests.audit.world import Send

#: Outcomes of a Kafka transaction; Kafka has committed all but the last kind.
HEARD, UNHEARD, ABORTED = "heard", "unheard", "aborted"


class Honest:
    """Passes of transactions and backfilled chunks. The rows are few and often equal."""

    def __init__(self, rng: random.Random, *, log_append: bool) -> None:
        self.rng = rng
        self.made = Made(2, log_append=log_append)
        self.lsn, self.time_ms = 1_000, LAST_MS - 1_000_000
        #: Transactions that Kafka lacks: LSN, time, and keys with values.
        self.due: list[tuple[int, int, list[tuple[int, int]]]] = []
        self.seen: set[int] = set()
        self.truth: Counter[str] = Counter()
        #: Aborted changes that may be sent again.
        self.aborted: Counter[int] = Counter()
        self.confirmed = 0

    def run(self, passes: int) -> None:
        """Make this number of passes; each pass but the last is known to its successor."""
        world = self.made.world
        for number in range(1, passes + 1):
            world.reached[number] = 0
            world.exactly_once.add(number)
            known, committed = self._pass(number, is_last=number == passes)
            if number < passes:
                self.confirmed = max(self.confirmed, known)
                world.committed[number] = committed
        world.confirmed = self.confirmed
        self.truth["pending"] += sum(self.aborted.values())

    def _pass(self, number: int, *, is_last: bool) -> tuple[int, int]:
        """Return the LSN of the newest committed transaction, and the id before which all is committed."""
        newest = committed = 0
        ends = self.rng.choice([HEARD, UNHEARD, ABORTED, ABORTED])
        count = self.rng.randint(1, 4)
        for nth in range(1, count + 1):
            became = HEARD if nth < count else ends
            due = list(self.due) if nth == 1 else []
            due += [self._fresh() for _ in range(self.rng.randint(0, 2))]
            lsns = [self._transaction(number, one, became) for one in due]
            if self.rng.random() < 0.6:
                self._chunk(number, became)
            self.due = due if became == ABORTED else []
            if became != ABORTED:
                newest = max([newest, *lsns])
                committed = self.made.number * 4096 + 1 if self.made.number else 0
            if became == HEARD and lsns:
                self.confirmed = self.made.world.reached[number] = lsns[-1]
        return newest, committed

    def _fresh(self) -> tuple[int, int, list[tuple[int, int]]]:
        self.lsn += 100
        self.time_ms += self.rng.choice([0, 1, 50])
        rows = [(self.rng.randint(1, 4), self.rng.randint(1, 3)) for _ in range(self.rng.randint(1, 3))]
        return self.lsn, self.time_ms, rows

    def _transaction(self, number: int, one: tuple[int, int, list[tuple[int, int]]], became: str) -> int:
        lsn, time_ms, rows = one
        again = self.aborted.pop(lsn, 0)
        self.truth["resent"] += again
        for ordinal, row in enumerate(rows, 1):
            self._send(
                number, row, became, lsn=lsn, ordinal=ordinal, time_ms=time_ms, is_repeat=lsn in self.seen
            )
        self.seen.add(lsn)
        if became == ABORTED:
            self.aborted[lsn] = len(rows)
        else:
            self.truth["matched"] += len(rows)
        return lsn

    def _chunk(self, number: int, became: str) -> None:
        self.time_ms += 10
        for ordinal, key in enumerate(range(1, 5), 1):
            row = key, self.rng.randint(1, 3)
            self._send(
                number, row, became, lsn=self.lsn + 1, ordinal=ordinal, time_ms=self.time_ms, op="backfill"
            )
            self.truth["pending" if became == ABORTED else "matched"] += 1

    def _send(self, number: int, row: tuple[int, int], became: str, **more: Any) -> Send:
        key, value = row
        return self.made.send(
            key,
            value,
            p=key % 2,
            pass_number=number,
            state="acknowledged" if became == HEARD else "unknown",
            arrives=became != ABORTED,
            **more,
        )


@pytest.mark.parametrize("log_append", [False, True])
@pytest.mark.parametrize(
    "seed", [20, 23, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(100, 200))]
)
def test_nothing_is_found(seed: int, log_append: bool) -> None:
    honest = Honest(random.Random(seed), log_append=log_append)
    honest.run(4)
    messages, records, beside = honest.made.classes()
    assert set(messages) <= {"matched", "resent", "pending"}
    assert set(records) <= {"matched"}
    assert not beside
    if not log_append:
        assert messages == +honest.truth

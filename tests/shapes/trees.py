"""Random transactions with savepoints, exception blocks and two-phase commit, and their expected results."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

TABLE = "create table trees (id bigint primary key, number bigint not null, note text)"
#: Rows that transactions change; most transactions change the same ones.
_KEYS = 60
#: Number of rows that each transaction reserves, in addition to the rows that it creates.
_OWN = 10
_DEEPEST = 6
_PREPARED, _ROLLED_BACK, _LARGE = 0.2, 0.1, 0.02
#: More subtransactions than PostgreSQL keeps in shared memory for one transaction (64).
_LARGE_STEPS = 150


class Change(NamedTuple):
    """A change of one row: its number after the change, or None for a deletion."""

    id: int
    number: int | None


@dataclass(slots=True)
class Work:
    """The part of a transaction written so far: its effect if it were committed now."""

    #: The transaction's keys, and whether each has a row.
    keys: dict[int, bool]
    changes: list[Change] = field(default_factory=list)

    def mark(self) -> tuple[dict[int, bool], int]:
        """Return a mark for `return_to`."""
        return dict(self.keys), len(self.changes)

    def return_to(self, mark: tuple[dict[int, bool], int]) -> None:
        """Undo everything since ``mark``."""
        keys, length = mark
        self.keys = dict(keys)
        del self.changes[length:]


@dataclass(slots=True)
class Prepared:
    """A transaction between PREPARE TRANSACTION and its end."""

    name: str
    before: dict[int, bool]
    work: Work


class Forest:
    """Draws transactions one after another, and records the expected committed changes in that order."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        #: The changes of each committed transaction that changed anything, in commit order.
        self.committed: list[list[Change]] = []
        self.savepoints = self.blocks = self.taken_back = 0
        self._pool: dict[int, bool] = dict.fromkeys(range(1, _KEYS + 1), False)
        self._prepared: list[Prepared] = []
        self._next = _KEYS
        self._number = 0
        self._names = 0

    def statements(self, transactions: int) -> Iterable[str]:
        """Yield the SQL of ``transactions`` transactions.

        Run each one completely before requesting the next.
        """
        for _ in range(transactions):
            yield self._transaction()
            if self._prepared and self.rng.random() < 2 * _PREPARED:
                yield self._end_prepared()
        while self._prepared:
            yield self._end_prepared()

    # -- one transaction -----------------------------------------------------------------------------------

    def _transaction(self) -> str:
        rng = self.rng
        own = rng.sample(list(self._pool), min(_OWN, len(self._pool)))
        before = {key: self._pool.pop(key) for key in own}
        work = Work(dict(before))
        script = ["begin", *self._walk(work)]
        roll = rng.random()
        if roll < _PREPARED:
            name = self._name("p")
            script.append(f"prepare transaction '{name}'")
            self._prepared.append(Prepared(name, before, work))
        elif roll < _PREPARED + _ROLLED_BACK:
            script.append("rollback")
            self._pool |= before
        else:
            script.append("commit")
            self._commit(work)
        return "; ".join(script)

    def _end_prepared(self) -> str:
        ended = self._prepared.pop(self.rng.randrange(len(self._prepared)))
        if self.rng.random() < 0.3:
            self._pool |= ended.before
            return f"rollback prepared '{ended.name}'"
        self._commit(ended.work)
        return f"commit prepared '{ended.name}'"

    def _commit(self, work: Work) -> None:
        if work.changes:
            self.committed.append(work.changes)
        # Deleted rows are forgotten, so that the table stays small.
        self._pool |= work.keys
        gone = [key for key, is_there in self._pool.items() if not is_there]
        for key in gone[: max(0, len(self._pool) - _KEYS)]:
            del self._pool[key]

    def _walk(self, work: Work) -> list[str]:
        """Walk through savepoints at random; each name is used for one savepoint only."""
        rng = self.rng
        script: list[str] = []
        opened: list[tuple[str, tuple[dict[int, bool], int]]] = []
        is_large = rng.random() < _LARGE
        for _ in range(_LARGE_STEPS if is_large else rng.randint(1, 25)):
            roll = rng.random()
            if opened and roll < 0.15:
                at = self._one_of(opened)
                self._take_back(work, opened[at][1])
                script.append(f"rollback to savepoint {opened[at][0]}")
                # The savepoint remains, and can be returned to once more.
                del opened[at + 1 :]
            elif opened and not is_large and roll < 0.25:
                at = self._one_of(opened)
                script.append(f"release savepoint {opened[at][0]}")
                del opened[at:]
            elif roll < (0.7 if is_large else 0.45):
                self.savepoints += 1
                opened.append((self._name("s"), work.mark()))
                script.append(f"savepoint {opened[-1][0]}")
            elif roll < (0.71 if is_large else 0.6):
                script.append(f"do $${self._block(work, 1)}$$")
            else:
                script.append(self._change(work))
        return script

    def _one_of(self, opened: list[tuple[str, tuple[dict[int, bool], int]]]) -> int:
        """Choose a savepoint, mostly one of the newest."""
        return max(0, len(opened) - 1 - int(self.rng.expovariate(0.7)))

    def _block(self, work: Work, depth: int) -> str:
        """Return a block with an exception handler, which PostgreSQL runs as a subtransaction."""
        rng = self.rng
        self.blocks += 1
        mark = work.mark()
        script = []
        for _ in range(rng.randint(1, 4)):
            nested = depth < _DEEPEST and rng.random() < 0.25
            script.append(self._block(work, depth + 1) if nested else self._change(work))
        handler = "null"
        if rng.random() < 0.5:
            script.append(rng.choice(("perform 1 / 0", "raise exception 'taken back'")))
            self._take_back(work, mark)
            handler = self._change(work)
        return f"begin {'; '.join(script)}; exception when others then {handler}; end"

    def _take_back(self, work: Work, mark: tuple[dict[int, bool], int]) -> None:
        self.taken_back += len(work.changes) - mark[1]
        work.return_to(mark)

    def _change(self, work: Work) -> str:
        rng = self.rng
        if not work.keys or rng.random() < 0.2:
            self._next += 1
            work.keys[self._next] = False
        key = rng.choice(list(work.keys))
        self._number += 1
        note = f"repeat('{chr(97 + self._number % 26)}', {int(rng.expovariate(0.01))})"
        if not work.keys[key]:
            work.keys[key] = True
            work.changes.append(Change(key, self._number))
            return f"insert into trees values ({key}, {self._number}, {note})"
        if rng.random() < 0.3:
            work.keys[key] = False
            work.changes.append(Change(key, None))
            return f"delete from trees where id = {key}"
        work.changes.append(Change(key, self._number))
        return f"update trees set number = {self._number}, note = {note} where id = {key}"

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

"""Random faults, one after another, under writes; then all writes are accounted for."""

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.torture.faults import Fault
from tests.torture.histories import create_tables, histories
from tests.torture.judging import Verdict
from tests.torture.stand import Stand, drawn

#: Number of rows that all writers change.
ROWS = 60
_WAIT_SHARE = 0.6
_SLOW_SHARE = 0.15


@dataclass(slots=True)
class Outcome:
    """The results of a campaign, printed at its end."""

    seed: int
    #: Number of faults of each kind.
    faults: Counter[str] = field(default_factory=Counter)
    rows: int = 0
    verdict: Verdict = field(default_factory=Verdict)
    recoveries: list[float] = field(default_factory=list)
    ended: Counter[int] = field(default_factory=Counter)
    torn_looks: int = 0
    kills: int = 0
    seconds: float = 0.0

    def summary(self) -> str:
        """Return the results in some lines."""
        verdict, times = self.verdict, sorted(self.recoveries)
        kinds = "\n".join(f"  {count:5d}  {kind}" for kind, count in sorted(self.faults.items()))
        by_itself = ", ".join(f"{count} with {code}" for code, count in sorted(self.ended.items())) or "never"
        middle = times[len(times) // 2] if times else 0.0
        return (
            f"seed {self.seed}: {self.faults.total()} faults in {self.seconds:.0f} s, "
            f"the relay killed {self.kills} times\n{kinds}\n"
            f"rows written {self.rows}, messages {verdict.messages}, repeats {verdict.repeats}, "
            f"repeats of what was confirmed {len(verdict.confirmed_repeats)}\n"
            f"lost {len(verdict.lost)}, out of order {len(verdict.disordered)}, wrong {len(verdict.wrong)}, "
            f"torn {len(verdict.torn)} (looked for {self.torn_looks} times)\n"
            f"recovered within {times[-1] if times else 0.0:.1f} s, half of the times within {middle:.1f} s; "
            f"the relay ended by itself: {by_itself}"
        )


def sequence(seed: int, kinds: Sequence[Fault]) -> Iterator[tuple[Fault, random.Random]]:
    """Yield faults without end, each with its own random generator; the same ones for the same seed."""
    dice = random.Random(seed)
    weights = [fault.weight for fault in kinds]
    while True:
        yield dice.choices(kinds, weights)[0], random.Random(dice.getrandbits(64))


def tortured(
    stand: Stand,
    seed: int,
    faults: Iterable[tuple[Fault, random.Random]],
    seconds: float,
    *,
    pause: float = 0.01,
    rows: int = ROWS,
    told: bool = False,
) -> Outcome:
    """Inject ``faults`` until there are no more, or for ``seconds``; return the outcome.

    The test fails if the relay ends with an unexpected exit code, or does not recover.
    """
    outcome, begun = Outcome(seed), time.monotonic()
    create_tables(stand.database, rows)
    stand.histories = histories(stand.database, rows, seed, pause=pause)
    stand.start_relay()
    stand.relay.wait_streaming()
    with stand.histories.going_on():
        for number, (fault, dice) in enumerate(faults):
            if time.monotonic() > begun + seconds:
                break
            stand.see_to_relay()
            if dice.random() < _SLOW_SHARE:
                dice.choice(stand.ways).delay = drawn(dice, 0.002, 0.05)
            if told:
                print(f"{time.monotonic() - begun:7.1f} s  {number}: {fault.kind}", flush=True)
            try:
                fault.act(stand, dice)
            except BaseException as error:
                error.add_note(f"fault {number} of seed {seed}: {fault.kind}")
                raise
            stand.calm()
            outcome.faults[fault.kind] += 1
            if fault.is_heavy or dice.random() < _WAIT_SHARE:
                _recover(stand, f"fault {number} of seed {seed}: {fault.kind}")
        _recover(stand, f"the last fault of seed {seed}")
    _recover(stand, f"the end of seed {seed}")
    stand.relay.stop()
    stand.judge.take(stand.topics.read())
    outcome.verdict = stand.judge.end(stand.database, stand.histories.transactions())
    outcome.rows = stand.histories.count()
    outcome.recoveries, outcome.ended = stand.recoveries, stand.ended
    outcome.torn_looks, outcome.kills = stand.torn_looks, stand.kills
    outcome.seconds = time.monotonic() - begun
    return outcome


def _recover(stand: Stand, after: str) -> None:
    try:
        stand.recover()
    except BaseException as error:
        error.add_note(f"after {after}")
        raise

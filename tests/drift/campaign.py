"""Random changes of publications, tables, keys, topics and settings, each judged when it is over."""

import functools
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from bwtui.model.status import Status
from bwtui.sandbox.supervisor import Services
from tests.drift.changes import Change, Scene, When
from tests.drift.comparison import differing
from tests.drift.stand import BYSTANDERS, Publication, Stand, Writer, standing
from tests.proxy import way_to

#: The end of a change, as expected (see `tests.drift.changes.Expected`) or as a fault. "silent": the status
#: does not name a difference, or calls it healthy; "false": a table is not proven though it equals its topic,
#: or the named command does not prove it; "ended": the relay ended; "stuck": it does not answer; "not
#: refused": it started with other settings.
Ending = Literal["closed", "named", "refused", "silent", "false", "ended", "stuck", "not refused"]

#: Changes of one stand.
_ROUND = 6
#: The relay has these seconds to notice a difference, and these to close it or to name a command.
NOTICE_SECONDS = 15.0
CLOSE_SECONDS = 60.0
_POLLS_SECONDS = 6.0
_LAST = 12
#: The maximum number of times that commands of the status are followed, one after another.
_COMMANDS = 3


@dataclass(frozen=True, slots=True)
class Drawn:
    """A change as it was drawn: when it happens, and the seed of its dice."""

    change: Change
    when: When
    seed: int

    def __str__(self) -> str:
        return f"{self.change.name}, {self.when.value}"


@dataclass(frozen=True, slots=True)
class Round:
    """Changes that happen one after another on one stand."""

    publication: Publication
    options: tuple[str, ...]
    drawn: tuple[Drawn, ...]


@dataclass(slots=True)
class Result:
    """What became of one change."""

    drawn: Drawn
    ending: Ending
    seconds: float = 0.0
    #: What differed, what the status said, and the last changes; empty where all is well.
    report: str = ""

    @property
    def is_expected(self) -> bool:
        """Return whether the relay did what is expected of it, or more."""
        expected = self.drawn.change.expected
        return self.ending == expected or (self.ending, expected) == ("closed", "named")


@dataclass(slots=True)
class Outcome:
    """What is printed at the end."""

    seed: int
    results: list[Result] = field(default_factory=list)
    rounds: int = 0
    transactions: int = 0
    kills: int = 0
    seconds: float = 0.0

    @property
    def failures(self) -> list[Result]:
        """The changes after which the relay was not what it should be."""
        return [result for result in self.results if not result.is_expected]

    def summary(self) -> str:
        """Return it in some lines, the failures last."""
        kinds: dict[str, Counter[str]] = {}
        for result in self.results:
            kinds.setdefault(result.drawn.change.name, Counter())[result.ending] += 1
        lines = [
            f"{sum(counts.values()):5d}  {name}: "
            + ", ".join(f"{count} {ending}" for ending, count in sorted(counts.items()))
            for name, counts in sorted(kinds.items())
        ]
        times = sorted(result.seconds for result in self.results) or [0.0]
        head = (
            f"seed {self.seed}: {len(self.results)} changes on {self.rounds} stands in {self.seconds:.0f} s, "
            f"{self.transactions} transactions in between, the relay killed {self.kills} times\n"
        )
        tail = (
            f"\nsettled within {times[-1]:.1f} s, half of them within {times[len(times) // 2]:.1f} s; "
            f"{len(self.failures)} failed"
        )
        reports = "".join(f"\n\n{result.report}" for result in self.failures)
        return head + "\n".join(lines) + tail + reports


# -- drawing -------------------------------------------------------------------------------------------------


def rounds(seed: int, changes: Sequence[Change], major: int) -> Iterator[Round]:
    """Yield rounds without end, the same ones for the same seed."""
    dice = random.Random(seed)
    possible = [one for one in changes if one.since <= major]
    modes: list[Publication] = ["list", "list", "all"]
    if major >= 15:
        modes.append("schemas")
    while True:
        publication = dice.choice(modes)
        fitting = [one for one in possible if publication in one.publications]
        if not fitting:
            continue
        options = dice.choice(((), (), ("--exactly-once",), ("--snapshot-by", "chunks")))
        drawn = []
        for number in range(_ROUND):
            (change,) = dice.choices(fitting, [one.weight for one in fitting])
            # A stand has one first snapshot.
            whens = [when for when in change.whens if number == 0 or when is not When.SNAPSHOT]
            if whens:
                drawn.append(Drawn(change, dice.choice(whens), dice.getrandbits(32)))
        if drawn:
            own = {option for one in drawn for option in one.change.options}
            yield Round(publication, (*options, *sorted(own)), tuple(drawn))


def each(seed: int, changes: Sequence[Change], major: int) -> Iterator[Round]:
    """Yield a round for each change and each time at which it may happen."""
    for one in changes:
        for when in one.whens if one.since <= major else ():
            yield Round(one.publications[0], one.options, (Drawn(one, when, seed),))


# -- running -------------------------------------------------------------------------------------------------


class Campaign:
    """Runs rounds, and judges each change."""

    def __init__(self, services: Services, folder: Path, seed: int, *, logs: bool) -> None:
        """``logs``: print each change as it ends."""
        self._services = services
        self._folder = folder
        self._logs = logs
        self.outcome = Outcome(seed)

    def run(self, drawn: Iterator[Round], seconds: float, changes: int = 0) -> Outcome:
        """Run rounds until there are no more, for ``seconds``, or up to that many ``changes``, 0: any."""
        begun = time.monotonic()
        for one in drawn:
            self._round(one, begun + seconds, changes)
            self.outcome.seconds = time.monotonic() - begun
            if time.monotonic() > begun + seconds or len(self.outcome.results) >= changes > 0:
                break
        return self.outcome

    def _round(self, one: Round, until: float, changes: int) -> None:
        self.outcome.rounds += 1
        with standing(self._services, self._folder, one.publication, one.options) as stand:
            scenes = [_scene(stand, drawn, number) for number, drawn in enumerate(one.drawn)]
            stand.publish()
            # Updates of a table without a key are in no stream, and no difference.
            pairs = zip(one.drawn, scenes, strict=True)
            tables = [scene.table for drawn, scene in pairs if "-u" not in drawn.change.options]
            stand.writer = Writer(stand.database, [*BYSTANDERS, *tables], one.drawn[0].seed)
            with stand.writer.running():
                for number, (drawn, scene) in enumerate(zip(one.drawn, scenes, strict=True)):
                    result = self._change(stand, drawn, scene, one.drawn[: number + 1])
                    self.outcome.results.append(result)
                    if self._logs:
                        print(f"{result.seconds:6.1f} s  {result.ending}: {drawn}", result.report, flush=True)
                    is_over = time.monotonic() > until or len(self.outcome.results) >= changes > 0
                    # The next change must not be blamed for what this one has broken.
                    if is_over or not result.is_expected:
                        break
            self.outcome.transactions += stand.writer.transactions
            self.outcome.kills += stand.kills

    def _change(self, stand: Stand, drawn: Drawn, scene: Scene, so_far: Sequence[Drawn]) -> Result:
        begun = time.monotonic()
        try:
            _apply(stand, drawn, scene)
            ending, report = self._judged(stand, drawn.change)
        except BaseException as error:
            error.add_note(f"seed {self.outcome.seed}: {' · '.join(map(str, so_far))}; {stand.mode}")
            raise
        result = Result(drawn, ending, time.monotonic() - begun)
        if not result.is_expected:
            before = " · ".join(map(str, so_far[-_LAST:]))
            options = " ".join(stand.options) or "no options"
            result.report = (
                f"FAILED {drawn}: {ending}, expected {drawn.change.expected}\n"
                f"  seed {self.outcome.seed}, publication of {stand.mode}, {options}, table {scene.table}\n"
                f"  last changes: {before}\n{report}"
            )
        return result

    def _judged(self, stand: Stand, change: Change) -> tuple[Ending, str]:
        if change.settings:
            ending, report = _refusal(stand, change)
            if ending != "refused":
                return ending, report
        stand.start()
        with stand.writer.paused():
            ending, report = settled(stand)
        if change.settings and ending == "closed":
            ending = "refused"
        return ending, report


def _scene(stand: Stand, drawn: Drawn, number: int) -> Scene:
    """Make the tables of a change."""
    scene = Scene(stand, random.Random(drawn.seed), f"{drawn.change.schema}.t{number}")
    where = urlsplit(stand.database)
    words = {
        "{d}": where.path[1:],
        "{host}": where.hostname or "",
        "{port}": str(where.port),
        "{user}": where.username or "",
        "{password}": where.password or "",
    }
    for statement in drawn.change.tables:
        scene.run(functools.reduce(lambda text, word: text.replace(*word), words.items(), statement))
    return scene


def _apply(stand: Stand, drawn: Drawn, scene: Scene) -> None:
    """Let the change happen when it was drawn to happen; the relay may end, and does not run at first."""
    steps, dice, when = drawn.change.steps(scene), scene.dice, drawn.when
    if when is When.SNAPSHOT:
        stand.freeze_at(f"{dice.choice(('before', 'after'))}-copy:{dice.randint(1, 3)}")
        for _ in range(dice.randint(1, 3)):
            next(steps, None)
        stand.thaw()
    stand.start()
    stand.catch_up()
    if when in (When.STOPPED, When.STATE_LOST):
        stand.end(hard=dice.random() < 0.5)
    if when is When.STATE_LOST:
        stand.lose_state()
    for _ in steps:
        if when is When.KILLED:
            stand.start()
            if dice.random() < 0.7:
                stand.end(hard=True)
        elif when in (When.RUNNING, When.POLLED):
            stand.catch_up()
            if when is When.POLLED:
                # Its length is part of the change.
                stand.last(_POLLS_SECONDS)


def _refusal(stand: Stand, change: Change) -> tuple[Ending, str]:
    """Start the relay with other settings, and see that this is refused in words that name both values."""
    stand.end(hard=False)
    old = stand.services.schema_registry
    with way_to(urlsplit(old).netloc, "http") as way:
        new = urlsplit(old)._replace(netloc=way.address).geturl()
        words = {"{prefix}": stand.relay.name, "{registry}": new, "{old_registry}": old}
        stand.start(*(words.get(part, part) for part in change.settings))
        if not stand.relay.has_ended:
            stand.end(hard=True)
            return "not refused", "  the relay started"
    code, said = stand.relay.wait_ended(), stand.relay.last_words()
    lacking = [word for part in change.says if (word := words.get(part, part)) not in said]
    if code != 2 or lacking:
        return "not refused", f"  exit code {code}; it does not name {lacking}: {said}"
    return "refused", ""


# -- judging -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Look:
    """Topics and tables, and what the status said of them before and after they were compared."""

    differing: dict[str, str]
    status: Status

    @property
    def not_proven(self) -> set[str]:
        """The tables that the status marks."""
        return {entry.table for entry in self.status.not_proven}

    @property
    def is_working(self) -> bool:
        """Return whether the relay still closes a gap, and says so."""
        return bool(
            self.status.first_snapshot
            or self.status.heal
            or any(not one.is_over for one in self.status.backfills)
        )

    @property
    def is_silent(self) -> bool:
        """Whether something differs that the status does not name, or that it calls healthy."""
        named = self.not_proven | set(self.status.not_captured)
        if self.is_working:
            return False
        return not self.differing.keys() <= named or (
            bool(self.differing) and self.status.verdict.condition == "healthy"
        )

    @property
    def is_closed(self) -> bool:
        """Whether topics equal tables, and the status says no less."""
        return not self.differing and not self.not_proven and not self.is_working

    @property
    def is_named(self) -> bool:
        """Whether exactly the tables that differ are named, each with a command."""
        # A table without a command is one that the relay proves on its own: it is waited for.
        commands = all(entry.command for entry in self.status.not_proven)
        is_exact = bool(self.differing) and self.not_proven <= self.differing.keys()
        return is_exact and commands and not self.is_silent

    def text(self) -> str:
        """Say what differs, and what the status says."""
        lines = [f"  differs: {name}: {how}" for name, how in sorted(self.differing.items())]
        lines += [
            f"  not proven: {e.table} since {e.since_lsn:X}: {e.reason} [{e.command}]"
            for e in self.status.not_proven
        ]
        verdict = self.status.verdict
        lines.append(f"  not captured: {', '.join(self.status.not_captured) or '-'}")
        lines.append(f"  verdict: {verdict.condition}: {verdict.sentence} [{verdict.hint}]")
        lines += [f"  {e.kind} {e.table or ''}: {e.message} [{e.hint}]" for e in self.status.errors[-6:]]
        lines += [
            f"  backfill {b.table}: {b.state} {b.reason}" for b in self.status.backfills if not b.is_over
        ]
        return "\n".join(lines)


def settled(stand: Stand) -> tuple[Ending, str]:
    """Wait until the relay has closed the gap, or named it; then follow its commands. Nothing may write."""
    look, ending = _watched(stand)
    text: list[str] = []
    # A statement may be needed before the command that sends the rows.
    for _ in range(_COMMANDS):
        if ending != "named" or look is None:
            break
        text += ["  before:", look.text()]
        entries = look.status.not_proven
        text += [stand.follow(command) for command in dict.fromkeys(entry.command for entry in entries)]
        if not entries:
            # The hint for tables that are not captured is for people, and not a command.
            return "named", ""
        look, ending = _watched(stand)
    text += ["  after:", _ended(stand) if look is None else look.text()]
    if ending == "closed":
        return ("named" if len(text) > 2 else "closed"), ""
    return ("false" if ending == "named" else ending), "\n".join(text)


def _watched(stand: Stand) -> tuple[Look | None, Ending]:
    begun = time.monotonic()
    stand.catch_up()
    while True:
        if stand.relay.has_ended:
            return None, "ended"
        tables = differing(stand.services, stand.database, stand.relay.name, unkeyed="-u" in stand.options)
        status = stand.status()
        seconds = time.monotonic() - begun
        if status is None:
            if seconds > CLOSE_SECONDS:
                return None, "stuck"
            continue
        look = Look(tables, status)
        if look.is_closed:
            return look, "closed"
        if look.is_named and seconds > _POLLS_SECONDS:
            return look, "named"
        if look.is_silent and seconds > NOTICE_SECONDS:
            return look, "silent"
        if seconds > CLOSE_SECONDS:
            return look, "silent" if look.is_silent else "false"
        stand.last(0.3)


def _ended(stand: Stand) -> str:
    if not stand.relay.has_ended:
        return "  the relay does not answer"
    return f"  the relay ended with {stand.relay.wait_ended()}: {stand.relay.last_words()[-1500:]}"

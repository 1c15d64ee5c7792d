"""Random changes of publications, tables, keys, topics and settings, each judged when it is over."""

import functools
import itertools
import random
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import psycopg2
from confluent_kafka import KafkaException

from bwtui.model.status import Status
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.drift.changes import Change, Drawn, Scene, When
from tests.drift.stand import BYSTANDERS, Publication, Stand, Writer, standing
from tests.proxy import way_to

#: The end of a change, as expected (see `tests.drift.changes.Expected`) or as a fault. "silent": the status
#: does not name a difference, or calls it healthy; "false": a table is not proven though it equals its topic,
#: or the named command does not prove it; "ended": the relay ended; "stuck": it does not answer; "not
#: refused": it started with other settings; "error": the campaign could not go on.
Ending = Literal["closed", "named", "refused", "silent", "false", "ended", "stuck", "not refused", "error"]

#: Changes that happen at the same time on one stand, and how many times that happens.
_BATCH = 24
_BATCHES = 2
#: By this factor more batches happen during the first snapshot than the number of changes makes likely.
_SNAPSHOT = 3
#: One batch of this number may have a change of all tables, which hides whether the others are noticed.
_WIDE = 4
#: The relay has these seconds to notice a difference, and these to close it or to name a command.
NOTICE_SECONDS = 15.0
CLOSE_SECONDS = 300.0
_POLLS_SECONDS = 6.0
#: The maximum number of times that commands of the status are followed, one after another.
_COMMANDS = 3
#: One in this number of stands has a relay that also captures tables without a key.
_UNKEYED = 12


Batch = tuple[Drawn, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """Batches on one stand, one after another. All changes of a batch happen at the same time."""

    publication: Publication
    options: tuple[str, ...]
    batches: tuple[Batch, ...]


@dataclass(slots=True)
class Result:
    """The result of one change."""

    drawn: Drawn
    ending: Ending
    #: The time until the batch had been applied, and until it had been judged.
    applied: float = 0.0
    seconds: float = 0.0
    #: The differences, the status and the last changes; empty if all is well.
    report: str = ""

    @property
    def is_expected(self) -> bool:
        """Return whether the relay did what is expected of it, or more."""
        expected = self.drawn.change.expected
        return self.ending == expected or (self.ending, expected) == ("closed", "named")


@dataclass(slots=True)
class Outcome:
    """The results of a campaign, printed at its end."""

    seed: int
    results: list[Result] = field(default_factory=list)
    rounds: int = 0
    transactions: int = 0
    kills: int = 0
    seconds: float = 0.0

    @property
    def failures(self) -> list[Result]:
        """Return the changes after which the relay was not in the expected state."""
        return [result for result in self.results if not result.is_expected]

    def summary(self) -> str:
        """Return the results in some lines, the failures last."""
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
        unkeyed = ("-u",) * (dice.randrange(_UNKEYED) == 0)
        options = dice.choice(((), (), ("--exactly-once",), ("--snapshot-by", "chunks")))
        fitting = [one for one in possible if one.fits(publication, unkeyed)]
        # A stand has one first snapshot.
        batches = [_batch(dice, fitting, is_first=not number) for number in range(_BATCHES)]
        if drawn := tuple(filter(None, batches)):
            yield Round(publication, (*options, *unkeyed), drawn)


def _batch(dice: random.Random, fitting: Sequence[Change], *, is_first: bool) -> Batch:
    whens = [when for when in When if is_first or when is not When.SNAPSHOT]
    # A lost state folder is rarer: few changes can happen with it.
    weights = [len([one for one in fitting if when in one.whens]) for when in whens]
    if not any(weights):
        return ()
    when = dice.choices(
        whens, [n * _SNAPSHOT ** (w is When.SNAPSHOT) for w, n in zip(whens, weights, strict=True)]
    )[0]
    may_be_wide = when is When.STATE_LOST or dice.randrange(_WIDE) == 0
    left = [one for one in fitting if when in one.whens and (may_be_wide or not one.is_wide)]
    chosen: list[Change] = []
    while left and len(chosen) < _BATCH:
        (one,) = dice.choices(left, [one.weight for one in left])
        chosen.append(one)
        # Two changes of the whole publication would undo each other, and two equal ones show little.
        left = [other for other in left if other is not one and not (one.is_wide and other.is_wide)]
    return tuple(Drawn(one, when, dice.getrandbits(32)) for one in chosen)


def each(seed: int, changes: Sequence[Change], major: int) -> Iterator[Round]:
    """Yield batches with each change at each time at which it may happen, under each kind of publication."""
    publications: tuple[Publication, ...] = ("list", "all", "schemas")
    for publication, unkeyed, when in itertools.product(publications, ((), ("-u",)), When):
        fitting = [
            one
            for one in changes
            if one.since <= major and when in one.whens and one.fits(publication, unkeyed)
        ]
        wide = [one for one in fitting if one.is_wide]
        narrow = [one for one in fitting if not one.is_wide and bool(one.options) == bool(unkeyed)]
        while wide or narrow:
            batch = [*wide[:1], *narrow[: _BATCH - 1]]
            wide, narrow = wide[1:], narrow[_BATCH - 1 :]
            if not unkeyed or narrow or batch[-1].options:
                yield Round(publication, unkeyed, (tuple(Drawn(one, when, seed) for one in batch),))


# -- running -------------------------------------------------------------------------------------------------


class Campaign:
    """Runs rounds, and judges each change."""

    def __init__(self, services: ServiceAddresses, folder: Path, seed: int, *, logs: bool) -> None:
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
            numbers = itertools.count()
            batches = [[_scene(stand, drawn, next(numbers)) for drawn in batch] for batch in one.batches]
            stand.publish()
            scenes = [scene for batch in batches for scene in batch]
            # Updates of a table without a key are in no stream, and no difference.
            tables = [scene.table for scene in scenes if "-u" not in scene.drawn.change.options]
            stand.writer = Writer(stand.database, [*BYSTANDERS, *tables], scenes[0].drawn.seed)
            with stand.writer.running():
                for batch in batches:
                    results = self._batch(stand, batch)
                    self.outcome.results += results
                    if self._logs:
                        _log(stand, results)
                    is_over = time.monotonic() > until or len(self.outcome.results) >= changes > 0
                    # Faults of these changes must not be blamed on the next ones.
                    if is_over or not all(result.is_expected for result in results):
                        break
            self.outcome.transactions += stand.writer.transactions
            self.outcome.kills += stand.kills

    def _batch(self, stand: Stand, scenes: Sequence[Scene]) -> list[Result]:
        begun = applied = time.monotonic()
        try:
            errors = Application(stand, scenes).run()
            applied = time.monotonic()
            endings, report = _judged(stand, scenes)
            report = "\n".join((*errors.values(), report))
            endings = ["error" if number in errors else one for number, one in enumerate(endings)]
        except Exception:
            endings, report = ["error"] * len(scenes), f"{traceback.format_exc()}\n{_ended(stand)}"
        seconds = time.monotonic() - begun
        results = [
            Result(scene.drawn, ending, applied - begun, seconds)
            for scene, ending in zip(scenes, endings, strict=True)
        ]
        failed = [
            f"  {result.drawn}: {result.ending}, expected {result.drawn.change.expected}, table {scene.table}"
            for result, scene in zip(results, scenes, strict=True)
            if not result.is_expected
        ]
        if failed:
            head = f"FAILED, seed {self.outcome.seed}, publication of {stand.mode}, {stand.options}"
            batch = " · ".join(str(scene.drawn) for scene in scenes)
            text = "\n".join((head, *failed, f"  of: {batch}", report))
            next(result for result in results if not result.is_expected).report = text
        return results


def _log(stand: Stand, results: Sequence[Result]) -> None:
    options = " ".join(stand.options)
    one = results[0]
    times = f"{one.seconds:6.1f} s ({one.applied:.1f} s to apply) for {len(results)} changes"
    print(f"{times}, {stand.mode} {options}", flush=True)
    for result in results:
        print(f"   {result.ending}: {result.drawn}", result.report, flush=True)


def _judged(stand: Stand, scenes: Sequence[Scene]) -> tuple[list[Ending], str]:
    refusals: dict[int, tuple[Ending, str]] = {
        number: _refusal(stand, scene.drawn.change)
        for number, scene in enumerate(scenes)
        if scene.drawn.change.settings
    }
    stand.start()
    with stand.writer.paused():
        endings, report = settled(stand, scenes)
    for number, (ending, text) in refusals.items():
        if endings[number] == "closed" or ending != "refused":
            endings[number] = ending
            report = f"{text}\n{report}" if text else report
    return endings, report


def _scene(stand: Stand, drawn: Drawn, number: int) -> Scene:
    """Make the tables of a change."""
    scene = Scene(stand, random.Random(drawn.seed), f"{drawn.change.schema}.t{number}", drawn)
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


class Application:
    """Lets the changes of a batch happen when they were drawn to happen."""

    def __init__(self, stand: Stand, scenes: Sequence[Scene]) -> None:
        self._stand = stand
        self._when, self._dice = scenes[0].drawn.when, scenes[0].dice
        self._steps = {number: scene.drawn.change.steps(scene) for number, scene in enumerate(scenes)}
        self._errors: dict[int, str] = {}

    def run(self) -> dict[int, str]:
        """Apply all changes; return the errors by the number of the change.

        The relay may end, and may not run at first.
        """
        stand, when, dice = self._stand, self._when, self._dice
        if when is When.SNAPSHOT:
            stand.freeze_at(f"{dice.choice(('before', 'after'))}-copy:{dice.randint(1, len(self._steps))}")
            for number in tuple(self._steps):
                self._advance(number, dice.randint(1, 3))
            stand.thaw()
            # A topic that disappears during the snapshot ends the relay, which leaves nothing behind.
            stand.start()
        stand.start()
        stand.catch_up()
        if when in (When.STOPPED, When.STATE_LOST):
            stand.end(hard=dice.random() < 0.5)
        if when is When.STATE_LOST:
            stand.lose_state()
        while self._steps:
            for number in tuple(self._steps):
                # Between two polls, each change is over before the next one begins.
                self._advance(number, 9 if when is When.BETWEEN_POLLS else 1)
            self._after_step()
        return self._errors

    def _advance(self, number: int, steps: int) -> None:
        try:
            if len(list(itertools.islice(self._steps[number], steps))) == steps:
                return
        except (psycopg2.Error, KafkaException, AssertionError):
            self._errors[number] = traceback.format_exc() + _ended(self._stand)
        del self._steps[number]

    def _after_step(self) -> None:
        stand = self._stand
        if self._when is When.KILLED:
            stand.start()
            if self._dice.random() < 0.7:
                stand.end(hard=True)
        elif self._when in (When.RUNNING, When.POLLED):
            stand.catch_up()
            if self._when is When.POLLED:
                # The duration is part of the change.
                stand.last(_POLLS_SECONDS)


def _refusal(stand: Stand, change: Change) -> tuple[Ending, str]:
    """Start the relay with other settings, and check that the error names both values."""
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


def is_under_way(status: Status) -> bool:
    """Return whether the relay still closes a gap on its own, and says so."""
    # A table without a command is one that the relay proves on its own.
    return bool(
        status.first_snapshot
        or status.heal
        or any(not one.is_over for one in status.backfills)
        or any(not entry.command for entry in status.not_proven)
    )


@dataclass(frozen=True, slots=True)
class Look:
    """Topics and tables, and the status after their comparison."""

    differing: dict[str, str]
    status: Status

    @property
    def not_proven(self) -> set[str]:
        """Return the tables that the status marks."""
        return {entry.table for entry in self.status.not_proven}

    @property
    def silent(self) -> set[str]:
        """Return the tables that differ while the status does not name them, or is healthy."""
        if self.status.verdict.condition == "healthy":
            return set(self.differing)
        return self.differing.keys() - self.not_proven - set(self.status.not_captured)

    @property
    def is_closed(self) -> bool:
        """Return whether topics equal tables and the status agrees."""
        return not self.differing and not self.not_proven and not is_under_way(self.status)

    def ending(self, table: str, *, may_equal: bool) -> Ending:
        """Return the ending of a table that differs or is named.

        ``may_equal``: the relay may name a table that equals its topic, since it can't know.
        """
        if table in self.silent:
            return "silent"
        commands = {entry.table: entry.command for entry in self.status.not_proven}
        command = commands.get(table, "-")
        # A named statement means that the cause lasts, so the table may differ at any time.
        has_cause = table in self.differing or may_equal or not command.startswith("bwtui ")
        return "named" if has_cause and command else "false"

    def text(self) -> str:
        """Return the differences and the status as text."""
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


def settled(stand: Stand, scenes: Sequence[Scene]) -> tuple[list[Ending], str]:
    """Wait until the relay has closed the gaps, or named them; then follow its commands. Nothing may write.

    Return the ending of each change. What differs in a table of no change is the fault of one that concerns
    all tables, or of the first one.
    """
    endings: list[Ending] = ["closed"] * len(scenes)
    text: list[str] = []
    # A statement may be needed before the command that sends the rows.
    for turn in range(_COMMANDS + 1):
        look = _watched(stand)
        if look is None:
            fault: Ending = "ended" if stand.relay.has_ended else "stuck"
            return [fault] * len(scenes), "\n".join((*text, _ended(stand)))
        text += [f"  look {turn}:", look.text()]
        for table in look.differing.keys() | look.not_proven:
            owner = _owner(scenes, table)
            if owner is None and look.ending(table, may_equal=False) == "named":
                # A change of an earlier batch lasts, such as an unlogged partition.
                continue
            number = owner or 0
            ending = look.ending(table, may_equal=scenes[number].drawn.when is When.STATE_LOST)
            if endings[number] in ("closed", "named"):
                endings[number] = ending
        if look.is_closed:
            break
        commands = dict.fromkeys(entry.command for entry in look.status.not_proven if entry.command)
        if turn == _COMMANDS or not commands:
            if turn == _COMMANDS:
                endings = ["false" if ending == "named" else ending for ending in endings]
            # The hint for tables that are not captured is for people, and not a command.
            break
        text.append(stand.follow(commands))
    return endings, "\n".join(text)


def _owner(scenes: Sequence[Scene], table: str) -> int | None:
    """Return the number of the scene that a table belongs to, or of one that may affect any table."""
    name = table.partition(".")[2]
    for number, scene in enumerate(scenes):
        own = scene.table.partition(".")[2]
        if name == own or name.startswith(f"{own}_"):
            return number
    return next((number for number, scene in enumerate(scenes) if scene.drawn.change.is_wide), None)


def _watched(stand: Stand) -> Look | None:
    """Return the last comparison, once nothing more is to be expected; None if the relay does not answer."""
    begun = time.monotonic()
    stand.catch_up()
    silent: set[str] = set()
    while not stand.relay.has_ended:
        seconds = time.monotonic() - begun
        is_late = seconds > CLOSE_SECONDS
        status = stand.status()
        if status is None:
            if is_late:
                return None
            continue
        if not is_late and is_under_way(status):
            stand.last(0.3)
            continue
        differs = stand.differing()
        # The status after the comparison counts, too.
        look = Look(differs, stand.status() or status)
        if look.is_closed or is_late:
            return look
        if not is_under_way(look.status):
            repeated = bool(silent) and silent <= look.silent
            silent = look.silent
            if (repeated and seconds > NOTICE_SECONDS) or (not silent and seconds > _POLLS_SECONDS):
                return look
        stand.last(0.3)
    return None


def _ended(stand: Stand) -> str:
    if not stand.relay.has_ended:
        return "  the relay runs"
    return f"  the relay ended with {stand.relay.wait_ended()}: {stand.relay.last_words()[-1500:]}"

"""Known or possible differences between topics and tables, as the verdict reports them.

A relay whose rows pass may have lost some before: while one of these is open, its verdict is "not_proven".
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from bwtui.model.backfill import BackfillStatus
from bwtui.model.heal import HealState, HealStatus
from bwtui.model.lsn import format_lsn
from bwtui.model.proof import UnprovenTable
from bwtui.model.status import Status
from bwtui.model.verdict import RelayVerdict

#: The maximum number of tables that a sentence names.
_NAMED = 3
_WAIT = "no action needed: the relay compares and sends what differs; 'bwtui status' shows the progress"
_HEALS: dict[HealState, str] = {
    "slot": "the slot is being recreated",
    "comparing": "the relay is comparing them",
    "waiting": "the comparison failed and will be retried",
    # Its detail begins with that the comparison can't be trusted.
    "undecided": "",
}


class TopicGap(NamedTuple):
    """One reason why topics may differ from tables."""

    #: Two gaps with the same key are the same one, whatever the progress of its repair.
    key: tuple[str, ...]
    says: str
    hint: str
    #: True if only the command of the hint closes it.
    needs_action: bool = False


def gaps_of(status: Status) -> list[TopicGap]:
    """Return what is open, those that need action first."""
    # A table that left the publication is among these, with the statement that brings it back.
    proof = {entry.table for entry in status.not_proven}
    lacking = _lacking(status)
    lack_rows = {one.table for one in lacking}
    gaps = [
        *_of_heal(status.heal),
        *_of_proof([entry for entry in status.not_proven if entry.table not in lack_rows]),
        *_of_backfills(lacking),
        *_of_publication([one for one in status.not_captured if one not in proof], status.name),
    ]
    return sorted(gaps, key=lambda gap: not gap.needs_action)


def key_of(status: Status) -> str:
    """Return a text that changes when a gap opens or closes, and not with the progress of its repair."""
    return " ".join(part for gap in gaps_of(status) for part in gap.key)


def with_gaps(status: Status) -> Status:
    """Return ``status`` with a verdict that reports its gaps.

    A verdict that is worse, or an end, keeps its condition, and its sentence begins with its own cause.
    """
    verdict, gaps = status.verdict, gaps_of(status)
    if not gaps:
        return replace(status, verdict=_unfinished(status)) if _is_unfinished(status) else status
    if verdict.condition not in ("healthy", "behind", "waiting"):
        # A run that ended because of its gaps has already named them.
        more = [gap.says for gap in gaps if gap.says not in verdict.sentence]
        return replace(status, verdict=replace(verdict, sentence="; ".join((verdict.sentence, *more))))
    says = "; ".join(gap.says for gap in gaps)
    sentence = f"{says}; {verdict.sentence}" if verdict.sentence else says
    first = gaps[0]
    changed = replace(
        verdict, condition="not_proven", sentence=sentence, hint=first.hint, needs_action=first.needs_action
    )
    return replace(status, verdict=changed)


def unproven(status: Status) -> tuple[str, str] | None:
    """Return why topics may differ from the tables that are relayed, and what helps."""
    gaps = [gap for gap in gaps_of(status) if gap.key[0] != "publication"]
    return ("; ".join(gap.says for gap in gaps), gaps[0].hint) if gaps else None


def _is_unfinished(status: Status) -> bool:
    return status.verdict.condition == "healthy" and status.first_snapshot is not None


def _unfinished(status: Status) -> RelayVerdict:
    """Return the verdict on a relay that is up to date except for a first snapshot by chunks."""
    assert status.first_snapshot is not None
    sentence = f"{status.first_snapshot.sentence}; {status.verdict.sentence}"
    return replace(status.verdict, condition="behind", sentence=sentence)


def _of_heal(heal: HealStatus | None) -> Iterator[TopicGap]:
    if heal is None:
        return
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(heal.since))
    now = ": ".join(filter(None, (_HEALS.get(heal.state, heal.state), heal.detail)))
    says = f"topics may differ from tables since {since} ({heal.reason}): {now}"
    yield TopicGap(("heal", heal.state), says, heal.hint or _WAIT, heal.state == "undecided")


def _of_proof(entries: Sequence[UnprovenTable]) -> Iterator[TopicGap]:
    """Yield one gap for tables that need action, and one for those that the relay compares on its own."""
    for needs_action in (True, False):
        these = sorted(
            (one for one in entries if bool(one.command) == needs_action), key=lambda one: one.since_lsn
        )
        if not these:
            continue
        first = these[0]
        since = f" since {format_lsn(first.since_lsn)}" if first.since_lsn else ""
        also = _also([one.table for one in these[1:]], needs_action=needs_action)
        says = f"{first.table} is not proven{since}: {first.reason}{also}"
        hint = _command_of(these) if needs_action else _WAIT
        key = tuple(f"{one.table}: {one.reason}" for one in these)
        yield TopicGap(("proof", *key), says, hint, needs_action)


def _also(tables: Sequence[str], *, needs_action: bool) -> str:
    if not tables:
        return ""
    need = "needs" if len(tables) == 1 else "need"
    names = named(tables)
    return f"; {names} also {need} a command" if needs_action else f"; the relay also compares {names}"


def _command_of(entries: Sequence[UnprovenTable]) -> str:
    """Return the hint with the command for the first table, or for all that the same command repairs."""
    if entries[0].advice:
        return f"{entries[0].advice}, then run: {entries[0].command}"
    repair, option, _ = entries[0].command.partition(" --table ")
    if option and sum(one.command.startswith(f"{repair}{option}") for one in entries) > 1:
        return f"run: {repair}"
    return f"for {entries[0].table} run: {entries[0].command}"


def _lacking(status: Status) -> list[BackfillStatus]:
    """Return the requests whose rows topics lack; a comparison may have proven the table since."""
    proof = {entry.table for entry in status.not_proven}
    return [
        one
        for one in status.backfills
        if one.lacks and (one.table in proof or not one.is_noted) and not one.is_superseded(status.backfills)
    ]


def _of_backfills(requests: Sequence[BackfillStatus]) -> Iterator[TopicGap]:
    for one in requests:
        once = " once the cause is fixed" if one.error else ""
        hint = one.hint or f"run 'bwtui snapshot {one.table}'{once}"
        yield TopicGap(("backfill", one.id), f"topic of {one.table} lacks {one.lacks}", hint, True)


def _of_publication(tables: Sequence[str], relay: str) -> Iterator[TopicGap]:
    if not tables:
        return
    are, their, them = ("is", "its", "it") if len(tables) == 1 else ("are", "their", "them")
    says = f"{named(tables)} {are} not captured: {their} changes, deletes included, are not sent"
    hint = f"run 'bwtui doctor --relay {relay}': it says what captures {them}"
    yield TopicGap(("publication", *tables), says, hint, True)


def named(tables: Sequence[str]) -> str:
    """Name a few tables, and count the others."""
    more = len(tables) - _NAMED
    return ", ".join(tables[:_NAMED]) + (f" and {more} more" if more > 0 else "")

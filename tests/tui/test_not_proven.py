"""Every surface reports loss until it is resolved: each screen's first line, ``status``, and metrics."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from bwtui.cli.status import _in_full
from bwtui.model.backfill import BackfillStatus
from bwtui.model.gaps import with_gaps
from bwtui.model.heal import HealStatus
from bwtui.model.proof import UnprovenTable
from bwtui.model.status import ErrorEntry, Status
from bwtui.model.verdict import RelayVerdict
from bwtui.relay.state.measures import Measures
from bwtui.relay.watch.judge import ServiceNames, lost_slot, standby_slot
from bwtui.tui.base.actions import tabs
from tests.tui.doubles import Stage
from tests.tui.picture import lines, text
from tests.tui.shop import NOON, Shop
from tests.unit.test_metrics import samples_of

DELETED = UnprovenTable(
    "public.orders",
    0x16B3748,
    "topic orders was deleted while rows were sent to it, and what was in it is gone",
    "bwtui snapshot public.orders",
)
LOST = HealStatus(
    NOON,
    "slot bottledwater is missing",
    "undecided",
    "0/1",
    "the comparison can't be trusted: public.orders: 4,081 rows are missing",
    "'bwtui snapshot public.orders' sends the table whole, and 'bwtui repair' then ends the heal",
)


FOREIGN = (
    "it has 20 records in topic orders that this relay did not send: another producer or relay writes to it"
)
EXPIRES = UnprovenTable(
    "public.orders",
    7,
    "it lacks rows: topic orders has cleanup.policy=delete, so Kafka also deletes records of rows that are "
    "still in the table",
    "kafka-configs --bootstrap-server kafka:9092 --alter --entity-type topics --entity-name orders "
    "--add-config cleanup.policy=compact",
)
JOINED = BackfillStatus(
    "1", "public.orders", "joined", state="failed", ended=NOON, error="the topic lets nothing in"
)
LOCKED = ErrorEntry(
    *(
        NOON,
        "lock",
        None,
        "publications and new tables can't be checked: a table is locked by pid 4711 with a",
    ),
    hint="to end it: SELECT pg_terminate_backend(4711);",
    since=NOON,
)
NAMES = ServiceNames("PostgreSQL at db:5432/shop", slot="bottledwater")


def wait(sentence: str, hint: str) -> RelayVerdict:
    """Return the verdict on a relay that waits for PostgreSQL."""
    return RelayVerdict("stalled", sentence, "postgresql", NAMES.postgresql, hint=hint)


STANDBY, LOST_SLOT = standby_slot(NAMES, NOON), lost_slot(NAMES, NOON)
#: The badge and the status of each state, named as in docs/incidents.md.
STATES: dict[str, tuple[str, dict[str, Any]]] = {
    "A table is not proven": ("✗ NOT PROVEN", {"not_proven": (DELETED,)}),
    "A table is being compared": ("▲ NOT PROVEN", {"not_proven": (replace(DELETED, command=""),)}),
    "A topic is deleted while the relay runs": (
        "▲ NOT PROVEN",
        {
            "not_proven": (
                UnprovenTable(
                    "public.orders", 7, "it lacks its topic: orders was deleted, with every row in it"
                ),
            )
        },
    ),
    "Another producer writes into a topic": (
        "▲ NOT PROVEN",
        {"not_proven": (UnprovenTable("public.orders", 7, FOREIGN),)},
    ),
    "A keyed topic deletes records": ("✗ NOT PROVEN", {"not_proven": (EXPIRES,)}),
    "Rows are missing": ("✗ NOT PROVEN", {"backfills": (JOINED,)}),
    "A table is not captured": ("✗ NOT PROVEN", {"not_captured": ("public.late",)}),
    "A heal is under way": (
        "▲ NOT PROVEN",
        {"heal": replace(LOST, state="comparing", detail="comparing: 3 of 7", hint="")},
    ),
    "A heal is inconclusive": ("✗ NOT PROVEN", {"heal": LOST}),
    "A table is locked while a relay streams": ("✓ STREAMING", {"errors": (LOCKED,)}),
    "The slot is lost while Kafka hangs": (
        "✗ STALLED",
        {"verdict": wait(LOST_SLOT.sentence(NOON), LOST_SLOT.hint), "state": "stalled", "wal_status": "lost"},
    ),
    "The slot is made on a standby of an idle primary": (
        "✗ STALLED",
        {"verdict": wait(STANDBY.sentence(NOON + 3), STANDBY.hint), "state": "stalled"},
    ),
}


@dataclass
class Open(Shop):
    """A streaming shop with the fields ``given`` in its status."""

    given: dict[str, Any] = field(default_factory=dict)

    def status(self, now: float) -> Status:
        return with_gaps(replace(super().status(now), detail="", **self.given))


def top(stage: Stage) -> str:
    """Return the first lines of the screen as one."""
    return " ".join(" ".join(lines(stage.app)[:5]).split())


MODES = list(tabs("live"))


@pytest.mark.parametrize("mode", MODES)
async def test_a_table_that_is_not_proven_is_told_on_every_screen(mode: str) -> None:
    stage = Stage(Open(given={"not_proven": (DELETED,)}))
    async with stage.run((120, 40)):
        await stage.show(mode)
        told = top(stage)
        assert "✗ NOT PROVEN" in told and "STREAMING" not in told
        assert f"✗ public.orders is not proven since 0/16B3748: {DELETED.reason}" in told
        assert "→ for public.orders run: bwtui snapshot public.orders" in told


@pytest.mark.parametrize("name", STATES)
async def test_a_state_is_told_on_the_screen_in_status_and_in_metrics(name: str) -> None:
    badge, changes = STATES[name]
    stage = Stage(Open(given=changes))
    status = stage.relay.shop.status(NOON)
    verdict = status.verdict
    sentence = LOCKED.message if "errors" in changes else verdict.sentence.partition("; ")[0]
    hint = LOCKED.hint if "errors" in changes else verdict.hint
    assert hint
    async with stage.run((120, 40)):
        if "errors" in changes:
            await stage.show("errors")
        assert badge in top(stage)
        # A screen has room for the beginning of a hint.
        told = " ".join(text(stage.app).split())
        assert sentence[:100] in told and hint[:40] in told
    printed = "\n".join(_in_full(status))
    assert sentence in printed and hint in printed
    found = samples_of(Measures(status))
    assert found["bwtui_verdict", (("verdict", verdict.code),)] == 1
    assert badge.lower().endswith(verdict.code.replace("_", " "))
    assert found["bwtui_tables_not_proven", ()] == len(status.not_proven)
    assert found["bwtui_heal_due", ()] == bool(status.heal)
    assert found["bwtui_errors_open", ()] == ("errors" in changes)


@pytest.mark.parametrize("name", STATES)
def test_a_state_has_its_line_in_the_page_of_incidents(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "incidents.md").read_text()
    [line] = [line for line in page.splitlines() if line.startswith(f"| {name} |")]
    first = line.split(" | ")[1].partition(" · ")
    badge, changes = STATES[name]
    if "errors" in changes:
        assert LOCKED.message in line
        return
    assert badge.endswith(first[0])
    # The dots, names and numbers of the page are examples.
    says = re.split(r"…|orders|late|0/\w+|\d+(?:\.\d+)?", first[2].partition("; ")[0])
    sentence = Open(given=changes).status(NOON).verdict.sentence
    assert [part for part in map(str.strip, says) if part not in sentence] == []


async def test_a_heal_that_is_under_way_is_amber() -> None:
    stage = Stage(Open(given=STATES["A heal is under way"][1]))
    async with stage.run((120, 40)):
        told = top(stage)
        assert "▲ NOT PROVEN" in told and "▲ topics may differ from tables since" in told
        assert "the relay is comparing them: comparing: 3 of 7" in told
        stage.relay.shop = Shop()
        await stage.advance(1)
        assert "✓ STREAMING" in top(stage)


async def test_figures_that_move_are_not_said_to_stand_still() -> None:
    stage = Stage(Open(given={"not_proven": (DELETED,)}))
    async with stage.run((120, 40)):
        assert "✓ in time" in text(stage.app)
        assert "no progress" not in text(stage.app)

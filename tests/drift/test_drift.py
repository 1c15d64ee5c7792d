"""Random changes of what completeness depends on: topics equal tables, or the status names the differences.

``make drift SECONDS=600 SEED=7 VERSION=14`` draws changes for 600 seconds, ``CHANGES=100`` stops after 100 of
them, ``ONLY="renamed and back,truncated"`` draws only these, and ``EACH=1`` tries each change once for each
time at which it may happen and each kind of publication. The short run has changes that the relay survives.
"""

import itertools
import os
from pathlib import Path

import pytest

from bwtui.model.proof import UnprovenTable
from bwtui.model.status import Status
from bwtui.model.verdict import RelayVerdict
from bwtui.sandbox.sandbox import ServiceAddresses
from tests.drift.campaign import Campaign, Look, Round, each, rounds
from tests.drift.changes import CHANGES, Change, Drawn, When
from tests.drift.comparison import Key, Row, TopicFold
from tests.fix_sandbox import MAJOR

SECONDS = float(os.environ.get("BWTUI_DRIFT_SECONDS") or "0")
SEED = int(os.environ.get("BWTUI_DRIFT_SEED") or "1")
COUNT = int(os.environ.get("BWTUI_DRIFT_CHANGES") or "0")
EACH = os.environ.get("BWTUI_DRIFT_EACH", "") not in ("", "0")
ONLY = [name.strip() for name in os.environ.get("BWTUI_DRIFT_ONLY", "").split(",") if name.strip()]
_BY_NAME = {change.name: change for change in CHANGES}
#: The short run, with when each change happens.
_SHORT = (
    ("written without triggers as a replica", When.RUNNING),
    ("replica identity full and back", When.KILLED),
    ("partition truncated", When.BETWEEN_POLLS),
    ("partition dropped", When.BETWEEN_POLLS),
    ("partition detached and attached", When.BETWEEN_POLLS),
    ("another output format", When.STOPPED),
    ("another topic prefix", When.STOPPED),
    ("another namespace", When.STOPPED),
    ("another registry", When.STOPPED),
)


@pytest.mark.services
@pytest.mark.timeout(SECONDS + 900)
def test_topics_equal_tables_or_the_status_names_what_differs(
    services: ServiceAddresses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No difference stays under a healthy verdict, and no table is reported as not proven without cause."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path / "state"))
    campaign = Campaign(services, tmp_path, SEED, logs=bool(SECONDS))
    if SECONDS:
        chosen = [_BY_NAME[name] for name in ONLY] or CHANGES
        drawn = each(SEED, chosen, MAJOR) if EACH else rounds(SEED, chosen, MAJOR)
        outcome = campaign.run(drawn, SECONDS, COUNT)
    else:
        short = tuple(Drawn(_BY_NAME[name], when, SEED) for name, when in _SHORT)
        batches = tuple(tuple(one) for _, one in itertools.groupby(short, lambda drawn: drawn.when))
        outcome = campaign.run(iter([Round("list", (), batches)]), 600)
    print(outcome.summary(), flush=True)
    assert outcome.results
    assert not outcome.failures, outcome.summary()


def test_a_seed_repeats_the_changes() -> None:
    first, again = (list(itertools.islice(rounds(7, CHANGES, 18), 50)) for _ in range(2))
    assert first == again
    assert len({one.change.name for drawn in first for batch in drawn.batches for one in batch}) > 20


def test_the_fold_finds_each_kind_of_difference() -> None:
    rows: dict[Key, Row] = {(("id", str(n)),): {"id": str(n), "v": "x"} for n in range(5)}
    fold = TopicFold()
    for n in (0, 1, 2, 9):
        fold.add(0, {"id": str(n)}, {"id": str(n), "v": "x"})
    fold.add(1, {"id": "1"}, {"id": "1", "v": "x"})
    fold.add(0, {"id": "2"}, {"id": "2", "v": "old"})
    fold.add(0, {"id": "3"}, None)
    fold.add(0, {"id": "4"}, {"id": "4", "v": "x"})
    fold.add(0, None, {"id": "4", "v": "x"})
    assert fold.differences(rows) == {
        "kept although deleted": 1,
        "live in two partitions": 1,
        "different": 1,
        "missing": 1,
        "without a key": 1,
    }
    fold.add(1, {"id": "1"}, None)
    assert "live in two partitions" not in fold.differences(rows)


def _look(
    differing: set[str], *named: str, condition: str = "healthy", command: str = "bwtui repair"
) -> Look:
    entries = tuple(UnprovenTable(name, 0, "it changed", command) for name in named)
    verdict = RelayVerdict(condition)  # type: ignore[arg-type]
    status = Status("streaming", "drift", "drift", not_proven=entries, verdict=verdict)
    return Look(dict.fromkeys(differing, "1 missing"), status)


def test_a_difference_under_a_healthy_verdict_is_silent() -> None:
    assert _look({"a"}).silent == {"a"}
    assert _look({"a"}, "a").silent == {"a"}
    assert _look({"a", "b"}, "a", condition="stalled").silent == {"b"}
    assert not _look({"a"}, "a", condition="stalled").silent
    assert not _look(set()).silent


def test_only_the_tables_that_differ_may_be_named() -> None:
    named = _look({"a"}, "a", "b", condition="stalled")
    assert named.ending("a", may_equal=False) == "named"
    assert named.ending("b", may_equal=False) == "false"
    assert named.ending("b", may_equal=True) == "named"
    assert _look({"a"}, "a", condition="stalled", command="").ending("a", may_equal=False) == "false"
    assert not _look(set(), "a").is_closed
    assert _look(set()).is_closed


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_every_change_can_be_drawn_alone(change: Change) -> None:
    for seed in range(10):
        drawn = next(rounds(seed, [change], 18)).batches
        assert {one.change for batch in drawn for one in batch} == {change}

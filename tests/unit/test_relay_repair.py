"""A repair, from its comparison to its request to the relay: its questions and its refusals."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from bwtui.audit.classes import Verdict
from bwtui.audit.report import AuditSummary
from bwtui.cli.output import repair_console
from bwtui.cli.output.progress import ProgressView
from bwtui.cli.output.repair_console import RepairConsole, summary
from bwtui.errors import BwtuiError, ConnectionFailed, Interrupted, RefusedError
from bwtui.model.backfill import BackfillRequest, BackfillStatus, to_json
from bwtui.relay.process.control import RelayUnresponsive
from bwtui.repair import relay_repair
from bwtui.repair.plan import TablePlan
from bwtui.repair.relay_repair import RelayRepair
from bwtui.repair.repair import RepairOutcome
from bwtui.settings import RelaySettings
from bwtui.verify.database import OnDifferences
from bwtui.verify.folding import Doubt, KeyDifference
from bwtui.verify.tables import ComparedTable

_TABLE = ComparedTable("public", "orders", "shop.orders", ("id",), ("id",))
_DAMAGED = (Doubt("damaged", "1 offsets are in batches that can't be read"),)
_DIFFERS = KeyDifference("missing_key", True, ("1",), None, None)
_SETTINGS = RelaySettings(slot="shop", topic_prefix="shop")


def report(
    verdict: Verdict, tables: Sequence[str] = ("public.orders",), unkeyed: Sequence[str] = ()
) -> AuditSummary:
    details = {"tables": list(tables), "unkeyed": list(unkeyed)}
    return AuditSummary(verdict, {}, 0, 0, {}, {}, {}, [], {}, [], [], details=details, question="database")


@dataclass
class Relay:
    """A relay with a pending heal, and a user; `answer` runs when the user is asked."""

    monkeypatch: pytest.MonkeyPatch
    doubts: tuple[Doubt, ...] = ()
    found: tuple[KeyDifference, ...] = ()
    answer: Callable[[], None] = lambda: None
    settings: RelaySettings = _SETTINGS
    #: Runs the comparison after the resend.
    compare_again: Callable[[], AuditSummary] = lambda: report("clean")
    asked: int = 0
    lists: list[str] = field(default_factory=list)
    #: The key encodings of each comparison.
    encodings: list[dict[str, str]] = field(default_factory=list)
    healed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.monkeypatch.setattr(relay_repair, "request", self._request)
        self.monkeypatch.setattr(relay_repair, "settings_of", lambda _: self.settings)
        self.monkeypatch.setattr(relay_repair, "report_audit", lambda *_: None)
        self.monkeypatch.setattr(relay_repair, "send_again", self._take)

    def repair(self) -> RepairOutcome:
        return RelayRepair(_SETTINGS, self._compare, lambda _: None, self, relay="shop").run()

    def _compare(
        self, on_differences: OnDifferences | None, _: Callable[[str], None], encodings: Mapping[str, str]
    ) -> AuditSummary:
        self.encodings.append(dict(encodings))
        if on_differences is not None:
            on_differences(_TABLE, self.doubts, iter(self.found))
            return report("anomalies" if self.found else "clean")
        return self.compare_again()

    def _request(self, _: str, message: dict[str, Any]) -> Any:
        if message["request"] == "healed":
            self.healed.append(message["lsn"])
        done = [to_json(BackfillStatus(one, "public.orders", "repair", state="done")) for one in self.lists]
        tables = {"public.orders": {"key_schema_id": 7 + len(self.lists)}}
        return {"tables": tables, "heal": {"lsn": "0/1"}, "backfills": done}

    def _take(self, _: str, wanted: BackfillRequest) -> str:
        # In JSON only this shows that the table has a different key by now.
        assert wanted.key_columns == _TABLE.key
        self.lists.append(f"{len(self.lists) + 1}-orders")
        return self.lists[-1]

    def phase(self, name: str) -> None: ...

    def count(self, done: int, total: int) -> None: ...

    def confirm(self, outcome: RepairOutcome) -> None:
        self.asked += 1
        self.answer()


def test_what_differs_is_asked_for_once_and_the_heal_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    relay = Relay(monkeypatch, found=(_DIFFERS,))
    assert relay.repair().exit_code == 0
    assert (relay.asked, relay.lists, relay.healed) == (1, ["1-orders"], ["0/1"])


def test_each_comparison_uses_the_key_encodings_that_the_relay_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relay = Relay(monkeypatch, found=(_DIFFERS,))
    relay.repair()
    assert relay.encodings == [{"public.orders": "7"}, {"public.orders": "8"}]


@pytest.mark.parametrize("has_asked", [True, False])
def test_what_was_found_before_is_not_told_as_if_it_were_still_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_asked: bool
) -> None:
    """Users who confirmed the plan have seen it; for others it is shown as the state before the repair."""
    relay = Relay(monkeypatch, found=(_DIFFERS,))
    monkeypatch.setattr(repair_console, "confirm", lambda question: True)
    screen = RepairConsole("shop", ProgressView(), yes=not has_asked, is_dry=True)
    relay.confirm = screen.confirm  # type: ignore[method-assign]
    outcome = relay.repair()
    shown = capsys.readouterr().err.splitlines()
    lines = summary("shop", outcome, is_shown=screen.has_asked)
    found = [line for line in lines if "anomalies" in line]
    assert ("anomalies: 0 (0 " in "".join(shown), len(found)) == (has_asked, not has_asked)
    assert all(line.startswith("before: ") for line in found)
    assert [line for line in lines if line.startswith("clean: ")]


def test_a_heal_that_nothing_proves_ends_only_after_a_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    def no() -> None:
        raise RefusedError("the heal is still pending", "")

    relay = Relay(monkeypatch, doubts=_DAMAGED, answer=no)
    with pytest.raises(RefusedError, match="still pending"):
        relay.repair()
    assert (relay.asked, relay.healed) == (1, [])
    relay.answer = lambda: None
    relay.repair()
    assert (relay.asked, relay.healed) == (2, ["0/1"])


def test_a_heal_that_is_proven_ends_without_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    relay = Relay(monkeypatch)
    relay.repair()
    assert (relay.asked, relay.healed) == (0, ["0/1"])


def test_a_relay_with_other_settings_by_then_is_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def restart() -> None:
        relay.settings = replace(_SETTINGS, topic_prefix="other")

    relay = Relay(monkeypatch, found=(_DIFFERS,), answer=restart)
    with pytest.raises(RefusedError, match="different settings"):
        relay.repair()
    assert (relay.lists, relay.healed) == ([], [])


@pytest.mark.parametrize(
    "failure", [RefusedError("is being sent already", "wait"), ConnectionFailed("gone", "")]
)
def test_a_list_that_is_refused_says_that_those_before_it_were_taken(
    monkeypatch: pytest.MonkeyPatch, failure: RefusedError | ConnectionFailed
) -> None:
    answers = iter(["1-orders", failure])

    def take(*_: Any) -> str:
        answer = next(answers)
        if isinstance(answer, str):
            return answer
        raise answer

    monkeypatch.setattr(relay_repair, "send_again", take)
    plans = [TablePlan(name, name, keys=Path(name)) for name in ("public.orders", "public.items")]
    with pytest.raises(type(failure), match=r"; .* sends their rows: 1-orders$") as refused:
        relay_repair.submit("shop", plans, "repair")
    assert refused.value.hint == failure.hint


def test_an_interrupt_between_two_lists_says_what_the_relay_has(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["1-orders"])

    def take(*_: Any) -> str:
        for answer in answers:
            return answer
        raise KeyboardInterrupt

    monkeypatch.setattr(relay_repair, "send_again", take)
    plans = [TablePlan(name, name, keys=Path(name)) for name in ("public.orders", "public.items")]
    with pytest.raises(
        Interrupted, match=r"repair of public.items .*; .* sends their rows: 1-orders$"
    ) as ended:
        relay_repair.submit("shop", plans, "repair")
    assert "'bwtui status shop' lists the relay's requests" in ended.value.hint


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), ConnectionFailed("Kafka can't be reached", "is it there?")]
)
def test_what_ends_the_last_comparison_says_what_was_sent(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail() -> AuditSummary:
        raise error

    relay = Relay(monkeypatch, found=(_DIFFERS,), compare_again=fail)
    with pytest.raises(BwtuiError, match="; 0 rows and 0 tombstones had been sent") as ended:
        relay.repair()
    assert ended.value.exit_code == (130 if isinstance(error, KeyboardInterrupt) else 4)
    assert relay.healed == []


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (report("clean", ["public.items"]), "public.orders is no longer compared"),
        (report("clean", unkeyed=["public.orders"]), "public.orders no longer has the key"),
    ],
)
def test_a_table_that_is_not_compared_any_more_is_not_clean(
    monkeypatch: pytest.MonkeyPatch, after: AuditSummary, says: str
) -> None:
    relay = Relay(monkeypatch, found=(_DIFFERS,), compare_again=lambda: after)
    outcome = relay.repair()
    assert (outcome.exit_code, outcome.last.verdict, relay.healed) == (3, "indeterminate", [])
    assert says in outcome.notes[-1]
    assert outcome.last.notes == outcome.notes


def test_a_task_that_the_relay_forgets_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    def polls() -> Iterator[list[BackfillStatus]]:
        first = BackfillStatus("1", "public.a", "repair", state="done", rows=5, estimate=5)
        second = BackfillStatus("2", "public.b", "repair", state="running", rows=1, estimate=2)
        yield [first, second]
        yield [replace(second, state="done", rows=2)]

    looks = polls()
    silences = iter([RelayUnresponsive("relay shop does not answer", "")])

    def look(_: str) -> list[BackfillStatus]:
        for silence in silences:
            raise silence
        return next(looks)

    counts: list[tuple[int, int]] = []
    monkeypatch.setattr(relay_repair, "tasks", look)
    ended = relay_repair.wait("shop", ["1", "2"], lambda *now: counts.append(now))
    assert [(one.id, one.state, one.rows) for one in ended] == [("1", "done", 5), ("2", "done", 2)]
    assert counts == [(6, 7), (7, 7)]

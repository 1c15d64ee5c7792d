"""What others may ask for: looked at before it is kept."""

from pathlib import Path

import pytest

from bwtui.errors import RefusedError
from bwtui.model.backfill import BackfillRequest
from bwtui.relay.backfill.requests import BackfillRequests
from bwtui.relay.backfill.store import BackfillStore
from bwtui.relay.run_state import RunState


@pytest.fixture
def asking(tmp_path: Path) -> BackfillRequests:
    """What is asked of a relay of two tables, one of which no publication has."""
    report = RunState()
    report.table("public.orders")
    report.table("public.users")
    report.not_captured = ("public.users",)
    return BackfillRequests(BackfillStore(tmp_path), report)


def test_a_table_of_the_relay_is_taken(asking: BackfillRequests) -> None:
    id = asking.submit(BackfillRequest("public.orders", where="id > 7"))
    assert asking.control(id, "pause").state == "paused"


def test_before_tables_are_known_any_is_taken(tmp_path: Path) -> None:
    """As it is while the relay waits for PostgreSQL."""
    assert (
        BackfillRequests(BackfillStore(tmp_path), RunState()).submit(BackfillRequest("public.orders"))
        == "1-orders"
    )


@pytest.mark.parametrize(
    ("wanted", "message", "hint"),
    [
        (BackfillRequest("public.order"), "the relay does not capture table public.order", "public.orders"),
        (BackfillRequest("x"), "the relay does not capture table x", "lists the captured tables"),
        (BackfillRequest("public.users"), "public.users is not captured", "doctor"),
        (BackfillRequest("public.orders", where=" \n"), "the condition is empty", "SQL expression"),
        (BackfillRequest("public.orders", where="a\0b"), "the condition is empty", "SQL expression"),
        (BackfillRequest("public.orders", where="a", keys="/b"), "exclude each other", "one of them"),
    ],
)
def test_what_can_not_be_is_refused(
    asking: BackfillRequests, wanted: BackfillRequest, message: str, hint: str
) -> None:
    with pytest.raises(RefusedError, match=message) as refused:
        asking.submit(wanted)
    assert hint in refused.value.hint

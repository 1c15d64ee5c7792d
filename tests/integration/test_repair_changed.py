"""A repair with a relay whose table changes between the comparison and the sending of its keys.

The change happens while the user thinks about the yes. The rows sent are right at the time of sending, or the
repair is refused with a true sentence; no key of the topic is worse than before.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from bwtui.cli.inputs.compared_tables import source_of
from bwtui.cli.inputs.repair_target import RepairTarget
from bwtui.encode.registry import ask_registry
from bwtui.kafka.client import client_config
from bwtui.kafka.scan import partitions
from bwtui.relay.process.control import settings_of
from bwtui.repair import relay_repair
from bwtui.repair.relay_repair import RelayRepair
from tests.attempts import Attempts
from tests.database import Session, session
from tests.decoded_topic import decoded_avro, decoded_json, latest
from tests.integration.test_repair import break_topic
from tests.integration.test_repair_alone import Watch
from tests.integration.test_verify_database import relaying
from tests.waiting import eventually

pytestmark = pytest.mark.services

_MADE = """
create table a (id int primary key, n int not null, v text);
insert into a select g, 10 - g, g from generate_series(1, 9) g;
create table b (id int primary key, w text);
create publication {publication} for table a, b
"""
_MADE_ANEW = (
    "create table a (id int primary key, n int not null, v text); insert into a values (1, 1, 'other')"
)
_SWAPPED = "alter table a rename to c; alter table b rename to a; alter table c rename to b"
_OTHER_KEY = "alter table a drop constraint a_pkey; alter table a add primary key (n)"

Rows = dict[tuple[Any, ...], dict[str, Any]]


def case(form: str, change: str, code: int, sent: tuple[int, int] | None, says: str, *marks: Any) -> Any:
    """``sent``: rows and tombstones; None if that depends on which keys differed."""
    return pytest.param(form, change, code, sent, says, marks=marks, id=f"{form}-{change[:45]}")


_LONG = pytest.mark.long
CASES = [
    case("avro", "drop table a", 3, (0, 0), "public.a is no longer compared"),
    case("avro", "update a set v = 'new'", 0, None, "", _LONG),
    case("avro", "delete from a where id <= 5", 0, None, "", _LONG),
    case("avro", "alter table a drop column v", 0, (2, 0), "", _LONG),
    case("avro", "alter table a add column w int default 7", 1, (2, 0), "", _LONG),
    case("avro", "alter table a rename to c", 3, (0, 0), "table public.a does not exist", _LONG),
    case(
        "avro",
        f"drop table a; {_MADE_ANEW}",
        1,
        None,
        "no publication of the relay contains table public.a",
        _LONG,
    ),
    case("avro", "truncate a", 1, (0, 2), "", _LONG),
    case("avro", _OTHER_KEY, 1, (0, 0), "changed from (id) to (n)", _LONG),
    # If each key is JSON, no schema shows that the key changed.
    case("json", _OTHER_KEY, 1, (0, 0), "changed from (id) to (n)", _LONG),
    case("json", "alter table a rename column id to key", 1, (0, 0), "changed from (id) to (key)", _LONG),
    case("avro", "alter table a drop constraint a_pkey", 3, (0, 0), "to (none)", _LONG),
    case("avro", "alter table a alter column id type bigint", 0, (2, 0), "", _LONG),
    case("json", "alter table a alter column id type bigint", 0, (2, 0), "", _LONG),
    case("avro", _SWAPPED, 1, (0, 2), "", _LONG),
    case("avro", "alter publication {publication} drop table a", 1, (0, 0), "in no publication", _LONG),
    case("avro", "alter publication {publication} set table a where (id > 5), b", 1, None, "", _LONG),
    case("avro", "alter publication {publication} set table a (id, n), b", 0, (2, 0), "", _LONG),
]


def over_relay(attempts: Attempts, confirm: Callable[[], None]) -> RelayRepair:
    """Return a repair in this process; ``confirm`` is called in place of the question."""
    settings = settings_of(attempts.name)
    cluster = partitions(client_config(settings))[0]
    target = RepairTarget(attempts.name, settings, settings, cluster, source_of(settings))
    ask = ask_registry(settings)
    return RelayRepair(settings, target.compare, ask, Watch(confirm), relay=attempts.name)


def assert_never_worse(before: Rows, now: Rows, rows: list[dict[str, Any]]) -> None:
    """Check that each key's latest record is its previous one, or its row, in the columns of both."""
    there = {(row["id"],): row for row in rows if "id" in row}
    for key in before.keys() | now.keys():
        found, row = now.get(key), there.get(key)
        assert found == before.get(key) or _agrees(found, row), f"{key}: {found}, and its row is {row}"


def published(source: Session) -> list[dict[str, Any]]:
    """Return the rows of the table that a stream would have sent."""
    chosen = source.value("select rowfilter from pg_publication_tables where tablename = 'a'") or "true"
    return [row for (row,) in source.rows(f"select to_jsonb(a) from a where {chosen}")]


def _agrees(found: dict[str, Any] | None, row: dict[str, Any] | None) -> bool:
    if found is None or row is None:
        return found is row
    return all(found[name] == row[name] for name in found.keys() & row.keys())


@pytest.mark.parametrize(("form", "change", "code", "sent", "says"), CASES)
def test_a_table_that_changes_before_the_yes(
    attempts: Attempts,
    source: Session,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    change: str,
    code: int,
    sent: tuple[int, int] | None,
    says: str,
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(attempts.state))
    publication, topic = f"mine_{attempts.name}", f"{attempts.name}.a"
    source.run(_MADE.format(publication=publication))
    decode = decoded_avro if form == "avro" else decoded_json
    with relaying(attempts, database, source, "-f", form, "--publication", publication):
        break_topic(attempts, topic)
        before = latest(decode(attempts.services, topic))
        outcome = over_relay(attempts, lambda: source.run(change.format(publication=publication))).run()
        now = latest(decode(attempts.services, topic))
    (done,) = outcome.sent
    told = f"{done}\n{outcome.notes}\n{outcome.last.wrong}"
    rows = published(source) if source.value("select to_regclass('public.a') is not null") else []
    assert_never_worse(before, now, rows)
    assert outcome.exit_code == code, told
    assert sent in (None, (done.rows, done.tombstones)), told
    assert says in " ".join(outcome.notes), told


@pytest.mark.long
def test_two_at_once_and_the_whole_table_besides(attempts: Attempts, source: Session, database: str) -> None:
    topic = f"{attempts.name}.a"
    source.run(_MADE.format(publication=f"mine_{attempts.name}"))
    with relaying(attempts, database, source):
        break_topic(attempts, topic)
        repair = ("repair", "--relay", attempts.name, "--yes")
        commands = [attempts.begin(*args) for args in (repair, ("snapshot", "a"), repair)]
        ended = [(*command.communicate(timeout=300), command.returncode) for command in commands]
        for _, said, code in ended:
            # If two send the same table at the same time, one is refused.
            assert code == 0 or (code == 2 and "public.a already has an unfinished backfill" in said), said
        assert [code for *_, code in ended].count(0) >= 2
        rows = [row for (row,) in source.rows("select to_jsonb(a) from a")]
        found = latest(decoded_avro(attempts.services, topic))
        assert found == {(row["id"],): row for row in rows}


@pytest.mark.long
@pytest.mark.parametrize("who", ["the relay", "the session that reads"])
def test_who_is_suspended_meanwhile_is_waited_for(
    attempts: Attempts, source: Session, database: str, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(attempts.state))
    source.run(_MADE.format(publication=f"mine_{attempts.name}"))
    blocked = (
        "select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    )
    wait = relay_repair.wait
    with relaying(attempts, database, source) as relay, session(database) as holder:
        break_topic(attempts, f"{attempts.name}.a")

        def suspended(*args: Any) -> Any:
            pid = relay.pid
            if who != "the relay":
                pid = eventually(
                    "its session waits for the table", lambda: source.value(f"{blocked} limit 1")
                )
            os.kill(pid, signal.SIGSTOP)
            holder.run("rollback")
            resume = threading.Timer(12.0, os.kill, (pid, signal.SIGCONT))
            resume.start()
            try:
                return wait(*args)
            finally:
                resume.join()

        monkeypatch.setattr(relay_repair, "wait", suspended)

        def hold() -> None:
            if who != "the relay":
                holder.run("begin; lock table a in access exclusive mode")

        begun = time.monotonic()
        outcome = over_relay(attempts, hold).run()
        assert outcome.exit_code == 0, outcome.notes
        assert [(one.state, one.rows) for one in outcome.sent] == [("done", 2)]
        assert time.monotonic() - begun > 12.0

"""The whole demo on the test run's sandbox: workload, relay, catching up, and the comparison."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from bwtui.cli.demo import DemoAudits, _play, report
from bwtui.demo import shop
from bwtui.demo.headless import run_for
from bwtui.demo.run import NAME, Demo, DemoOptions, running
from bwtui.demo.verdict import TableVerdict
from bwtui.errors import BwtuiError, RefusedError
from bwtui.packages.setup_progress import SetupProgress
from bwtui.relay.process.lock import is_held
from bwtui.sandbox.sandbox import DEFAULT_MAJOR, Sandbox, ServiceAddresses
from tests.database import session

pytestmark = [
    pytest.mark.services,
    pytest.mark.since(DEFAULT_MAJOR, "the demo always runs the newest"),
]


@pytest.fixture
def demo(sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Demo]:
    """A running demo in the sandbox of the test run, which stays up."""
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    options = DemoOptions(
        rate=200, scale=0.3, keep=True, folder=sandbox.folder, record=str(tmp_path / "r"), audit=True
    )
    with running(options, SetupProgress()) as demo:
        yield demo
    assert not is_held(NAME)


def until_streaming(demo: Demo) -> None:
    """Wait until the snapshot is complete and the stream has sent updates and deletes."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        demo.check()
        found = demo.status().tables
        tables = found.values()
        # Enough updates of orders that some have several versions, so the order can be wrong.
        orders = found["public.orders"].updates if "public.orders" in found else 0
        if (
            orders > 250
            and sum(table.updates for table in tables) > 300
            and sum(table.deletes for table in tables) > 30
        ):
            return
        time.sleep(0.05)
    pytest.fail("the relay did not get to streaming")


def test_a_shop_that_another_relay_reads_is_not_made_anew(services: ServiceAddresses, database: str) -> None:
    """As after a user has connected a relay of their own to the demo's services, and runs the demo again."""
    slot = f"other_{time.monotonic_ns():x}"
    with session(database) as opened:
        opened.run("select pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
        opened.run("create table kept (id int)")
    with pytest.raises(RefusedError, match=f"slot {slot} of another relay reads it") as refused:
        shop.recreate_database(services.postgres, database.rpartition("/")[2])
    assert f"bwtui slots drop {slot}" in refused.value.hint
    with session(database) as opened:
        opened.run("select from kept")


def test_the_topics_equal_the_tables_and_a_planted_difference_is_seen(
    demo: Demo, sandbox: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    run_for(demo, 1.2, lines.append)
    assert len(lines) == 2
    assert "transactions" in lines[0]
    until_streaming(demo)

    settled = demo.settle()
    audited = DemoAudits([demo.audit_tables()])
    demo.stop_relay()
    assert settled.workload["rolled_back"] > 0
    assert settled.workload["savepoints_rolled_back"] > 0
    assert settled.status.confirmed_lsn >= settled.end_lsn
    comparison = demo.compare()
    assert comparison.outcome == "equal", comparison.sentence
    audited.audits.append(demo.audit_recording())
    assert report(comparison, settled.to_json(), audited, as_json=False) == 0
    told = capsys.readouterr().out
    for verdict in ("equal: ", "tables: clean: ", "recording: clean: "):
        assert verdict in told
    rows = {table.table: table.rows for table in comparison.tables}
    assert _counted_by_duckdb(demo.recording) == rows

    _plant(sandbox)
    comparison = demo.compare()
    assert report(comparison, settled.to_json(), DemoAudits(), as_json=True) == 1
    capsys.readouterr()
    found = {table.table: _numbers(table) for table in comparison.tables if not table.equal}
    assert found == {
        "public.audit": (1, 0, 0),
        "warehouse.stock": (0, 1, 0),
        "public.customers": (0, 0, 1),
    }

    faults = demo.sabotage()
    audited.audits.append(demo.audit_recording())
    audited.judge(faults)
    assert audited.judgement is not None
    assert audited.judgement.holds, audited.judgement.sentence
    assert report(comparison, settled.to_json(), audited, as_json=True) == 1
    assert json.loads(capsys.readouterr().out)["sabotage"]["all_found"]


def test_a_demo_that_is_too_short_for_its_faults_goes_on_until_it_has_enough(
    sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWTUI_STATE_HOME", str(tmp_path))
    options = DemoOptions(rate=200, scale=0.3, keep=True, folder=sandbox.folder, audit=True, sabotage=True)
    _, _, audited = _play(options, lambda demo: None, SetupProgress())
    assert audited.judgement is not None
    assert audited.judgement.holds, audited.judgement.sentence


def _counted_by_duckdb(recording: str) -> dict[str, int]:
    """Return the number of rows of each table, read only from the sealed Parquet files."""
    found = (
        duckdb.connect()
        .execute(
            """select relation,
                sum(case when op = 'delete' then -1 when op in ('update', 'key_change') then 0 else 1 end)
                  ::bigint
             from read_parquet(?, hive_partitioning = true) where not is_repeat group by relation""",
            [f"{recording}/sealed/changes/**/*.parquet"],
        )
        .fetchall()
    )
    return dict(found)


def _plant(sandbox: Sandbox) -> None:
    """Insert, delete and update a row each, now that no relay runs to send them."""
    services = sandbox.services()
    with (
        contextlib.closing(shop.connect(services.postgres, shop.DATABASE)) as connection,
        connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("insert into audit (at, action) values (now(), 'planted')")
        cursor.execute("delete from warehouse.stock where ctid = (select ctid from warehouse.stock limit 1)")
        cursor.execute("update customers set name = name || '?' where id = (select min(id) from customers)")


def _numbers(table: TableVerdict) -> tuple[int, int, int]:
    return table.missing, table.extra, table.different


def test_a_workload_that_is_killed_is_an_error_and_not_an_equal_verdict(demo: Demo) -> None:
    workload = demo._workload
    assert workload is not None
    workload._process.kill()
    workload._process.wait()
    with pytest.raises(BwtuiError, match="ended unexpectedly"):
        demo.check()
    with pytest.raises(BwtuiError, match="did not end cleanly"):
        demo.settle()

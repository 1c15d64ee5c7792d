"""``bwtui repair --without-relay``: next to a relay that runs elsewhere, and never worse than before.

The relay is one of ours under a different state folder, so the repair has no record of it.
"""

import contextlib
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from bwtui.cli.inputs.compared_tables import source_of
from bwtui.cli.inputs.repair_target import RepairTarget
from bwtui.encode.registry import ask_registry
from bwtui.errors import RefusedError
from bwtui.kafka.client import client_config
from bwtui.kafka.scan import partitions
from bwtui.relay.history.backfill_store import Key
from bwtui.repair.concurrent_writes import ConcurrentWrites
from bwtui.repair.producer import RowProducer, SendResult
from bwtui.repair.repair import RepairOutcome
from bwtui.repair.standalone_repair import StandaloneRepair
from bwtui.settings import RelaySettings
from tests.attempts import Attempts, Ended
from tests.database import Session
from tests.decoded_topic import decoded_avro, latest
from tests.integration.test_repair import break_topic
from tests.integration.test_verify_database import relaying
from tests.raw_topic import raw_messages
from tests.shut_topic import shut
from tests.waiting import eventually

pytestmark = pytest.mark.services

_MADE = "create table a (id int primary key, v text); insert into a select g, g from generate_series(1, 9) g"


class Elsewhere:
    """A machine that has no record of the relay of `attempts`."""

    def __init__(self, attempts: Attempts, database: str, folder: Path) -> None:
        folder.mkdir()
        self._here = Attempts(attempts.services, folder)
        services, self.name = attempts.services, attempts.name
        self.settings = RelaySettings(
            postgres=database,
            slot=self.name,
            topic_prefix=self.name,
            broker=services.broker,
            schema_registry=services.schema_registry,
        )
        self.given = ["-d", database, "-s", self.name, "-p", self.name]
        self.given += ["-b", services.broker, "-r", services.schema_registry]

    def run(self, *args: str) -> Ended:
        return self._here.command("repair", *self.given, *args)

    def repaired(self, code: int, *args: str) -> dict[str, Any]:
        ended = self.run("--without-relay", "--json", *args)
        assert ended.code == code, ended.stderr
        found: dict[str, Any] = json.loads(ended.stdout)
        return found

    def alone(self, producer: RowProducer, confirm: Callable[[], None] = lambda: None) -> StandaloneRepair:
        """Return a repair in this process; ``confirm`` is called in place of the question."""
        settings, cluster = self.settings, partitions(client_config(self.settings))[0]
        target = RepairTarget("", settings, settings, cluster, source_of(settings))
        watch = Watch(confirm)
        return StandaloneRepair(
            settings,
            target.compare,
            ask_registry(settings),
            watch,
            producer=producer,
            topics=target.topics(),
            refuse_local_relays=lambda: None,
        )


class Watch:
    def __init__(self, confirmed: Callable[[], None]) -> None:
        self._confirmed = confirmed

    def phase(self, name: str) -> None: ...

    def count(self, done: int, total: int) -> None: ...

    def confirm(self, outcome: RepairOutcome) -> None:
        self._confirmed()


@pytest.fixture
def elsewhere(attempts: Attempts, database: str, tmp_path: Path) -> Elsewhere:
    return Elsewhere(attempts, database, tmp_path / "elsewhere")


@pytest.mark.parametrize("form", ["avro", pytest.param("json", marks=pytest.mark.long)])
def test_exactly_what_differs_is_sent(
    attempts: Attempts, source: Session, database: str, elsewhere: Elsewhere, form: str
) -> None:
    source.run(_MADE)
    topic, used = f"{attempts.name}.a", ("-f", form)
    with relaying(attempts, database, source, *used):
        held = break_topic(attempts, topic)
        stranger = elsewhere.run("--database", "--yes")
        assert stranger.code == 4
        assert "--without-relay" in stranger.stderr
        planned = elsewhere.repaired(1, *used, "--dry-run")
        assert (planned["state"], planned["rows"], planned["relay"]) == ("planned", 2, None)
        assert "can precede the repair's older row" in planned["caveat"]
        asked = elsewhere.run("--without-relay", *used)
        assert (asked.code, "--yes" in asked.stderr) == (2, True)
        assert len(raw_messages(attempts.services, topic)) == held
        done = elsewhere.repaired(0, *used, "--yes")
        assert (done["verdict"], done["state"], done["sent"][0]["rows"]) == ("clean", "done", 2)
        assert len(raw_messages(attempts.services, topic)) == held + 2
        again = elsewhere.repaired(0, *used, "--yes")
        assert (again["state"], again["messages"]) == ("nothing to send", 0)


def test_what_would_do_harm_is_refused(
    attempts: Attempts, source: Session, database: str, elsewhere: Elsewhere
) -> None:
    source.run(f"{_MADE}; create table b (id int primary key); insert into b values (1)")
    topic = f"{attempts.name}.a"
    with relaying(attempts, database, source):
        held = break_topic(attempts, topic)
        here = attempts.command("repair", *elsewhere.given, "--without-relay", "--yes")
        assert here.code == 2
        assert f"bwtui repair --relay {attempts.name}" in here.stderr
        other = elsewhere.run("--without-relay", "--yes", "-f", "json")
        assert other.code == 2
        assert "are encoded differently" in other.stderr and "as Avro with schema id" in other.stderr
        spelled = elsewhere.run("--without-relay", "--yes", "--toast", "placeholder")
        assert spelled.code == 2
        assert "is not registered under subject" in spelled.stderr
        misplaced = elsewhere.run("--without-relay", "--yes", "--relay", attempts.name)
        assert "mutually exclusive" in misplaced.stderr
        admin = AdminClient({"bootstrap.servers": attempts.services.broker})
        admin.delete_topics([f"{attempts.name}.b"])[f"{attempts.name}.b"].result()
        gone = elsewhere.run("--without-relay", "--yes")
        assert gone.code == 2
        assert f"topic {attempts.name}.b does not exist" in gone.stderr
        assert len(raw_messages(attempts.services, topic)) == held
        assert f"{attempts.name}.b" not in admin.list_topics(timeout=10).topics
    stopped = elsewhere.run("--without-relay", "--yes", "--table", "a")
    assert stopped.code == 3
    assert "no relay reads slot" in stopped.stderr


def test_a_report_is_of_what_was_given(
    attempts: Attempts, source: Session, database: str, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    source.run(f"{_MADE}; create table b (id int primary key, v text); insert into b select id, v from a")
    path = tmp_path / "report.json"
    with relaying(attempts, database, source):
        for name in "ab":
            break_topic(attempts, f"{attempts.name}.{name}")
        given = ("verify", "--database", "--relay", attempts.name, "--json", "--table", "a")
        told = json.loads(attempts.command(*given).stdout)
        for wrong in ({"source": {**told["source"], "system_identifier": "1"}}, {"cluster": "another"}):
            path.write_text(json.dumps({**told, **wrong}))
            ended = elsewhere.run(str(path), "--without-relay", "--yes")
            assert ended.code == 2
            assert "different" in ended.stderr
        path.write_text(json.dumps(told))
        # Rows that have changed since the report are sent in their current state.
        source.run("update a set v = 'new' where id = 1; delete from a where id = 2")
        done = elsewhere.repaired(0, str(path), "--yes")
        assert [one["table"] for one in done["tables"]] == ["public.a"]
        assert "report" in done["notes"][0]


def test_a_topic_that_takes_nothing_is_said(
    attempts: Attempts, source: Session, database: str, elsewhere: Elsewhere
) -> None:
    source.run(_MADE)
    topic = f"{attempts.name}.a"
    with relaying(attempts, database, source):
        held = break_topic(attempts, topic)
        with shut(attempts.services.broker, topic):
            ended = elsewhere.run("--without-relay", "--yes")
        assert ended.code == 4, ended.stderr
        assert f"Kafka rejects every message for topic {topic}" in ended.stderr
        assert len(raw_messages(attempts.services, topic)) == held


class Racing(RowProducer):
    """A repair that is overtaken: after its last poll before it sends, the other relay sends a change."""

    def __init__(self, settings: RelaySettings, change: Callable[[], None]) -> None:
        super().__init__(settings)
        self._change = change
        self.puts: list[tuple[int, int]] = []

    def put(self, table: str, keys: Sequence[Key], tail: ConcurrentWrites, look: int) -> SendResult:
        advance = tail.advance

        def advance_and_race() -> set[bytes]:
            found = advance()
            tail.advance = advance  # type: ignore[method-assign]
            self._change()
            return found

        tail.advance = advance_and_race  # type: ignore[method-assign]
        put = super().put(table, keys, tail, look)
        self.puts.append((put.rows, len(put.overtaken)))
        return put


def test_a_row_that_another_relay_overtook_is_sent_once_more(
    attempts: Attempts, source: Session, database: str, elsewhere: Elsewhere
) -> None:
    source.run(_MADE)
    topic = f"{attempts.name}.a"
    with relaying(attempts, database, source):
        held = break_topic(attempts, topic)
        # All rows are written twice while two are sent, which gives these numbers of records.
        changes = iter((held + 9, held + 9 + 2 + 9))

        def change() -> None:
            if (wanted := next(changes, None)) is not None:
                source.run("update a set v = %s", str(wanted))
                eventually(
                    "the other relay has sent it",
                    lambda: len(raw_messages(attempts.services, topic)) == wanted,
                )

        with contextlib.closing(Racing(elsewhere.settings, change)) as producer:
            outcome = elsewhere.alone(producer).run()
        # Two rows were overtaken, both were sent once more, and then no other record was written in between.
        assert producer.puts == [(2, 2), (2, 2), (2, 0)]
        assert outcome.exit_code == 0, outcome.after
        newest = latest(decoded_avro(attempts.services, topic))
        assert {row["v"] for row in newest.values()} == {str(held + 20)}


def test_a_table_that_changes_before_the_yes(
    attempts: Attempts, source: Session, database: str, elsewhere: Elsewhere
) -> None:
    source.run(_MADE)
    topic = f"{attempts.name}.a"
    with relaying(attempts, database, source):
        held = break_topic(attempts, topic)

        def rows_change() -> None:
            source.run("update a set v = 'newer ' || id")
            eventually(
                "the other relay has sent it",
                lambda: len(raw_messages(attempts.services, topic)) == held + 9,
            )

        with contextlib.closing(RowProducer(elsewhere.settings)) as producer:
            outcome = elsewhere.alone(producer, rows_change).run()
        # The other relay has repaired both.
        assert (outcome.sent[0].rows, outcome.sent[0].left_out) == (0, 2)
        assert outcome.exit_code == 0
        break_topic(attempts, topic)
        held = len(raw_messages(attempts.services, topic))
        altered = "alter table a drop constraint a_pkey; alter table a add primary key (v)"
        for ddl, says in (
            ("alter table a add column w int", "is not registered under subject"),
            (altered, "key of table"),
        ):
            alter = partial(source.run, ddl)
            with (
                contextlib.closing(RowProducer(elsewhere.settings)) as producer,
                pytest.raises(RefusedError, match=says),
            ):
                elsewhere.alone(producer, alter).run()
            source.run("alter table a drop column if exists w")
        assert len(raw_messages(attempts.services, topic)) == held

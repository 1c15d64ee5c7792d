"""Incidents in which rows are lost or may be lost: all surfaces report it until it is resolved.

See docs/incidents.md.
"""

import json
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from bwtui.cli.main import cli
from bwtui.model.status import Status
from bwtui.model.verdict import Word
from bwtui.sandbox.ports import choose
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from tests.database import session
from tests.faults.administration import configure_topic, make_topic
from tests.faults.backfills import ask, wait_done
from tests.faults.incidents import first_lines, frozen, healthy, stalled
from tests.faults.relays import Relay, execute, wait_for
from tests.faults.test_heal_cases import ITEMS, MADE, command, lose
from tests.scraping import Scrape, probe
from tests.second_postgres import SecondPostgres

NewRelay = Callable[..., Relay]
_HEAL_SECONDS = 120.0


@pytest.fixture
def port() -> int:
    """Return a free port."""
    return choose(["http"], {})["http"]


def told_everywhere(
    relay: Relay, port: int, verdict: Word, *words: str, seconds: float = _HEAL_SECONDS
) -> Status:
    """Wait for the verdict, and check that all surfaces show ``words``."""
    try:
        status = relay.wait(
            f"the verdict {verdict}",
            lambda now: now.verdict.code == verdict and all(word in now.verdict.sentence for word in words),
            seconds,
        )
    except AssertionError as error:
        last = relay.status()
        raise AssertionError(f"{error}; at last: {last and last.verdict}") from error
    plain = CliRunner().invoke(cli, ["status", relay.name]).stdout
    said = json.loads(CliRunner().invoke(cli, ["status", relay.name, "--json"]).stdout)
    assert said["verdict"] == verdict
    badge = verdict.upper().replace("_", " ")
    screen = " ".join(" ".join(first_lines(relay, badge, (120, 40))).split())
    _, ready = probe(port, "/readyz")
    for word in words:
        assert word in plain
        assert word in said["reason"]
        assert word in ready["verdict"]
    # A screen has room for the first of them.
    assert words[0] in screen, screen
    wait_for("the metric", lambda: Scrape(port)("bwtui_verdict", verdict=verdict) == 1, every=0.2)
    return status


def test_a_heal_is_told_until_it_is_over(
    new_relay: NewRelay, services: ServiceAddresses, database: str, port: int
) -> None:
    execute(database, *MADE)
    relay = new_relay("--heal", "--listen", str(port))
    topic = ITEMS.topic(relay.name)
    make_topic(services, topic, 1 << 20, policy="delete")
    relay.start()
    relay.wait_streaming()
    lose(relay)
    admin = AdminClient({"bootstrap.servers": services.broker})
    for future in admin.delete_records([TopicPartition(topic, 0, 5)]).values():
        future.result()
    relay.start()
    under_way = relay.wait("the heal", lambda now: now.verdict.code == "not_proven", _HEAL_SECONDS)
    assert under_way.heal is not None and under_way.state == "streaming"
    status = told_everywhere(
        relay,
        port,
        "not_proven",
        "topics may differ from tables since",
        "the comparison can't be trusted: public.items",
    )
    assert status.verdict.needs_action
    assert "bwtui snapshot public.items" in status.verdict.hint
    assert wait_done(relay, ask(relay, table="public.items")).rows == 101
    command("repair", "--relay", relay.name, "--json", "--yes")
    # The table stays not proven as long as its topic has cleanup.policy=delete.
    configure_topic(services, topic, "cleanup.policy", "compact")
    healthy(relay, "the end of the heal")
    assert "✓ STREAMING" in first_lines(relay, "STREAMING", (120, 40))[0]
    relay.stop()


def test_a_table_leaves_the_publication(new_relay: NewRelay, database: str, port: int) -> None:
    execute(database, *MADE)
    relay = new_relay("--listen", str(port))
    relay.start()
    relay.wait_streaming()
    execute(database, f"alter publication bwtui_{relay.name} drop table items")
    says = "it is not in the publication: none of its changes are sent, deletes included"
    status = told_everywhere(relay, port, "not_proven", "public.items is not proven since", says)
    assert f'ALTER PUBLICATION "bwtui_{relay.name}" ADD TABLE public.items;' in status.verdict.hint
    relay.stop()
    assert says in relay.last_status().verdict.sentence


@pytest.fixture
def server() -> Iterator[SecondPostgres]:
    """A dedicated server."""
    second = SecondPostgres()
    try:
        second.start(wal_level="logical", max_slot_wal_keep_size="1MB")
        yield second
    finally:
        second.remove()


def test_the_slot_is_lost_while_kafka_hangs(
    sandbox: Sandbox, new_relay: NewRelay, server: SecondPostgres, port: int
) -> None:
    relay = new_relay("--listen", str(port))
    relay.database = server.dsn
    execute(server.dsn, *MADE)
    relay.start()
    relay.wait_streaming()
    status = "select wal_status from pg_replication_slots where slot_name = %s"
    with frozen(sandbox, "kafka"), session(server.dsn) as source:
        # The relay requests the topic from Kafka, and reads no further meanwhile.
        source.run("create table late (id int primary key)")
        source.run(f"alter publication bwtui_{relay.name} add table late")
        source.run("insert into late values (1)")
        stalled(relay, "kafka")

        def is_lost() -> bool:
            for statement in ("select pg_logical_emit_message(true, 'x', 'x')", "select pg_switch_wal()"):
                source.run(statement)
            source.run("checkpoint")
            return bool(source.value(status, relay.name) == "lost")

        wait_for("the slot's end", is_lost)
        verdict = told_everywhere(
            relay,
            port,
            "stalled",
            f"slot {relay.name} is lost: PostgreSQL removed WAL that it needs",
            seconds=40,
        ).verdict
        assert "also Kafka at" in verdict.sentence
        assert "--heal" in verdict.hint
        assert "safe" not in verdict.sentence
        screen = first_lines(relay, "STALLED", (120, 40), lines_read=40)
        assert not any("no limit" in line or "safe while" in line for line in screen), screen
        assert "no limit" not in CliRunner().invoke(cli, ["status", relay.name]).stdout
    assert relay.join() == 5

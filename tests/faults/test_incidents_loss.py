"""Incidents in which rows are lost or may be: every surface says so until it is resolved.

See docs/incidents.md.
"""

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from bwtui.cli.main import cli
from bwtui.model.status import Status
from bwtui.model.verdict import Word
from bwtui.sandbox.ports import choose
from bwtui.sandbox.supervisor import Services
from tests.faults.administration import make_topic
from tests.faults.backfills import ask, wait_done
from tests.faults.incidents import first_lines, healthy
from tests.faults.relays import Relay, execute, wait_for
from tests.faults.test_heal_cases import ITEMS, MADE, command, lose
from tests.scraping import Scrape, probe

NewRelay = Callable[..., Relay]
_HEAL_SECONDS = 120.0


@pytest.fixture
def port() -> int:
    """A free port."""
    return choose(["http"], {})["http"]


def told_everywhere(relay: Relay, port: int, verdict: Word, *words: str) -> Status:
    """Wait until the verdict is that word, and see that all surfaces say ``words``."""
    try:
        status = relay.wait(
            f"the verdict {verdict}",
            lambda now: now.verdict.word == verdict and all(word in now.verdict.sentence for word in words),
            _HEAL_SECONDS,
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
    new_relay: NewRelay, services: Services, database: str, port: int
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
    under_way = relay.wait("the heal", lambda now: now.verdict.word == "not_proven", _HEAL_SECONDS)
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
    healthy(relay, "the end of the heal")
    assert "✓ STREAMING" in first_lines(relay, "STREAMING", (120, 40))[0]
    relay.stop()


def test_a_table_leaves_the_publication(new_relay: NewRelay, database: str, port: int) -> None:
    execute(database, *MADE)
    relay = new_relay("--listen", str(port))
    relay.start()
    relay.wait_streaming()
    execute(database, f"alter publication bwtui_{relay.name} drop table items")
    status = told_everywhere(
        relay, port, "not_proven", "public.items is not captured: no change of it, deletes included, is sent"
    )
    assert "bwtui doctor" in status.verdict.hint
    relay.stop()
    assert "public.items is not captured" in relay.last_status().verdict.sentence

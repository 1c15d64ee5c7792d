"""Reports about a topic that was replaced or deleted after rows were sent to it."""

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from bwtui.encode.registry import LocalRegistry, SchemaRegistry
from bwtui.errors import ConnectionFailed, ServiceRefused
from bwtui.relay.history.coverage_ledger import Coverage, SentSchemas
from bwtui.relay.state.run_state import RunState
from bwtui.relay.watch import topic_watch as watch_of_topics
from bwtui.relay.watch.topic_watch import SchemaWatch, TopicWatch
from bwtui.sink.destination import PresentTopic, PresentTopics, SinkService
from tests.unit.test_coverage_ledger import begun, ledger
from tests.waiting import eventually

ORDERS = "public.orders"
RECORD = '{"type": "record", "name": "orders", "fields": []}'


class Topics(SinkService):
    """A Kafka with one topic."""

    now: PresentTopic | None = PresentTopic("first", 3)
    cluster = "here"

    def present_topics(self, topics: Collection[str], *, with_beginnings: bool) -> PresentTopics:
        return dict.fromkeys(topics, self.now)

    def cluster_now(self) -> str:
        return self.cluster


class Watched:
    """A watch and its reports."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "topics.json"
        self.kafka = Topics()
        self.begin()

    def begin(self, coverage: Coverage | None = None) -> None:
        """Begin another run of the relay."""
        self.report = RunState()
        table = self.report.table(ORDERS)
        table.topic, table.messages, table.key_columns = "orders", 1, ("id",)
        schemas = SchemaWatch(LocalRegistry(), self.report, Coverage())
        self.watch = TopicWatch(self.kafka, self.report, self.path, schemas, coverage or Coverage())

    def told(self, *seen: PresentTopic | None) -> list[str]:
        """Return the new reports about the topic after these consecutive states."""
        before = len(self.report.errors())
        for self.kafka.now in seen:
            self.watch.look()
        return [entry.message for entry in self.report.errors()[before:]]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    watched = Watched(tmp_path)
    assert watched.told(PresentTopic("first", 3), PresentTopic("first", 3)) == []
    return watched


@pytest.mark.parametrize("is_another_run", [False, True])
def test_a_topic_that_was_made_again_lacks_what_was_in_it(watched: Watched, is_another_run: bool) -> None:
    if is_another_run:
        watched.begin()
    (told,) = watched.told(PresentTopic("second", 3), PresentTopic("second", 3))
    assert "deleted and created again, and lacks the records that were in it" in told
    (entry,) = watched.report.errors()
    assert (entry.kind, entry.table) == ("topic", ORDERS)
    assert "the relay compares the table with its topic" in (entry.hint or "")
    # A lagging broker may still return the first one for a while.
    assert watched.told(PresentTopic("first", 3), PresentTopic("second", 3)) == []


def test_a_topic_that_is_gone_is_told_of_once(watched: Watched) -> None:
    assert watched.told(None) == [], "a broker that has just started may not know of it yet"
    assert watched.report.missing_topics == ("orders",), "the verdict says so at once"
    assert watched.told(None, None) == ["topic orders was deleted with all its records"]
    assert watched.told(PresentTopic("second", 3)) == []
    assert watched.report.missing_topics == ()
    assert len(watched.told(PresentTopic("third", 3))) == 1


def test_partitions_that_were_added_move_keys(watched: Watched) -> None:
    (told,) = watched.told(PresentTopic("first", 6), PresentTopic("first", 6))
    assert "has 6 partitions, previously 3: later rows of a key may be in a different partition" in told
    assert len(watched.told(PresentTopic("second", 1))) == 2, "a producer that runs sends by both numbers"
    watched.begin()
    (told,) = watched.told(PresentTopic("third", 5))
    assert "created again" in told, "no earlier row of a key is in it"


def test_partitions_of_a_table_without_a_key_say_nothing(watched: Watched) -> None:
    watched.report.table(ORDERS).key_columns = ()
    assert watched.told(PresentTopic("first", 6)) == []
    watched.told(PresentTopic("first", 6, 0), PresentTopic("first", 6, 10))
    assert "increase its retention" in (watched.report.errors()[0].hint or "")


def test_another_cluster_is_told_of_and_not_taken_for_deleted_topics(watched: Watched) -> None:
    watched.begin()
    watched.kafka.cluster = "there"
    (told,) = watched.told(PresentTopic("second", 3), PresentTopic("second", 3))
    assert told.startswith("the Kafka cluster (there) is not the one")
    watched.begin()
    assert watched.told(PresentTopic("second", 3), None) == []


def test_a_new_snapshot_fills_topics_whichever_they_are(watched: Watched) -> None:
    watched.watch.forget()
    watched.begin()
    assert watched.told(PresentTopic("second", 3)) == []


@pytest.mark.parametrize("is_new_run", [False, True])
def test_each_loss_of_a_keyed_topic_is_a_gap(tmp_path: Path, is_new_run: bool) -> None:
    watched = Watched(tmp_path)
    ledger, report = begun(tmp_path)
    watched.begin(ledger)
    # Records that were missing before the first row do not count as lost, and neither does an unknown offset.
    assert (
        watched.told(PresentTopic("first", 3, 7), PresentTopic("first", 3), PresentTopic("first", 3, 7)) == []
    )
    for lost in (9, 12):
        if is_new_run:
            watched.begin(ledger)
        (told,) = watched.told(PresentTopic("first", 3, lost), PresentTopic("first", 3, lost))
        assert told == f"topic orders lost {lost - 7 if lost == 9 else 3} records from its beginning"
        assert ledger.to_compare() == [ORDERS]
        ledger.proven([ORDERS], ledger.moment())
        assert report.not_proven == ()


def test_a_keyed_topic_that_deletes_is_a_gap_that_lasts(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    ledger, report = begun(tmp_path)
    watched.begin(ledger)
    deletes = PresentTopic("first", 3, 9, deletes=True)
    assert watched.told(deletes) == [], "nothing of ours is lost"
    assert len(watched.told(replace(deletes, lost=10), replace(deletes, lost=20))) == 1
    assert ledger.to_compare() == []
    watched.begin(ledger)
    assert watched.told(replace(deletes, lost=20), replace(deletes, lost=None)) == []
    assert len(report.not_proven) == 1 and "cleanup.policy=delete" in report.not_proven[0].reason
    assert watched.told(PresentTopic("first", 3, 20)) == []
    assert ledger.to_compare() == [ORDERS], "a comparison proves it from now on"


@pytest.mark.parametrize(("was_cut", "count"), [(False, 0), (True, 1)])
def test_what_an_earlier_version_recorded(tmp_path: Path, was_cut: bool, count: int) -> None:
    lost = 9 if was_cut else 0
    known = {"id": "first", "partitions": 3, "is_cut": was_cut}
    (tmp_path / "topics.json").write_text(json.dumps({"cluster": "here", "topics": {"orders": known}}))
    assert len(Watched(tmp_path).told(PresentTopic("first", 3, lost))) == count


def test_nothing_is_told_where_nothing_is_known(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.report.table(ORDERS).messages = 0
    assert watched.told(None, None, PresentTopic("first", 3), PresentTopic("second", 3)) == []
    # Brokers before Kafka 2.8 have no topic ids.
    watched.report.table(ORDERS).messages = 1
    assert watched.told(PresentTopic("", 3), PresentTopic("", 3), PresentTopic("first", 3)) == []


@pytest.mark.parametrize("text", ["", "[]", '{"orders": 1}', '{"orders": {"colour": 1}}', "\x00"])
def test_a_file_that_is_damaged_is_written_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "topics.json").write_text(text)
    watched = Watched(tmp_path)
    assert watched.told(PresentTopic("first", 3)) == []
    assert json.loads(watched.path.read_text())["topics"]["orders"]["id"] == "first"


def test_one_that_is_away_is_no_matter_of_this(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(topics: Collection[str], *, with_beginnings: bool) -> PresentTopics:
        raise ConnectionFailed("can't reach Kafka", "see to it")

    monkeypatch.setattr(watched.kafka, "present_topics", away)
    with watched.watch:
        assert not watched.watch.has_looked()
    assert not watched.watch._thread.is_alive()
    assert watched.report.errors() == ()


def test_each_look_asks_where_topics_begin(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def present(topics: Collection[str], *, with_beginnings: bool) -> PresentTopics:
        asked.append(with_beginnings)
        return dict.fromkeys(topics, PresentTopic("first", 3, 0))

    monkeypatch.setattr(watch_of_topics, "_LOOK_SECONDS", 0.001)
    monkeypatch.setattr(watched.kafka, "present_topics", present)
    with watched.watch:
        eventually("three looks", lambda: len(asked) > 2)
    assert all(asked)


class Registry(SchemaRegistry):
    """A registry with one schema."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.text: str | None = RECORD

    def text_now(self, number: int) -> str | None:
        return self.text


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (['"string"'], "schema id 7 of table public.orders now identifies a different schema"),
        ([None, None], "schema id 7 of table public.orders is no longer in the registry"),
        ([None, RECORD, None], ""),
    ],
)
def test_an_id_that_stands_for_another_schema_ends_the_relay(
    watched: Watched, now: list[str | None], says: str
) -> None:
    watched.report.table(ORDERS).value_schema_id = 7
    registry = Registry()
    watch = SchemaWatch(registry, watched.report, Coverage())
    told = ""
    watch.look()
    for registry.text in now:
        try:
            watch.look()
        except ServiceRefused as error:
            told = error.message
            assert error.exit_code == 4 and "start the relay again" in error.hint and ORDERS in error.hint
    assert told.startswith(says) and bool(told) == bool(says)


class Run:
    """Consecutive runs of a relay with the same ledger and registry."""

    def __init__(self, folder: Path, registry: Registry) -> None:
        self.report = RunState()
        self.ledger = ledger(folder, self.report)
        self.schemas = SchemaWatch(registry, self.report, self.ledger)
        self.report.table(ORDERS).value_schema_id = 7
        self.ledger.record_schemas({ORDERS: SentSchemas(("id",), None, 7)})


def test_an_id_of_an_earlier_run_may_be_missing_once(tmp_path: Path) -> None:
    begun(tmp_path)
    registry = Registry()
    Run(tmp_path, registry).schemas.look()
    run = Run(tmp_path, registry)
    registry.text = None
    run.schemas.look()
    registry.text = RECORD
    run.schemas.look()
    assert run.report.not_proven == ()
    registry.text = None
    run = Run(tmp_path, registry)
    run.schemas.look()
    with pytest.raises(ServiceRefused, match="no longer in the registry"):
        run.schemas.look()
    assert "no longer in the registry" in run.report.not_proven[0].reason


def test_a_registry_that_is_replaced_before_each_start(tmp_path: Path) -> None:
    begun(tmp_path)
    registry = Registry()
    Run(tmp_path, registry).schemas.look()
    for registry.text in ('"string"', '"null"', '"int"'):
        run = Run(tmp_path, registry)
        run.schemas.look()
        (entry,) = run.report.not_proven
        assert "schema id 7, which now identifies a different schema" in entry.reason
        run.ledger.proven([ORDERS], run.ledger.moment())
    run = Run(tmp_path, registry)
    run.schemas.look()
    assert run.report.not_proven == ()


def test_what_the_schemas_say_stops_the_relay(watched: Watched) -> None:
    watched.report.table(ORDERS).value_schema_id = 7
    registry = Registry()
    schemas = SchemaWatch(registry, watched.report, Coverage())
    schemas.look()
    registry.text = "null"
    with TopicWatch(watched.kafka, watched.report, watched.path, schemas, Coverage()) as watch:
        watch._thread.join(5)
        with pytest.raises(ServiceRefused, match="a different schema"):
            watch.check()


def test_all_tables_of_a_replaced_registry_are_named(watched: Watched) -> None:
    for number, name in enumerate((ORDERS, "public.items", "public.lines")):
        watched.report.table(name).value_schema_id = number
    registry = Registry()
    watch = SchemaWatch(registry, watched.report, Coverage())
    watch.look(new_ones=True)
    registry.text = "null"
    watch.look(new_ones=True)
    with pytest.raises(ServiceRefused, match="and 2 other tables") as raised:
        watch.look()
    assert raised.value.hint.endswith("bwtui snapshot public.orders public.items public.lines")


def test_a_schema_that_is_written_in_another_form_is_the_same(watched: Watched) -> None:
    watched.report.table(ORDERS).value_schema_id = 7
    registry = Registry()
    watch = SchemaWatch(registry, watched.report, Coverage())
    watch.look()
    registry.text = RECORD.replace(" ", "")
    watch.look()


def test_a_kafka_that_does_not_answer_says_nothing_of_topics(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.told(None)
    assert watched.report.missing_topics == ("orders",)

    def away(topics: Collection[str], *, with_beginnings: bool) -> PresentTopics:
        raise ConnectionFailed("Kafka is away", "wait")

    monkeypatch.setattr(watched.kafka, "present_topics", away)
    with pytest.raises(ConnectionFailed):
        watched.watch.look()
    assert watched.report.missing_topics == ()
    watched.begin()
    watched.report.table(ORDERS).messages = 0
    monkeypatch.undo()
    watched.told(None)
    assert watched.report.missing_topics == (), "nothing was sent to it yet"


def test_a_record_of_topics_that_was_removed_proves_nothing(watched: Watched) -> None:
    watched.watch.forget()
    assert watched.path.exists(), "a new snapshot leaves a record, also of no topic"
    ledger, report = begun(watched.path.parent)
    watched.path.unlink()
    TopicWatch(watched.kafka, report, watched.path, SchemaWatch(LocalRegistry(), report, Coverage()), ledger)
    (entry,) = report.not_proven
    assert f"{watched.path} is missing" in entry.reason


def test_what_topics_were_can_not_be_read(watched: Watched) -> None:
    ledger, report = begun(watched.path.parent)
    schemas = SchemaWatch(LocalRegistry(), report, Coverage())
    watched.told(PresentTopic("first", 3))
    TopicWatch(watched.kafka, report, watched.path, schemas, ledger)
    assert report.not_proven == ()
    watched.path.write_text(watched.path.read_text()[:20])
    TopicWatch(watched.kafka, report, watched.path, schemas, ledger)
    assert ledger.to_compare() == [ORDERS]
    (entry,) = ledger._report.not_proven
    assert f"{watched.path} can't be read" in entry.reason

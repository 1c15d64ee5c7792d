"""Changes that the coverage ledger detects, and comparisons that end "not proven"."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bwtui.errors import RefusedError, StateFailed
from bwtui.pgoutput.messages import Column, Relation
from bwtui.relay.history import coverage_ledger as ledger_module
from bwtui.relay.history.coverage_ledger import TOPICS, CoverageLedger, SentSchemas
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.source.table_facts import Facts, LeafPartition, TableFacts, moved_tables

ORDERS = "public.orders"
LEAF = LeafPartition("public.low", "public.low", "r", "p", 31, "d id:20", "700 701")
FACTS = TableFacts(
    oid=20,
    name=ORDERS,
    quoted="public.orders",
    selected=True,
    publications={"p": "10 700"},
    entries={"p": "11 700"},
    operations="inserts, updates, deletes",
    persistence="p",
    filenode=30,
    version="",
    key="d id:20",
    labels={"50": "new", "type 51": "1,2"},
    leaves={"40": LEAF},
    index=60,
    numbers={"id": 1, "note": 2},
    column_versions={"id": "700", "note": "700"},
    label_versions={"50": "700", "type 51": "700,700"},
)
SETTINGS = RelaySettings(slot="shop", schema_registry="http://me:secret@registry:8081")


def ledger(
    folder: Path, report: RunState | None = None, settings: RelaySettings = SETTINGS
) -> CoverageLedger:
    """Return the ledger of a slot, opened from its file."""
    return CoverageLedger(folder, ("1", "db", "shop"), settings, report or RunState())


def begun(folder: Path, *, is_whole: bool = True) -> tuple[CoverageLedger, RunState]:
    """Return a ledger that has recorded one table."""
    report = RunState()
    made = ledger(folder, report)
    made.begin({ORDERS: FACTS}, 0x100, is_whole=is_whole)
    return made, report


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (replace(FACTS, oid=21), "was dropped and created again"),
        (replace(FACTS, publications={}, entries={}), "was removed from publication p: "),
        (replace(FACTS, publications={"p": "12 700"}), "which was dropped and created again"),
        (replace(FACTS, publications={"p": "10 701"}), "which was altered"),
        (replace(FACTS, entries={"p": "12 701"}), "left publication p for a while"),
        (replace(FACTS, entries={"p": "11 701"}), "its filter or column list changed"),
        (replace(FACTS, persistence="u"), "was unlogged"),
        (replace(FACTS, filenode=32), "was truncated or rewritten"),
        (replace(FACTS, key="d id:20,x:25"), "has a different key, (id, x) instead of (id)"),
        (replace(FACTS, key="f id:20"), "has replica identity full instead of default: "),
        (replace(FACTS, key="d id:23"), "has different column types in its key (id): "),
        (replace(FACTS, index=61), "temporarily had a different key"),
        (replace(FACTS, column_versions={"id": "700", "note": "701"}), "has column note, which was altered"),
        (replace(FACTS, label_versions={"50": "701"}), "whose labels were renamed"),
        (replace(FACTS, label_versions={"type 51": "700,701"}), "whose attributes were changed"),
        (replace(FACTS, numbers={"id": 1, "note": 3}), "had column note dropped and added again"),
        (replace(FACTS, key="n "), "has a different key, none instead of (id)"),
        (replace(FACTS, defaulted=["more"]), "got column more with a default"),
        (replace(FACTS, labels={"50": "old"}), "whose labels were renamed"),
        (replace(FACTS, labels={"50": "new", "type 51": "1,2,3"}), "whose attributes were changed"),
        (replace(FACTS, numbers={"id": 1, "remark": 2}), "had column note renamed to remark"),
        (replace(FACTS, leaves={}), "lost partition public.low"),
        (replace(FACTS, leaves={"40": replace(LEAF, attached="701")}), "detached and attached again"),
        (replace(FACTS, leaves={"40": replace(LEAF, attached="700 702")}), "detached and attached again"),
        (replace(FACTS, leaves={"40": replace(LEAF, persistence="u")}), "partition public.low unlogged"),
        (replace(FACTS, leaves={"40": replace(LEAF, filenode=32)}), "public.low truncated or rewritten"),
        (
            replace(FACTS, leaves={"40": replace(LEAF, key="i x:25")}),
            "a different replica identity in partition",
        ),
        (
            replace(FACTS, leaves={"40": LEAF, "41": replace(LEAF, filenode=42)}),
            "got partition public.low, which had been truncated, rewritten or unlogged",
        ),
    ],
)
def test_each_change_is_named(now: TableFacts, says: str) -> None:
    (reason,) = now.changes_since(FACTS)
    assert says in reason


def test_a_table_of_a_schema_publication_may_have_been_in_another_schema() -> None:
    """The versions of its row in pg_class and of its publication's entry show which of the two changed."""
    before = replace(FACTS, version="700")
    now = replace(before, version="701")
    (change,) = now.changes_since(before)
    assert "different schema" in change
    for other in (replace(now, persistence="u"), replace(now, filenode=32), replace(now, version="")):
        assert not any(one.startswith("was altered") for one in other.changes_since(before))
    assert not list(now.changes_since(FACTS))


@pytest.mark.parametrize(
    "now",
    [
        FACTS,
        replace(FACTS, labels={"50": "new", "51": "added"}),
        replace(FACTS, numbers={"id": 1, "note": 2, "more": 3}),
        replace(FACTS, numbers={"id": 1}),
        replace(FACTS, leaves={"40": LEAF, "41": replace(LEAF, filenode=41)}),
        replace(FACTS, leaves={"40": LEAF, "41": replace(LEAF, kind="f", filenode=0)}),
        replace(FACTS, numbers={"id": 1}, column_versions={"id": "700"}),
        replace(FACTS, publications={"p": "10 700", "q": "12 700"}),
    ],
)
def test_what_the_stream_reports_is_no_change(now: TableFacts) -> None:
    assert list(now.changes_since(FACTS)) == []
    assert TableFacts.from_json({**_json(now)}) == now


def _json(facts: TableFacts) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(facts)


@pytest.mark.parametrize(
    ("now", "statement"),
    [
        (replace(FACTS, operations="inserts"), 'ALTER PUBLICATION "p" SET (publish = '),
        (replace(FACTS, persistence="u"), "ALTER TABLE public.orders SET LOGGED"),
        (replace(FACTS, leaves={"4": replace(LEAF, kind="f")}), "DETACH PARTITION public.low"),
        (replace(FACTS, leaves={"4": replace(LEAF, persistence="u")}), "ALTER TABLE public.low SET LOGGED"),
        (replace(FACTS, leaves={"4": replace(LEAF, key="i x:25")}), "REPLICA IDENTITY FULL"),
        (replace(FACTS, publications={}), ""),
    ],
)
def test_what_lasts_names_its_statement(now: TableFacts, statement: str) -> None:
    ((_, helps),) = now.gaps(FACTS.operations)
    assert statement in helps
    assert list(FACTS.gaps(FACTS.operations)) == []


def test_only_a_comparison_that_began_later_ends_it(tmp_path: Path) -> None:
    made, report = begun(tmp_path)
    began = made.moment()
    made.mark(ORDERS, "was changed")
    ((entry),) = report.not_proven
    assert (entry.table, entry.since_lsn, entry.reason, entry.command) == (
        ORDERS,
        0x100,
        "it was changed",
        "",
    )
    assert made.to_compare() == [ORDERS]
    assert made.is_comparing
    made.proven([ORDERS], began)
    assert report.not_proven, "the comparison began before the change"
    made.proven([ORDERS], ledger(tmp_path).moment())
    assert report.not_proven, "the comparison began under an earlier run"
    # The entry is still there in a new process.
    again = RunState()
    assert ledger(tmp_path, again).to_compare() == [ORDERS]
    assert again.not_proven == report.not_proven
    made.proven([ORDERS], made.moment())
    assert report.not_proven == ()
    assert not made.is_comparing
    again = RunState()
    ledger(tmp_path, again)
    assert again.not_proven == ()


def test_a_table_that_an_audit_finds_different_is_not_proven(tmp_path: Path) -> None:
    made, report = begun(tmp_path)
    made.differ([ORDERS, "public.none"])
    (entry,) = report.not_proven
    assert entry.table == ORDERS and "audit" in entry.reason
    made.record_unprovable([ORDERS], "bwtui snapshot public.orders")
    made.differ([ORDERS])
    assert report.not_proven[0].command == "bwtui snapshot public.orders"


def test_a_producer_that_continues_ends_the_comparisons(tmp_path: Path) -> None:
    made, report = begun(tmp_path)
    made.mark(ORDERS, "has 3 records", by_hand=True, advice="stop the other producer")
    made = ledger(tmp_path, report)
    made.mark(ORDERS, "has 4 records")
    (entry,) = report.not_proven
    assert (entry.advice, entry.command) == (
        "stop the other producer",
        "bwtui repair --relay shop --table 'public\\.orders'",
    )
    assert made.to_compare() == []
    made.proven([ORDERS], made.moment())
    assert report.not_proven == ()


def test_a_clock_that_was_set_back_keeps_no_table_from_being_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, report = begun(tmp_path)
    made.mark(ORDERS, "was changed")
    monkeypatch.setattr("time.time", lambda: 1_000.0)
    made.proven([ORDERS], made.moment())
    assert report.not_proven == ()
    made.mark(ORDERS, "was changed")
    again = RunState()
    opened = ledger(tmp_path, again)
    assert again.not_proven
    opened.proven([ORDERS], opened.moment())
    assert again.not_proven == ()


def test_what_lasts_names_what_lasts_now(tmp_path: Path) -> None:
    made, report = begun(tmp_path)
    unlogged = replace(FACTS, leaves={"40": replace(LEAF, persistence="u")})
    for facts, says in (
        (replace(unlogged, operations="inserts"), "SET (publish = "),
        (unlogged, "ALTER TABLE public.low SET LOGGED"),
    ):
        made._compare({ORDERS: facts}, [])
        made._publish()
        (entry,) = report.not_proven
        assert says in entry.command
        made._facts = {ORDERS: facts}


def test_a_column_that_was_dropped_is_remembered(tmp_path: Path) -> None:
    made, report = begun(tmp_path)
    for numbers in ({"id": 1}, {"id": 1, "note": 3}):
        facts = {ORDERS: replace(FACTS, numbers=numbers)}
        made._compare(facts, [])
        made._facts = facts
    made._publish()
    assert "had column note dropped and added again" in report.not_proven[0].reason


def test_a_column_that_is_renamed_back_is_remembered(tmp_path: Path) -> None:
    made, report = begun(tmp_path)
    for numbers, says in (
        ({"id": 1, "x": 2}, "note renamed to x"),
        ({"id": 1, "note": 2}, "x renamed to note"),
    ):
        facts = {ORDERS: replace(FACTS, numbers=numbers)}
        made._compare(facts, [])
        made._facts = facts
        made._publish()
        assert says in report.not_proven[0].reason


def test_what_was_published_once_counts(tmp_path: Path) -> None:
    """Operations that were once published must stay published; added ones do not make up for removed ones."""
    made, report = begun(tmp_path)
    made.begin({ORDERS: replace(FACTS, operations="inserts, deletes")}, 0x100)
    made._compare({ORDERS: replace(FACTS, operations="inserts, updates")}, [])
    made._publish()
    assert "is published without its deletes" in report.not_proven[0].reason
    assert made.to_compare() == []


def test_what_could_never_be_published_is_no_gap(tmp_path: Path) -> None:
    """PostgreSQL never publishes an unlogged table, or updates of a table without a replica identity."""
    unlogged = replace(FACTS, oid=8, name="shop.cache", persistence="u", leaves={})
    bare = replace(FACTS, oid=9, name="shop.bare", key="d ", leaves={})
    made, report = begun(tmp_path)
    made.begin({"shop.cache": unlogged, "shop.bare": bare}, 0x100)
    inserts = replace(bare, operations="inserts")
    made._compare({"shop.cache": unlogged, "shop.bare": inserts}, [])
    made._publish()
    assert [one for one in report.not_proven if "is published without" in one.reason] == []
    assert "shop.cache" not in [one.table for one in report.not_proven]
    made._compare({"shop.cache": replace(unlogged, persistence="p"), "shop.bare": inserts}, [])
    made._compare({"shop.cache": unlogged, "shop.bare": inserts}, [])
    made._publish()
    reasons = {one.table: one.reason for one in report.not_proven}
    assert "is unlogged: none of its changes are in the stream" in reasons["shop.cache"]


def test_a_table_that_was_always_unlogged_is_never_marked(tmp_path: Path) -> None:
    """No comparison selects it, so an entry would never be cleared."""
    unlogged = replace(FACTS, oid=8, name="public.cache", persistence="u", leaves={})
    made, report = begun(tmp_path)
    made.begin({ORDERS: FACTS, "public.cache": unlogged}, 0x100)
    again = replace(unlogged, entries={"p": "12 701"})
    made._compare({ORDERS: FACTS, "public.cache": again}, [])
    made.distrust("is unknown")
    assert [one.table for one in report.not_proven] == [ORDERS]
    made.proven([ORDERS], made.moment())
    made._compare({ORDERS: FACTS, "public.cache": again, "public.u1": replace(again, name="public.u1")}, [])
    made._publish()
    assert report.not_proven == ()
    # An earlier version marked it.
    made._add("public.cache", "was altered")
    made._compare({ORDERS: FACTS, "public.cache": again}, [])
    assert made.to_compare() == []


def test_a_ledger_of_an_earlier_version_marks_nothing(tmp_path: Path) -> None:
    begun(tmp_path)
    path = tmp_path / "coverage-shop.json"
    content = json.loads(path.read_text())
    (facts,) = content["facts"]
    del facts["leaves"]["40"]["by_attach"], facts["labels"]["type 51"], facts["numbers"], facts["index"]
    facts["leaves"]["40"]["attached"] = "700"
    del facts["column_versions"], facts["label_versions"]
    path.write_text(json.dumps(content))
    report = RunState()
    made = ledger(tmp_path, report)
    made._compare({ORDERS: FACTS}, [])
    made._publish()
    assert report.not_proven == ()


def test_what_no_comparison_proves_keeps_its_command(tmp_path: Path) -> None:
    made, report = begun(tmp_path)
    made.mark(ORDERS, "was changed")
    made.record_unprovable([ORDERS, "public.none"], "bwtui snapshot public.orders")
    assert [entry.command for entry in report.not_proven] == ["bwtui snapshot public.orders"]
    assert made.to_compare() == []
    assert ledger(tmp_path).to_compare() == [ORDERS], "a new run compares once more"
    made.resume(ORDERS)
    assert made.to_compare() == [ORDERS], "its rows were sent again"
    made.resume(ORDERS)
    made.record_unprovable([ORDERS], "bwtui snapshot public.orders")
    assert made.to_compare() == [ORDERS], "the comparison began before all of them were sent"
    made.record_unprovable([ORDERS], "bwtui snapshot public.orders")
    assert made.to_compare() == []


@pytest.mark.parametrize("key", ["d ", "d id:20"])
def test_records_of_another_producer_are_found_by_keys_alone(tmp_path: Path, key: str) -> None:
    report = RunState()
    made = ledger(tmp_path, report)
    made.begin({ORDERS: replace(FACTS, key=key)}, 0x100)
    made.mark(ORDERS, "has 3 records that this relay did not send", has_extra=True)
    made.mark(ORDERS, "was altered")
    for _ in range(2):
        made.proven([ORDERS], made.moment())
    if key == FACTS.key:
        assert report.not_proven == ()
        return
    (entry,) = report.not_proven
    assert entry.command == f"bwtui snapshot -u {ORDERS}"
    assert entry.reason.count("delete the topic") == 1
    again = ledger(tmp_path, report)
    assert again.to_compare() == [ORDERS]
    again.proven([ORDERS], again.moment())
    assert report.not_proven, "a new run does not forget it"
    again.mark(ORDERS, "lacks its topic", has_extra=False)
    again.proven([ORDERS], again.moment())


def test_a_table_that_can_not_be_looked_at_is_not_proven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, report = begun(tmp_path)
    made.unseen("the catalog", "too many clients")
    assert not report.not_proven, "one failure says nothing yet"
    monkeypatch.setattr("bwtui.relay.history.coverage_ledger._BLIND_SECONDS", 0.0)
    made.unseen("the catalog", "too many clients")
    (entry,) = report.not_proven
    assert entry.reason.startswith("it could not be checked since 2")
    assert entry.reason.endswith("the catalog can't be read: too many clients")
    assert (entry.since_lsn, entry.command) == (0x100, "bwtui doctor --relay shop")
    assert made.is_blind
    assert not made.is_comparing
    made.seen("something else")
    assert made.is_blind
    made.seen("the catalog")
    assert report.not_proven == ()


def test_a_topic_that_changed_while_stopped_is_unproven_since_the_look_before(tmp_path: Path) -> None:
    made, report = begun(tmp_path)
    made._lsn = 0x200
    made.seen(TOPICS)
    made.seen(TOPICS)
    made._lsn = 0x300
    made._write()
    report = RunState()
    again = ledger(tmp_path, report)
    # In a new run, the catalog is checked before the topics.
    again._lsn = 0x900
    again.mark(ORDERS, "lost its topic", TOPICS)
    assert [entry.since_lsn for entry in report.not_proven] == [0x200]


def test_topics_without_earlier_rows_are_left_to_a_person(tmp_path: Path) -> None:
    made, report = begun(tmp_path, is_whole=False)
    made.mark_all("was changed")
    assert made.to_compare() == []
    assert [entry.command for entry in report.not_proven] == [
        r"bwtui repair --relay shop --table 'public\.orders'"
    ]
    # Once all of its tables were compared, the topics are complete.
    made.proven([ORDERS], made.moment())
    made.mark(ORDERS, "was changed once more")
    assert made.to_compare() == [ORDERS]


def test_partitions_that_are_attached_or_detached_move() -> None:
    without, low = replace(FACTS, leaves={}), replace(FACTS, oid=40, name="public.low", leaves={})
    attached = replace(FACTS, leaves={"40": replace(LEAF, by_attach="700")})
    assert moved_tables({ORDERS: FACTS}, {ORDERS: without, low.name: low}) == {ORDERS, low.name}
    assert moved_tables({ORDERS: without, low.name: low}, {ORDERS: attached}) == {ORDERS, low.name}
    assert moved_tables({ORDERS: FACTS}, {ORDERS: attached}) == {ORDERS}
    assert moved_tables({ORDERS: without}, {ORDERS: attached}) == {ORDERS}
    # Here publish_via_partition_root is off.
    assert moved_tables({ORDERS: without}, {ORDERS: without, low.name: replace(low, attached="1")}) == {
        low.name
    }
    # A table that becomes a partitioned one, a dropped separate table, and a renamed one.
    assert moved_tables({ORDERS: without}, {ORDERS: FACTS}) == set()
    assert moved_tables({ORDERS: FACTS, low.name: replace(low, oid=41)}, {ORDERS: FACTS}) == set()
    assert moved_tables({ORDERS: FACTS}, {"public.other": replace(FACTS, name="public.other")}) == set()


def test_a_session_with_former_names_ends_once_they_are_behind_it(tmp_path: Path) -> None:
    made, report = begun(tmp_path)
    made._moved = {ORDERS: 0x200}
    began = made.moment()
    assert not made.is_stale(0x1FF)
    made._write()
    again = ledger(tmp_path, report)
    assert again.is_comparing, "a run must not end before that"
    assert again.is_stale(0x200)
    assert not again.is_stale(0x200)
    again.proven([ORDERS], began)
    assert [one.table for one in report.not_proven] == [ORDERS]


def test_a_lost_record_counts_until_all_tables_are_proven(tmp_path: Path) -> None:
    """Until then a new table's topic may be that of a former table."""
    made, report = begun(tmp_path)
    facts = {ORDERS: FACTS, "public.two": replace(FACTS, oid=21, name="public.two")}
    made.begin(facts, 0x100)
    made.distrust("is unknown")
    made.proven([ORDERS], made.moment())
    made = ledger(tmp_path, report)
    made._compare({**facts, "public.again": replace(FACTS, oid=22, name="public.again")}, [])
    made._publish()
    assert [one.table for one in report.not_proven] == ["public.again", "public.two"]
    assert [one.reason for one in report.not_proven] == ["it is unknown", "it is unknown"]
    made.proven(["public.again", "public.two"], made.moment())
    made = ledger(tmp_path, report)
    made._compare({**facts, "public.later": replace(FACTS, oid=23, name="public.later")}, [])
    made._publish()
    assert report.not_proven == ()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"output_format": "json"}, "--output-format was avro and is json now"),
        ({"topic_prefix": "new"}, "--topic-prefix was empty and is new now"),
        ({"namespace": "shop"}, "--namespace was empty and is shop now"),
        (
            {"schema_registry": "http://other:8081"},
            "--schema-registry was http://registry:8081 and is http://other:8081 now",
        ),
        (
            {"kafka_config": (("partitioner", "consistent"),)},
            "-C partitioner was murmur2 and is consistent now",
        ),
    ],
)
def test_other_settings_are_refused_on_a_slot(tmp_path: Path, changed: dict[str, object], says: str) -> None:
    begun(tmp_path)
    ledger(
        tmp_path, settings=replace(SETTINGS, schema_registry="http://you:word@registry:8081")
    ).check_settings()
    settings = replace(SETTINGS, postgres="service=shop", **changed)  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="was relayed with different settings") as refused:
        ledger(tmp_path, settings=settings).check_settings()
    assert says in refused.value.message
    assert "--accept-settings" in refused.value.hint
    assert f"'bwtui slots drop {SETTINGS.slot} -d service=shop'" in refused.value.hint
    report = RunState()
    accepted = ledger(tmp_path, report, replace(settings, accept_settings=True))
    accepted.check_settings()
    assert [entry.table for entry in report.not_proven] == [ORDERS]
    ledger(tmp_path, settings=settings).check_settings()


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[:50], lambda text: "[]", lambda text: text.replace('"oid"', '"id"')],
)
def test_a_damaged_ledger_is_not_taken_for_none(tmp_path: Path, damage: Callable[[str], str]) -> None:
    begun(tmp_path)
    path = tmp_path / "coverage-shop.json"
    path.write_text(damage(path.read_text()))
    with pytest.raises(StateFailed, match="it records which tables are not proven"):
        ledger(tmp_path)


def test_the_ledger_of_another_database_counts_as_none(tmp_path: Path) -> None:
    begun(tmp_path)
    assert CoverageLedger(tmp_path, ("1", "other", "shop"), SETTINGS, RunState()).is_empty
    assert not ledger(tmp_path).is_empty


def test_a_truncate_of_many_tables_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, report = begun(tmp_path)
    written: list[str] = []
    monkeypatch.setattr(
        "bwtui.relay.history.coverage_ledger.write_durably", lambda path, text: written.append(text)
    )
    made.mark_all("was truncated", ["public.a", "public.b"])
    made.mark_all("was truncated", ["public.a", "public.b"])
    assert {one.table for one in report.not_proven} == {"public.a", "public.b"}
    assert len(written) == 1


def test_what_is_left_to_a_person_stays_so_until_its_rows_were_sent(tmp_path: Path) -> None:
    made, report = begun(tmp_path)
    assert made.mark(ORDERS, "lacks rows of the first snapshot", by_hand=True)
    for one in (made, ledger(tmp_path, report)):
        assert one.to_compare() == []
        assert report.not_proven[0].command.startswith("bwtui repair --relay ")
    again = ledger(tmp_path, report)
    again.mark(ORDERS, "was truncated")
    assert again.to_compare() == []
    again.resume(ORDERS)
    assert ledger(tmp_path, report).to_compare() == again.to_compare() == [ORDERS]
    again.proven([ORDERS], again.moment())
    assert report.not_proven == ()


def test_a_table_that_was_dropped_before_it_was_recorded_is_forgotten(tmp_path: Path) -> None:
    made, report = begun(tmp_path)
    made.mark("public.gone", "lacks rows of the first snapshot", by_hand=True)
    made._compare({ORDERS: FACTS}, [])
    made._publish()
    assert report.not_proven == ()


def test_a_new_key_is_reported_once(tmp_path: Path) -> None:
    """Both the session and the catalog check report it."""
    leaf = replace(LEAF, key="d id:20,x:25")
    made, report = begun(tmp_path)
    made.record_schemas({ORDERS: SentSchemas(("id",), 1, 2)})
    made.record_schemas({ORDERS: SentSchemas(("id", "x"), 3, 2)})
    made._compare({ORDERS: replace(FACTS, key="d id:20,x:25", leaves={"40": leaf})}, [])
    made._publish()
    assert report.not_proven[0].reason.count("under the former key") == 1


def test_the_first_reason_is_kept_and_the_newest_is_added(tmp_path: Path) -> None:
    made, report = begun(tmp_path)
    for reason in ("lost the records of topic orders", "may differ", "was truncated", "was truncated"):
        made.mark(ORDERS, reason)
    assert report.not_proven[0].reason == "it lost the records of topic orders; it was truncated"
    made.mark(ORDERS, "lost the records of topic orders")
    assert report.not_proven[0].reason == "it lost the records of topic orders"


def test_the_topic_that_a_renamed_table_left_behind_is_named_once(tmp_path: Path) -> None:
    made, report = begun(tmp_path)
    for _ in range(2):
        made._compare(facts := {"public.others": replace(FACTS, name="public.others")}, [])
        made._facts = facts
    (notice,) = report.errors()
    assert notice.count == 1
    assert "table public.orders was renamed to public.others: topic orders keeps" in notice.message
    assert "delete that topic" in (notice.hint or "")


def test_the_topic_of_a_temporary_name_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table was renamed, written and renamed back between two checks."""
    made, report = begun(tmp_path)
    facts = {ORDERS: FACTS}
    monkeypatch.setattr(ledger_module, "query", lambda _, sql, *__: [(1,)] if "lsn" in sql else [])
    connection: Any = SimpleNamespace(server_version=180_000)

    def read_facts(*_: object) -> Facts:
        made.sends(relation(20, "sent_meanwhile", "id"))
        return dict(facts)

    monkeypatch.setattr(ledger_module, "read_facts", read_facts)
    report.table("public.orders_x")
    made.sends(relation(20, "orders_x", "id"))
    made.check_catalog(connection, ["p"], at_once=True)
    (notice,) = report.errors()
    assert "table public.orders_x was renamed to public.orders: topic orders_x keeps" in notice.message
    assert "delete that topic" in (notice.hint or "")
    assert report.tables["public.orders_x"].notes == ["was renamed to public.orders: receives no new rows"]
    # The catalog may have been read before the table got that name.
    facts["public.sent_meanwhile"] = replace(facts.pop(ORDERS), name="public.sent_meanwhile")
    made.check_catalog(connection, ["p"], at_once=True)
    assert ["sent_meanwhile was renamed" in one.message for one in report.errors()] == [False, False]
    assert not made._newly_sent


def test_a_new_table_with_other_records_is_compared_until_its_key_is_recorded(tmp_path: Path) -> None:
    """The relay marks it at its first row, which may precede the next check of the catalog."""
    made, report = begun(tmp_path)
    made.mark("public.young", "had records in topic young before it joined", has_extra=True)
    made.proven(["public.young"], made.moment())
    assert made.to_compare() == ["public.young"]
    assert made._facts is not None
    made._facts["public.young"] = replace(FACTS, name="public.young", oid=30)
    made.proven(["public.young"], made.moment())
    assert not report.not_proven


def test_an_excluded_name_has_no_topic_that_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table is built under a temporary name, which the relay excludes, and then renamed."""
    report = RunState()
    made = ledger(tmp_path, report, replace(SETTINGS, exclude_tables=("public\\.tmp_.*",)))
    made.begin({ORDERS: FACTS}, 0x100)
    monkeypatch.setattr(ledger_module, "query", lambda _, sql, *__: [(1,)] if "lsn" in sql else [])
    monkeypatch.setattr(ledger_module, "read_facts", lambda *_: {ORDERS: FACTS})
    made.sends(relation(20, "tmp_orders", "id"))
    connection: Any = SimpleNamespace(server_version=180_000)
    made.check_catalog(connection, ["p"], at_once=True)
    assert not report.errors()


@pytest.mark.parametrize(
    ("is_immediate", "command"),
    [
        (True, "ALTER TABLE public.orders REPLICA IDENTITY DEFAULT;"),
        (False, "CREATE UNIQUE INDEX i ON o (id); ALTER TABLE o REPLICA IDENTITY USING INDEX i;"),
        (None, 'ALTER TABLE public.orders ADD PRIMARY KEY ("id");'),
    ],
)
def test_a_primary_key_that_is_not_the_identity_is_not_to_be_added_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_immediate: bool | None, command: str
) -> None:
    """A deferrable one can't be the identity, and there can't be two."""
    made, report = begun(tmp_path)
    connection: Any = SimpleNamespace(server_version=180_000)
    rows = {
        ledger_module._LSN_SQL: [(0x200,)],
        ledger_module._UNPUBLISHED_SQL: [(20, "public", "orders", False, is_immediate)],
    }
    monkeypatch.setattr(ledger_module, "query", lambda _, sql, *__: rows.get(sql, []))
    monkeypatch.setattr(ledger_module, "read_facts", lambda *_: {})
    statements = "CREATE UNIQUE INDEX i ON o (id); ALTER TABLE o REPLICA IDENTITY USING INDEX i"
    monkeypatch.setattr(ledger_module, "use_deferrable_key", lambda *_: statements)
    made.check_catalog(connection, ["p"], at_once=True)
    assert [one.command for one in report.not_proven] == [command]


@pytest.mark.parametrize(
    ("gap", "says"),
    [
        (
            "is not in the publication: none of its changes are sent, deletes included",
            "was not in the publication until 0/200: none of its changes were sent, deletes included",
        ),
        ("is published without its deletes", "was published without its deletes until 0/200"),
        ("has the unlogged partition public.low", "had the unlogged partition public.low until 0/200"),
        ("lacks rows: topic t lost some", "lacks rows: topic t lost some, until 0/200"),
    ],
)
def test_a_closed_gap_is_in_the_past(tmp_path: Path, gap: str, says: str) -> None:
    made, report = begun(tmp_path)
    made._take_gap(ORDERS, gap, "")
    made._lsn = 0x200
    made._take_gap(ORDERS, "", "")
    made._publish()
    assert [one.reason for one in report.not_proven] == [f"it {says}"]


def relation(oid: int, name: str, *key: str, identity: str = "d") -> Relation:
    """Return a relation as the stream announces it."""
    columns = tuple(Column(column, 20, -1, column in key) for column in ("id", "note"))
    return Relation(oid, "public", name, identity, columns)


def test_a_partition_that_came_and_went_marks_its_root(tmp_path: Path) -> None:
    made, report = begun(tmp_path)
    root, low = relation(20, "orders", "id"), relation(40, "low", "id")
    young, other = relation(41, "young", "id"), relation(42, "other", "id")
    made.announces(low, root)
    assert not made._announced, "it is recorded"
    made.announces(young, root)
    again = ledger(tmp_path, report)
    again.announces(other, root)
    assert again._announced == {(41, 20): False, (42, 20): False}, "the next run judges it, too"
    there = replace(FACTS, leaves={"40": LEAF, "41": LEAF})
    again._compare_announced({ORDERS: there}, {(41, 20): False})
    again._publish()
    assert not report.not_proven
    again._compare_announced(
        {ORDERS: there, "public.other": replace(FACTS, oid=42, name="public.other")}, dict(again._announced)
    )
    again._publish()
    assert [(one.table, one.reason[:38]) for one in report.not_proven] == [
        (ORDERS, "it temporarily had another partition: "[:38]),
        ("public.other", "it temporarily was a partition of publ"),
    ]
    assert not again._announced


def test_an_excluded_root_and_tables_that_are_truncated_together_announce_no_partition(
    tmp_path: Path,
) -> None:
    made, _ = begun(tmp_path)
    root, other = relation(20, "orders", "id"), relation(42, "other", "note")
    made.announces(other, root)
    assert made._announced == {(42, 20): True}
    made.withdraw([20, 42])
    assert not made._announced
    made._facts = {ORDERS: replace(FACTS, selected=False)}
    made.announces(relation(42, "other", "id"), root)
    assert not made._announced


@pytest.mark.parametrize(("identity", "is_marked"), [("i", True), ("f", False), ("n", False)])
def test_a_partition_with_a_different_identity_marks_its_root(
    tmp_path: Path, identity: str, is_marked: bool
) -> None:
    made, report = begun(tmp_path)
    made.announces(relation(40, "low", "note", identity=identity), relation(20, "orders", "id"))
    made._compare_announced({ORDERS: FACTS}, dict(made._announced))
    made._publish()
    assert bool(report.not_proven) == is_marked


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (relation(20, "orders", "id"), ""),
        (relation(20, "orders", "id", "note", identity="f"), ""),
        (relation(20, "orders", identity="n"), ""),
        (relation(20, "orders", "note", identity="i"), "temporarily had a different key"),
        (relation(20, "orders", "id", "note", identity="i"), "temporarily had a different key"),
        (relation(21, "orders", "id"), "was dropped and created again"),
        (relation(20, "others", "id"), "was renamed to public.others"),
    ],
)
def test_the_stream_shows_a_former_name_key_or_table(tmp_path: Path, sent: Relation, says: str) -> None:
    made, report = begun(tmp_path)
    made.sends(sent)
    reasons = [one.reason for one in report.not_proven if one.table == ORDERS]
    assert says in "".join(reasons)
    assert bool(reasons) == bool(says)


def test_a_new_table_that_was_dropped_before_it_was_recorded_is_remembered(tmp_path: Path) -> None:
    made, report = begun(tmp_path)
    made.sends(relation(50, "young", "id"))
    made.sends(relation(51, "new", "id"))
    again = ledger(tmp_path, report)
    new, young = (replace(FACTS, oid=51, name=f"public.{name}") for name in ("new", "young"))
    again._compare({ORDERS: FACTS, new.name: new}, [])
    again._publish()
    assert not report.not_proven
    again._compare({ORDERS: FACTS, young.name: young}, [])
    again._publish()
    assert [one.table for one in report.not_proven] == [young.name]
    assert not again._sent

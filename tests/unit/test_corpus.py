"""The decoder against bytes that PostgreSQL sent (captured by tests/unit/corpus/capture.py)."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bwtui.pgoutput import messages as m
from bwtui.pgoutput.decoder import decode
from bwtui.pgoutput.tuples import DecodeError, last_tuple, splitter

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.jsonl"))
UNCHANGED = m.UNCHANGED


def read(path: Path) -> Iterator[tuple[str, bytes, bool]]:
    """Yield scenario, payload, and whether it is between STREAM START and STREAM STOP."""
    streamed = False
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        payload = bytes.fromhex(entry["payload"])
        streamed = streamed and payload[:1] != b"E"
        yield entry["scenario"], payload, streamed
        streamed = streamed or payload[:1] == b"S"


def messages(path: Path, scenario: str) -> list[m.Message]:
    return [decode(payload, streamed) for name, payload, streamed in read(path) if name == scenario]


def changes(found: list[m.Message]) -> list[tuple[object, ...]]:
    """Return the row changes, with their tables' names."""
    tables = {message.oid: message.name for message in found if isinstance(message, m.Relation)}
    out: list[tuple[object, ...]] = []
    for message in found:
        if isinstance(message, m.Insert):
            out.append(("insert", tables[message.relation_oid], message.new))
        elif isinstance(message, m.Update):
            out.append(("update", tables[message.relation_oid], message.old_kind, message.old, message.new))
        elif isinstance(message, m.Delete):
            out.append(("delete", tables[message.relation_oid], message.old_kind, message.old))
        elif isinstance(message, m.Truncate):
            names = [tables[oid] for oid in message.relation_oids]
            out.append(("truncate", *names, message.cascade, message.restart_identity))
    return out


@pytest.fixture(params=CORPUS, ids=lambda path: path.stem)
def corpus(request: pytest.FixtureRequest) -> Path:
    path = request.param
    assert isinstance(path, Path)
    return path


def test_there_is_a_corpus() -> None:
    assert CORPUS


def test_rows(corpus: Path) -> None:
    nothing = [None] * 6
    first = [b"-5", "größe".encode(), b"12.50", b"2024-05-06 05:08:09.12+00", b"t", b"sad"]
    second = [b"-5", b"x", b"12.50", b"2024-05-06 05:08:09.12+00", b"t", b"sad"]
    large = b"x" * 9000
    assert changes(messages(corpus, "rows")) == [
        ("insert", "orders", [b"1", *first]),
        ("insert", "orders", [b"2", *nothing]),
        ("update", "orders", None, None, [b"1", *second]),
        ("update", "orders", "K", [b"2", *nothing], [b"3", *nothing]),
        ("delete", "orders", "K", [b"1", *nothing]),
        ("insert", "a table", [b"1", "ß".encode()]),
        ("truncate", "a table", False, True),
        ("insert", "full_identity", [b"1", b"a"]),
        ("insert", "full_identity", [None, None]),
        ("update", "full_identity", "O", [b"1", b"a"], [b"1", b"b"]),
        ("delete", "full_identity", "O", [None, None]),
        ("insert", "toasted", [b"1", b"a", large]),
        ("update", "toasted", None, None, [b"1", b"b", UNCHANGED]),
        ("update", "toasted", "K", [b"1", None, None], [b"2", b"b", UNCHANGED]),
    ]


def test_relations(corpus: Path) -> None:
    found = [message for message in messages(corpus, "rows") if isinstance(message, m.Relation)]
    tables = {relation.qualified_name: relation for relation in found}
    assert set(tables) == {"public.orders", "Größe.a table", "public.full_identity", "public.toasted"}
    orders = tables["public.orders"]
    assert orders.replica_identity == "d"
    assert [(c.name, c.type_oid, c.typmod, c.is_key) for c in orders.columns[:6]] == [
        ("id", 20, -1, True),
        ("n", 23, -1, False),
        ("note", 25, -1, False),
        ("price", 1700, (10 << 16 | 2) + 4, False),
        ("at", 1184, -1, False),
        ("paid", 16, -1, False),
    ]
    (mood,) = {
        message.oid: message for message in messages(corpus, "rows") if isinstance(message, m.Type)
    }.values()
    assert (mood.oid, mood.namespace, mood.name) == (orders.columns[6].type_oid, "public", "mood")
    assert tables["public.full_identity"].replica_identity == "f"
    assert [column.name for column in tables["Größe.a table"].columns] == ["the key", "größe"]


def test_transactions(corpus: Path) -> None:
    found = messages(corpus, "rows")
    begins = [message for message in found if isinstance(message, m.Begin)]
    commits = [message for message in found if isinstance(message, m.Commit)]
    assert len(begins) == len(commits) == 4
    assert [begin.final_lsn for begin in begins] == [commit.commit_lsn for commit in commits]
    assert [begin.commit_time for begin in begins] == [commit.commit_time for commit in commits]
    ends = [lsn for commit in commits for lsn in (commit.commit_lsn, commit.end_lsn)]
    assert ends == sorted(ends)


def test_a_message_and_an_origin(corpus: Path) -> None:
    begin, origin, message, *rest, commit = messages(corpus, "message and origin")
    assert isinstance(begin, m.Begin)
    # The origin's own commit time, set by the capture.
    assert begin.commit_time == int(datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC).timestamp()) * 1_000_000
    assert origin == m.Origin(0xABCD, "elsewhere")
    assert isinstance(message, m.LogicalMessage)
    assert (message.transactional, message.prefix, message.content) == (True, "prefix", b"content")
    assert len(changes(rest)) == 1
    assert isinstance(commit, m.Commit)


def test_a_streamed_transaction(corpus: Path) -> None:
    found = messages(corpus, "streamed")
    start, commit = found[0], found[-1]
    assert isinstance(start, m.StreamStart)
    assert start.first_segment
    assert isinstance(commit, m.StreamCommit)
    assert commit.xid == start.xid
    assert {message.xid for message in found if isinstance(message, m.StreamStart)} == {start.xid}
    assert all(not message.first_segment for message in found[1:] if isinstance(message, m.StreamStart))
    (abort,) = [message for message in found if isinstance(message, m.StreamAbort)]
    assert abort.xid == start.xid != abort.subxid
    assert abort.abort_lsn is not None
    xids = {message.stream_xid for message in found if isinstance(message, m.Insert)}
    assert xids == {start.xid}
    assert ("truncate", "full_identity", False, False) in changes(found)


def test_two_phase_transactions(corpus: Path) -> None:
    found = [
        message
        for message in messages(corpus, "two phase")
        if isinstance(message, m.BeginPrepare | m.Prepare | m.CommitPrepared | m.RollbackPrepared)
    ]
    assert [(type(message).__name__, message.gid) for message in found] == [
        ("BeginPrepare", "first"),
        ("Prepare", "first"),
        ("CommitPrepared", "first"),
        ("BeginPrepare", "second"),
        ("Prepare", "second"),
        ("RollbackPrepared", "second"),
    ]
    prepared = [message for message in found if isinstance(message, m.BeginPrepare | m.Prepare)]
    assert prepared[0].prepare_lsn == prepared[1].prepare_lsn < prepared[0].end_lsn == prepared[1].end_lsn


def test_the_fast_splitter_reads_every_row(corpus: Path) -> None:
    rows = [payload for _, payload, streamed in read(corpus) if payload[:1] == b"I" and not streamed]
    assert rows
    for payload in rows:
        assert splitter(int.from_bytes(payload[6:8], "big"))(payload, 6) == last_tuple(payload, 6)


def test_every_message_that_is_cut_off_is_refused(corpus: Path) -> None:
    for _, payload, streamed in read(corpus):
        for end in range(min(len(payload), 300)):
            if payload[:1] == b"A" and end == 9:
                continue
            with pytest.raises(DecodeError):
                decode(payload[:end], streamed)

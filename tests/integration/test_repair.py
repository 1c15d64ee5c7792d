"""``bwtui repair``: the running relay sends exactly the differing keys, and a wrong relay is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.attempts import Attempts
from tests.database import Session
from tests.integration.test_verify_database import relaying
from tests.raw_topic import raw_messages

pytestmark = pytest.mark.services


def repaired(attempts: Attempts, code: int, *args: str) -> dict[str, Any]:
    """Run the command, check its exit code, and return its result."""
    ended = attempts.command("repair", "--relay", attempts.name, "--json", *args)
    assert ended.code == code, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def break_topic(attempts: Attempts, topic: str) -> int:
    """Delete one key of the topic, and give one the value of another; return the number of records."""
    messages = raw_messages(attempts.services, topic)
    producer = Producer({"bootstrap.servers": attempts.services.broker, "partitioner": "murmur2_random"})
    producer.produce(topic, None, messages[0][0])
    producer.produce(topic, messages[0][1], messages[1][0])
    assert producer.flush(30) == 0
    return len(messages) + 2


def test_exactly_what_differs_is_sent(attempts: Attempts, source: Session, database: str) -> None:
    source.run(
        "create table a (id int primary key, v text); insert into a select g, g from generate_series(1, 9) g"
    )
    with relaying(attempts, database, source):
        held = break_topic(attempts, f"{attempts.name}.a")
        planned = repaired(attempts, 1, "--dry-run", "--show-values")
        assert (planned["state"], planned["rows"], planned["messages"]) == ("planned", 2, 2)
        assert {one["class"] for one in planned["tables"][0]["examples"]} == {"missing_key", "different_row"}
        assert len(raw_messages(attempts.services, f"{attempts.name}.a")) == held
        # Rows that change before they are sent are sent in their new state.
        done = repaired(attempts, 0, "--yes")
        assert (done["verdict"], done["state"], done["rows"]) == ("clean", "done", 2)
        assert len(raw_messages(attempts.services, f"{attempts.name}.a")) == held + 2
        again = repaired(attempts, 0, "--yes")
        assert (again["state"], again["messages"]) == ("nothing to send", 0)
        assert len(raw_messages(attempts.services, f"{attempts.name}.a")) == held + 2


def test_a_key_that_postgresql_cant_read_any_more_blocks_no_other(
    attempts: Attempts, source: Session, database: str
) -> None:
    """The label was renamed, so its row has a different key: for the old one only a tombstone remains."""
    source.run("create type mood as enum ('good', 'bad')")
    source.run("create table a (m mood, id int, v text, primary key (m, id))")
    source.run("insert into a select m, g, g from generate_series(1, 9) g, unnest(enum_range(null::mood)) m")
    with relaying(attempts, database, source):
        break_topic(attempts, f"{attempts.name}.a")
        source.run("alter type mood rename value 'bad' to 'poor'")
        done = repaired(attempts, 0, "--yes")
        assert (done["verdict"], done["state"]) == ("clean", "done")
        assert (done["tombstones"], sum(one["tombstones"] for one in done["sent"])) == (9, 9)


def test_an_old_report_only_names_the_tables(
    attempts: Attempts, source: Session, database: str, tmp_path: Path
) -> None:
    source.run(
        "create table a (id int primary key, v text); insert into a select g, g from generate_series(1, 9) g"
    )
    source.run(
        "create table b (id int primary key, v text); insert into b select g, g from generate_series(1, 9) g"
    )
    path = tmp_path / "report.json"
    with relaying(attempts, database, source):
        break_topic(attempts, f"{attempts.name}.a")
        break_topic(attempts, f"{attempts.name}.b")
        given = ("verify", "--database", "--relay", attempts.name, "--json")
        told = json.loads(attempts.command(*given, "--table", "public.a").stdout)
        path.write_text(json.dumps(told))
        source.run("update a set v = 'new' where id = 1; delete from a where id = 2")
        ended = attempts.command("repair", str(path), "--json", "--yes")
        assert ended.code == 0, ended.stderr
        done = json.loads(ended.stdout)
        assert [one["table"] for one in done["tables"]] == ["public.a"]
        assert "report" in done["notes"][0]
        for name, wrong in (("system_identifier", "1"), ("database", "other"), ("slot", "other")):
            path.write_text(json.dumps({**told, "source": {**told["source"], name: wrong}}))
            ended = attempts.command("repair", str(path), "--relay", attempts.name, "--yes")
            assert (ended.code, ended.stdout) == (2, "")
            assert f"different {name.partition('_')[0].replace('system', 'server')}s" in ended.stderr
        path.write_text(json.dumps({**told, "cluster": "another"}))
        ended = attempts.command("repair", str(path), "--yes")
        assert ended.code == 2
        assert "refer to different Kafka clusters" in ended.stderr
        for tables, code, says in (
            (
                ["public.nosuch"],
                2,
                f"relay {attempts.name} includes none of the tables in the report: public.no",
            ),
            ([], 2, "the report lists no tables"),
            (["public.a", "public.nosuch"], 0, "does not include them: public.nosuch"),
        ):
            path.write_text(json.dumps({**told, "tables": tables}))
            ended = attempts.command("repair", str(path), "--dry-run")
            assert ended.code == code, ended.stderr
            assert says in ended.stdout + ended.stderr
        ended = attempts.command("repair", str(path), "--dry-run", "--table", "b")
        assert "--table and --exclude-table exclude all tables of the report" in ended.stderr
        # There is no terminal for the question.
        ended = attempts.command("repair", "--relay", attempts.name)
        assert ended.code == 2
        assert "--yes" in ended.stderr
        assert repaired(attempts, 1, "--dry-run")["tables"][1]["rows"] == 2

"""``bwtui verify`` reports which missing rows are in the relay's dead letters, and how to send them."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.attempts import Attempts, Ended
from tests.database import Session
from tests.faults.administration import limit_topic
from tests.integration.test_verify_database import relaying, verify

pytestmark = pytest.mark.services

_TOO_LARGE = "(select string_agg(md5(n::text), '') from generate_series(1, 1000) n)"


def printed_command(notes: list[str]) -> list[str]:
    """Return the command from the one note on dead letters."""
    [note] = [note for note in notes if "dead letter" in note]
    command = re.search(r"'bwtui (.*)' \w+ the relay", note)
    assert command is not None, note
    return shlex.split(command[1])


def letters(attempts: Attempts, *args: str) -> Ended:
    return attempts.command("dead-letters", *args)


def test_rows_in_the_dead_letters(attempts: Attempts, source: Session, database: str, tmp_path: Path) -> None:
    source.run("create table items (id int, part text, body text, primary key (part, id))")
    source.run("insert into items values (1, 'it''s', 'old'), (2, 'b', 'gone'), (3, 'c', 'moves')")
    recording = tmp_path / "recording"
    attempts.succeed(database, "--record", str(recording))
    limit_topic(attempts.services, f"{attempts.name}.items", 2_000)
    with relaying(attempts, database, source, "--on-error", "log", "--record", str(recording)):
        source.run(f"insert into items values (4, 'new', {_TOO_LARGE})")
        source.run(f"update items set body = {_TOO_LARGE} where id = 1")
        ended, report = verify(attempts, database)
        assert (ended.code, report["verdict"]) == (1, "anomalies"), ended.stderr
        ids = {one["id"] for one in map(json.loads, letters(attempts, "list", "--json").stdout.splitlines())}
        found = {one["class"]: one["note"] for one in report["findings"]}
        assert found.keys() == {"missing_key", "different_row"} and len(ids) == 2
        assert {note.split()[2] for note in found.values()} == ids
        [note] = [note for note in report["notes"] if "dead letter" in note]
        assert note.startswith("2 of the differing keys of public.items have changes in ")

    checked = attempts.command(
        "verify", str(recording), "-b", attempts.services.broker, "--json", "-r",
        attempts.services.schema_registry,
    )  # fmt: skip
    assert checked.code == 0, checked.stderr
    of_recording = printed_command(json.loads(checked.stdout)["notes"])

    limit_topic(attempts.services, f"{attempts.name}.items", 1_000_000)
    with relaying(attempts, database, source):
        assert of_recording == ["dead-letters", "retry", "--relay", attempts.name, "--all"]
        sent = attempts.command(*printed_command(report["notes"]))
        assert sent.code == 0, sent.stderr
        ended, report = verify(attempts, database)
        assert (ended.code, report["notes"]) == (0, []), ended.stderr or report
    again = attempts.command("verify", str(recording), "-b", attempts.services.broker, "--json")
    assert not [note for note in json.loads(again.stdout)["notes"] if "dead letter" in note]


def test_a_letter_of_a_table_without_a_key(attempts: Attempts, source: Session, database: str) -> None:
    source.run("create table lines (body text); alter table lines replica identity full")
    attempts.succeed(database, "-u")
    limit_topic(attempts.services, f"{attempts.name}.lines", 2_000)
    with relaying(attempts, database, source, "--on-error", "log"):
        source.run(f"insert into lines values ({_TOO_LARGE})")
        ended, report = verify(attempts, database)
    assert (ended.code, report["classes"]["missing_row"]) == (1, 1), ended.stderr
    [note] = [note for note in report["notes"] if "dead letter" in note]
    assert note == (
        "open dead letters of public.lines, which has no key: 1; 'bwtui dead-letters list "
        f"--relay {attempts.name} --table public.lines' shows them"
    )

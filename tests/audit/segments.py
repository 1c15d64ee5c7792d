"""Plant faults by rewriting Kafka's own segment files, and audit the result: ``make audit-segments``.

A relay records the same changes of many tables. The broker is stopped, the log of each table gets one fault
(`tests.audit.segment_faults`), the broker starts again, and one audit covers all of them.

python -m tests.audit.segments [--rounds N]
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from confluent_kafka.admin import AdminClient, NewTopic

from bwtui.audit.report import AuditSummary
from bwtui.packages.setup_progress import PlainSetupProgress
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from bwtui.verify.recording import VerifyOptions, verify_recording
from tests.attempts import Attempts
from tests.audit.segment_faults import CHANGES, FAULTS, Found
from tests.audit.segment_files import Rec, damage, read, write
from tests.database import session
from tests.fix_sandbox import drop_database

#: The relay's options in each round.
ROUNDS: tuple[tuple[str, ...], ...] = (("--headers",), ("-f", "json", "--headers"), (), ("-f", "json"))
#: Notes of an audit that are counted and not listed individually.
_NOTES = ("equivalent", "moved", "offset_gap", "time_differs", "headers_differ")
_SQL = {
    "insert": "insert into {0} values ({1}, 'v{2}')",
    "update": "update {0} set v = 'v{2}' where id = {1}",
    "delete": "delete from {0} where id = {1}",
}


def record(
    services: ServiceAddresses, folder: Path, faults: Sequence[str], args: Sequence[str]
) -> tuple[Path, str]:
    """Record `CHANGES` of a table for each fault; return the recording, and the topics' prefix."""
    folder.mkdir(exist_ok=True)
    attempts = Attempts(services, folder)
    tables = [f"t{number}" for number in range(len(faults))]
    name = attempts.name.replace("attempt", "segments")
    dsn = urlsplit(services.postgres)._replace(path=f"/{name}").geturl()
    admin = AdminClient({"bootstrap.servers": services.broker})
    topics = [NewTopic(f"{attempts.name}.{one}", 1, 1) for one in tables]
    for future in admin.create_topics(topics).values():
        future.result(30)
    with session(services.postgres) as server:
        server.run(f"create database {name}")
        try:
            with session(dsn) as opened:
                for one in tables:
                    opened.run(f"create table {one} (id int primary key, v text)")
                given = ("-C", "compression.type=none", *args)
                attempts.succeed(dsn, *given)
                for number, (what, key) in enumerate(CHANGES):
                    for one in tables:
                        opened.run(_SQL[what].format(one, key, 100 + number))
                attempts.succeed(dsn, "--record", str(folder / "recording"), *given)
                opened.run("select pg_drop_replication_slot(%s)", attempts.name)
        finally:
            drop_database(server.connection, name)
    return folder / "recording", attempts.name


@contextmanager
def stopped(sandbox: Sandbox) -> Iterator[Path]:
    """Stop Kafka during the block, and yield the folder of its logs."""
    sandbox.stop_service("kafka")
    try:
        yield sandbox.folder / "data" / "kafka" / "log"
    finally:
        sandbox.start_service("kafka")


def plant(sandbox: Sandbox, prefix: str, faults: Sequence[str], turn: int) -> dict[str, Found]:
    """Plant each fault into the log of its table; return the expected findings of each table."""
    planted: dict[Path, list[Rec]] = {}
    with stopped(sandbox) as logs:
        expected = _rewrite(logs, prefix, faults, turn, planted)
    for folder, records in planted.items():
        damage(folder, records)
    return expected


def _rewrite(
    logs: Path, prefix: str, faults: Sequence[str], turn: int, planted: dict[Path, list[Rec]]
) -> dict[str, Found]:
    expected = {}
    for number, fault in enumerate(faults):
        folder = logs / f"{prefix}.t{number}-0"
        records = read(folder)
        assert [one.offset for one in records] == list(range(len(CHANGES)))
        expected[f"public.t{number}"] = +FAULTS[fault](records, turn + number // len(FAULTS))
        write(folder, records)
        planted[folder] = records
    return expected


def found_in(report: AuditSummary, prefix: str) -> dict[str, Found]:
    """Return the findings of each table; notes have no table and are under an empty name."""
    found: dict[str, Found] = {"": Counter({n: report.classes[n] for n in _NOTES if report.classes[n]})}
    for one in report.findings:
        table = one.table or f"public.{(one.topic or '').removeprefix(prefix + '.')}"
        found.setdefault(table, Counter())[one.name] += 1
    return found


def judge(faults: Sequence[str], expected: dict[str, Found], found: dict[str, Found]) -> list[str]:
    """Return the differences between expected and actual findings as sentences."""
    wrong = []
    for number, fault in enumerate(faults):
        table = f"public.t{number}"
        told = Counter({n: count for n, count in expected[table].items() if n not in _NOTES})
        if told != found.get(table, Counter()):
            wrong.append(f"{fault}: planted {dict(told)}, found {dict(found.get(table, Counter()))}")
    notes = sum(
        (Counter({n: c for n, c in one.items() if n in _NOTES}) for one in expected.values()), Counter()
    )
    if notes != found[""]:
        wrong.append(f"notes: planted {dict(notes)}, found {dict(found[''])}")
    return wrong


def kinds(args: Sequence[str]) -> list[str]:
    """Return the faults that can be planted; faults of headers need a relay that sends headers."""
    return [name for name in FAULTS if "--headers" in args or name != "reheadered"]


def round_of(
    sandbox: Sandbox, folder: Path, args: Sequence[str], turn: int, faults: Sequence[str]
) -> tuple[list[str], AuditSummary]:
    """Record, plant and audit once; return the failures and the report."""
    services = sandbox.services()
    recording, prefix = record(services, folder, faults, args)
    expected = plant(sandbox, prefix, faults, turn)
    report = verify_recording(recording, {"bootstrap.servers": services.broker})
    wrong = judge(faults, expected, found_in(report, prefix))
    on_spark = verify_recording(
        recording, {"bootstrap.servers": services.broker}, VerifyOptions(spark_master="local[2]")
    )
    if _comparable(on_spark) != _comparable(report):
        wrong.append("Spark and threads report different things")
    return wrong, report


def _comparable(report: AuditSummary) -> str:
    """Return the report's text without the engine, the times, and the note about sealing."""
    told = report.to_json()
    assert told.pop("engine") and told.pop("seconds") and told["window"].pop("now_ms")
    # The first audit had to seal the recording; the second one found it sealed.
    told["notes"] = [note for note in told["notes"] if "were sealed before the audit" not in note]
    return json.dumps(told, default=str)


def main() -> int:
    """Run, and print the planted faults and the unexpected findings; return 1 if there are any."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    begin, planted, failed = time.monotonic(), Counter[str](), 0
    with tempfile.TemporaryDirectory(prefix="bwtui-segments-") as base:
        sandbox = Sandbox(Path(base) / "sandbox")
        sandbox.up(PlainSetupProgress(), attached=True, disposable=True)
        try:
            for number in range(given.rounds):
                args = ROUNDS[number % len(ROUNDS)]
                faults = kinds(args)
                wrong, _ = round_of(sandbox, Path(base) / str(number), args, number, faults)
                planted.update(faults)
                failed += len(wrong)
                print(f"round {number + 1} ({' '.join(args) or 'plain'}): {'; '.join(wrong) or 'as planted'}")
        finally:
            sandbox.down(wipe=True)
    faults_planted = planted.total() - planted["untouched"]
    print(
        f"{faults_planted} faults of {len(planted) - 1} kinds, {planted['untouched']} logs left as they were;"
    )
    print(f"{failed} found otherwise than planted; {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The services of all benchmarks; their 7-column table, how it is filled, and how it gets recorded."""

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg2
from confluent_kafka.admin import AdminClient, NewTopic
from psycopg.conninfo import make_conninfo

from bwtui.packages.setup_progress import PlainSetupProgress
from bwtui.sandbox.sandbox import DEFAULT_MAJOR, Sandbox, ServiceAddresses

BWTUI = (sys.executable, "-m", "bwtui")
ROWS_A_TRANSACTION = 100
COLUMNS = "id int8 primary key, a int4, b text, n numeric(10,2), t timestamptz, ok bool, note text"
#: What a row has in them, by its id.
VALUES = """id, id % 1000, 'name ' || id, (id % 1000000) / 100.0,
               timestamptz '2026-01-01' + id * interval '1 millisecond', id % 3 = 0,
               repeat(md5(id::text), 3) || 'note'"""
#: Rows of the table with the ids from one SQL expression to another.
ROWS = f"""
insert into bench
        select {VALUES}
        from generate_series({{low}}, {{high}}) id"""
_TABLE = f"""
create table bench ({COLUMNS});
create procedure fill(total int) language plpgsql as $$
begin
    for batch in 0 .. total / 100 - 1 loop
        {{rows}};
        {{others}}
        commit;
    end loop;
end $$;
"""
#: ``fill`` writes transactions of 100 inserts,
INSERTS = _TABLE.format(rows=ROWS.format(low="batch * 100 + 1", high="batch * 100 + 100"), others="")
#: or of 70 inserts, 20 updates and 10 deletes.
CHANGES = _TABLE.format(
    rows=ROWS.format(low="batch * 100 + 1", high="batch * 100 + 70"),
    others="""
        update bench set a = a + 1, note = note || '!' where id between batch * 100 + 1 and batch * 100 + 20;
        delete from bench where id between batch * 100 + 41 and batch * 100 + 50;""",
)
#: A table of ``{rows}`` rows with a large value each; ``fill`` updates them without touching it.
TOASTED = f"""
create table bench ({COLUMNS});
alter table bench alter note set storage external;
insert into bench select id, 1, 'name ' || id, 1.50, timestamptz '2026-01-01', true, repeat(md5(id::text), 80)
  from generate_series(1, {{rows}}) id;
create procedure fill(total int) language plpgsql as $$
begin
    for batch in 0 .. total / {{a_transaction}} - 1 loop
        update bench set a = a + 1
         where id between batch * {{a_transaction}} + 1 and (batch + 1) * {{a_transaction}};
        commit;
    end loop;
end $$;
"""


def add_sandbox_option(parser: argparse.ArgumentParser) -> None:
    """Let the user name a sandbox that runs."""
    parser.add_argument(
        "--sandbox", type=Path, metavar="FOLDER", help="a sandbox that runs, in place of one of its own"
    )


@contextlib.contextmanager
def services_in(
    folder: Path, running: Path | None, major: int = DEFAULT_MAJOR, *, keep: bool = False
) -> Iterator[ServiceAddresses]:
    """Start a sandbox in ``folder`` that is gone afterwards, or ``keep`` its data; or take a running one."""
    if running is not None:
        yield Sandbox(running).services()
        return
    sandbox = Sandbox(folder, major)
    try:
        yield sandbox.up(PlainSetupProgress(), attached=True, disposable=not keep)
    finally:
        sandbox.down(wipe=not keep)


def database(superuser: str) -> str:
    """Make the database; return its connection URI."""
    with contextlib.closing(psycopg2.connect(superuser)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute("create database bench")
    return make_conninfo(superuser, dbname="bench")


def environment(services: ServiceAddresses) -> dict[str, str]:
    """Return the environment of a command that speaks to Kafka and the registry."""
    ends = {"BWTUI_BROKER": services.broker, "BWTUI_SCHEMA_REGISTRY": services.schema_registry}
    # As it is where bwtui is installed, its modules are compiled once, not by each process.
    ours = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**ours, **ends}


def make_topic(services: ServiceAddresses, topic: str, partitions: int) -> None:
    """Make a topic that keeps everything."""
    admin = AdminClient({"bootstrap.servers": services.broker})
    settings = {"retention.ms": "-1"}
    admin.create_topics([NewTopic(topic, partitions, 1, config=settings)])[topic].result()


def relay_changes(services: ServiceAddresses, changes: int, command: Sequence[str]) -> None:
    """Make and fill the table, and have all of it read by ``command``, which stops when it has caught up."""
    dsn = database(services.postgres)
    whole = [*BWTUI, *command, "-d", dsn, "-s", "bench", "-x", "--until-caught-up"]
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(CHANGES)
        # The first run makes the slot.
        subprocess.run(whole, env=environment(services), check=True, stdout=subprocess.DEVNULL)
        cursor.execute("set synchronous_commit = off")
        cursor.execute("call fill(%s)", [changes])
    subprocess.run(whole, env=environment(services), check=True, stdout=subprocess.DEVNULL)

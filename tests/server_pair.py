"""A primary and its standby, which repeatedly switch roles.

Neither pg_basebackup nor pg_rewind is available here: a standby is a copy of the primary's files, taken
between ``pg_backup_start`` and ``pg_backup_stop``, as pg_basebackup does it. As in every test, fsync is off:
the tests prove that data outlives processes, not machines.
"""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2

from bwtui.model.lsn import parse_lsn
from bwtui.sandbox.ports import LOOPBACK
from tests.fix_sandbox import MAJOR
from tests.second_postgres import SecondPostgres
from tests.waiting import eventually

#: Slots are synchronized from this version on.
SYNCHRONIZES = 17
_EMPTY = ("pg_replslot", "pg_wal", "pg_stat_tmp")
_MADE = ("backup_label", "standby.signal", "postgresql.auto.conf")
_NOT_COPIED = (*_EMPTY, *_MADE, "postmaster.pid", "postmaster.opts")
_FOLLOWS = "select 1 from pg_stat_replication where state = 'streaming' and application_name in ('a', 'b')"
_HISTORY = """select pg_read_file('pg_wal/' || name) from pg_ls_waldir()
               where name like '%.history' order by name desc limit 1"""


class Node(SecondPostgres):
    """One of the two servers."""

    def __init__(self, name: str, major: int) -> None:
        """Create an empty cluster; WAL files of 1 MiB are cheaper to copy and to recycle."""
        super().__init__(major, "--wal-segsize=1")
        self.name = name
        self.major = major
        self.port = self._port

    @property
    def data(self) -> Path:
        """The data directory."""
        return self._folder / "data"

    def run(self, **more: str) -> None:
        """Start it in its current role, with ``more`` settings."""
        settings = {
            "wal_level": "logical",
            "hot_standby_feedback": "on",
            "primary_slot_name": f"of_{self.name}",
            "wal_receiver_status_interval": "1s",
            "wal_retrieve_retry_interval": "100ms",
            "max_wal_size": "128MB",
            "cluster_name": self.name,
        }
        if self.major >= SYNCHRONIZES:
            settings["sync_replication_slots"] = "on"
        self.start(**settings | more)

    def kill(self) -> None:
        """Kill it with SIGKILL; its children exit on their own when they notice."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of one statement."""
        with closing(psycopg2.connect(self.dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def set(self, name: str, value: str) -> None:
        """Change a setting of the running server."""
        self.ask(f"alter system set {name} = '{value}'")
        self.ask("select pg_reload_conf()")

    def become_standby_of(self, primary: "Node") -> None:
        """Become a new copy of ``primary``, and start to follow it; it must not be running."""
        slot = f"of_{self.name}"
        primary.ask(
            f"select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = '{slot}'"
        )
        # This keeps the WAL that is written from here on.
        primary.ask(f"select pg_create_physical_replication_slot('{slot}', true)")
        shutil.rmtree(self.data)
        with primary._backup() as label:
            self._copy(primary.data)
        (self.data / "backup_label").write_text(label[0])
        (self.data / "standby.signal").touch()
        conninfo = f"host={LOOPBACK} port={primary.port} user=postgres dbname=postgres"
        (self.data / "postgresql.auto.conf").write_text(f"primary_conninfo = '{conninfo}'\n")
        for made in (*_MADE, *_EMPTY):
            if self.owner is not None:
                shutil.chown(self.data / made, self.owner, self.owner)
        self.run()

    @contextmanager
    def _backup(self) -> Iterator[list[str]]:
        """Run a backup during the block; the list holds the backup's label at the end."""
        new = self.major >= 15
        start = "pg_backup_start('copy', true)" if new else "pg_start_backup('copy', true, false)"
        stop = "pg_backup_stop(false)" if new else "pg_stop_backup(false, false)"
        label: list[str] = []
        with closing(psycopg2.connect(self.dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute(f"select {start}")
            yield label
            cursor.execute(f"select labelfile from {stop}")
            label += [row[0] for row in cursor.fetchall()]

    def _copy(self, source: Path) -> None:
        self.data.mkdir(mode=0o700)
        if self.owner is not None:
            shutil.chown(self.data, self.owner, self.owner)
        copied = [str(path) for path in source.iterdir() if path.name not in _NOT_COPIED]
        # cp fails if files vanish meanwhile; if a needed file is missing, the standby does not start.
        subprocess.run(["cp", "-a", *copied, str(self.data)], check=False, stderr=subprocess.DEVNULL)
        for name in _EMPTY:
            (self.data / name).mkdir(mode=0o700)

    @property
    def owner(self) -> int | None:
        """The user that the server runs as, if it is a different one."""
        return self._user.uid if self._user else None


class Pair:
    """Two servers, one of them the primary, with both addresses in one connection string."""

    def __init__(self, major: int = MAJOR) -> None:
        """Start the primary, without a standby."""
        self.major = major
        self.primary, self.standby = Node("a", major), Node("b", major)
        nodes = (self.primary, self.standby)
        hosts, ports = ",".join(LOOPBACK for _ in nodes), ",".join(str(node.port) for node in nodes)
        #: The connection string as a user writes it.
        self.hosts = f"host={hosts} port={ports} user=postgres dbname=postgres"
        #: The connection string for clients other than bwtui.
        self.dsn = f"{self.hosts} target_session_attrs=read-write connect_timeout=3"
        self.primary.run()

    def remove(self) -> None:
        """Stop both, and remove their files."""
        self.primary.remove()
        self.standby.remove()

    def follow(self) -> None:
        """Make the other server a new standby of the primary."""
        self.standby.become_standby_of(self.primary)
        eventually("the standby follows", lambda: self.primary.ask(_FOLLOWS))

    def wait_for_standby(self, on: bool) -> None:
        """Turn on or off that the relay gets nothing that the standby lacks."""
        self.primary.set("synchronized_standby_slots", f"of_{self.standby.name}" if on else "")

    def wait_synchronized(self, slot: str, seconds: float = 60) -> None:
        """Wait until the standby could continue from the slot."""
        sql = f"select 1 from pg_replication_slots where slot_name = '{slot}' and synced and not temporary"

        def is_synchronized() -> bool:
            # A new copy of a slot is usable only once the primary's has advanced past a standby snapshot.
            self.primary.ask("select pg_log_standby_snapshot()")
            return bool(self.standby.ask(sql))

        eventually(f"slot {slot} is synchronized", is_synchronized, seconds)

    def cut(self) -> None:
        """Stop sending to the standby."""
        self.standby.set("primary_conninfo", "")
        eventually(
            "the standby is cut off", lambda: not self.standby.ask("select 1 from pg_stat_wal_receiver")
        )

    def caught_up(self) -> bool:
        """Return whether the standby has everything that has been written."""
        ((end,),) = self.primary.ask("select pg_current_wal_flush_lsn()::text")
        ((replayed,),) = self.standby.ask("select pg_last_wal_replay_lsn()::text")
        return parse_lsn(replayed) >= parse_lsn(end)

    def fail(self, *, hard: bool) -> None:
        """End the primary: with SIGKILL, or with a clean shutdown."""
        (self.primary.kill if hard else self.primary.stop)()

    def promote(self) -> int:
        """Promote the standby; return the LSN at which its own history begins."""
        self.primary, self.standby = self.standby, self.primary
        assert self.primary.ask("select pg_promote()") == [(True,)]
        return self.fork()

    def fork(self) -> int:
        """Return the LSN where the primary's timeline began."""
        ((history,),) = self.primary.ask(_HISTORY)
        return parse_lsn(history.strip().splitlines()[-1].split("\t")[1])

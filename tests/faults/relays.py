"""A relay under test: ``bwtui connect --headless`` as a separate process, started, watched and killed."""

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import IO, Any, TypeVar

import psycopg2

from bwtui.errors import ConnectionFailed
from bwtui.model.lsn import parse_lsn
from bwtui.model.status import Status
from bwtui.relay import failpoints
from bwtui.relay.process.control import request
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.source.slot import committed_lsn
from bwtui.state_folder import state_folder
from tests import forked
from tests.attempts import has_caught_up
from tests.database import session
from tests.faults.writer import create_tables

POLL_SECONDS = 0.005
#: A long wait polls less often, since each status takes the relay's CPU: after that part of its time so far.
_POLL_SHARE, _MOST_POLL_SECONDS = 0.02, 0.05
PATIENCE = 60.0

T = TypeVar("T")


def wait_for(
    what: str, look: Callable[[], T | None], seconds: float = PATIENCE, *, every: float = POLL_SECONDS
) -> T:
    """Call ``look`` every ``every`` seconds, or later if it takes long, and return its first true result.

    The test fails after ``seconds``.
    """
    begin = time.monotonic()
    while not (found := look()):
        waited = time.monotonic() - begin
        assert waited < seconds, f"waited {seconds:.0f} s in vain: {what}"
        time.sleep(max(every, min(waited * _POLL_SHARE, _MOST_POLL_SECONDS)))
    return found


class Relay:
    """A relay that is started repeatedly, with the same slot, topics and state folder."""

    def __init__(
        self, services: ServiceAddresses, database: str, folder: Path, name: str, *args: str
    ) -> None:
        """``name`` is the slot, relay name and topic prefix; every start gets ``args``."""
        self.services = services
        self.database = database
        self.name = name
        self._args = args
        self._folder = folder
        self._runs = 0
        self._process: subprocess.Popen[bytes] | None = None

    # -- the process ---------------------------------------------------------------------------------------

    def start(self, *args: str, limit: int | None = None, failpoint: str = "") -> None:
        """Start the relay; see `wait` for the next step. None of its files may grow beyond ``limit`` bytes.

        ``failpoint``: see `bwtui.relay.failpoints`.
        """
        assert self._process is None or self._process.poll() is not None, "it still runs"
        self._runs += 1
        command = [*self.command(), "-d", self.database, "-s", self.name, "-p", self.name, *self._args, *args]
        with self._output("json").open("wb") as out, self._output("err").open("wb") as err:
            environment = os.environ | ({failpoints.VARIABLE: failpoint} if failpoint else {})
            self._process = self.begin(command, environment, out, err)
        if limit is not None:
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (limit, limit))

    def begin(
        self, command: list[str], environment: dict[str, str], out: IO[bytes], err: IO[bytes]
    ) -> "subprocess.Popen[bytes]":
        """Start the process."""
        return forked.begin(command, environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def command(self) -> list[str]:
        """Return the command line, including the options for Kafka."""
        ends = ["-b", self.services.broker, "-r", self.services.schema_registry]
        return ["connect", "--headless", "--json", "--headers", *ends]

    def run(self, *args: str) -> Status:
        """Run the relay until it has caught up, and return its last status.

        Fail the test if it ends with an error.
        """
        self.start("--until-caught-up", *args)
        code = self.join()
        words, leaves_gaps = self.last_words(), "report" in (*self._args, *args)
        assert code == 0 or (leaves_gaps and has_caught_up(code, words)), f"exit code {code}: {words}"
        return self.last_status()

    def join(self, seconds: float = PATIENCE) -> int:
        """Wait until the relay has ended and PostgreSQL has noticed, and return the exit code."""
        code = self.wait_ended(seconds)
        self._wait_released()
        return code

    def wait_ended(self, seconds: float = PATIENCE) -> int:
        """Wait until the relay has ended, and return the exit code; PostgreSQL may not have noticed yet."""
        assert self._process is not None
        return self._process.wait(seconds)

    @property
    def pid(self) -> int:
        """Return the process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self._process is None or self._process.poll() is not None

    def wait_frozen(self) -> None:
        """Wait until a failpoint has stopped the process; SIGCONT lets it continue."""
        stat = Path(f"/proc/{self.pid}/stat")
        wait_for("it is stopped", lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")

    def kill(self) -> None:
        """Kill the relay with SIGKILL, and wait until PostgreSQL has noticed."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._wait_released()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the relay."""
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """Stop the relay cleanly, and check its last status."""
        self.signal(signal.SIGTERM)
        code = self.join()
        assert code == 0, f"exit code {code}: {self.last_words()}"

    def close(self) -> None:
        """End the relay whatever its state."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    # -- its reports
    # ---------------------------------------------------------------------------------------------

    def wait(
        self,
        what: str,
        condition: Callable[[Status], object],
        seconds: float = PATIENCE,
        *,
        every: float = POLL_SECONDS,
    ) -> Status:
        """Return the first status that fulfils ``condition``; the test fails if the relay ends before.

        Each status costs the relay some ms of CPU; poll less often during a long wait.
        """

        def look() -> Status | None:
            assert self._process is not None
            ended = self._process.poll()
            assert ended is None, f"it ended with {ended}, waiting for {what}: {self.last_words()}"
            status = self.status()
            return status if status is not None and condition(status) else None

        return wait_for(what, look, seconds, every=every)

    def wait_streaming(self) -> Status:
        """Wait until the relay streams."""
        return self.wait("streaming", lambda status: status.state == "streaming" and not status.detail)

    def wait_caught_up(self, seconds: float = PATIENCE) -> Status:
        """Wait until everything committed so far is confirmed."""
        with closing(psycopg2.connect(self.database)) as connection:
            connection.autocommit = True
            now = committed_lsn(connection)
        return self.wait("catching up", lambda status: status.confirmed_lsn >= now, seconds, every=0.02)

    def wait_sent(self) -> None:
        """Wait until PostgreSQL has sent everything committed so far; the relay itself may be stopped."""
        sql = (
            "select sent_lsn >= %s::pg_lsn from pg_stat_replication join pg_replication_slots"
            " on active_pid = pid where slot_name = %s"
        )
        with closing(psycopg2.connect(self.database)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute("select pg_current_wal_flush_lsn()::text")
            ((end,),) = cursor.fetchall()

            def is_sent() -> bool:
                cursor.execute(sql, [end, self.name])
                return cursor.fetchall() == [(True,)]

            wait_for("all is sent", is_sent)

    def wait_told(self) -> None:
        """Wait until the relay has confirmed its durable position to PostgreSQL once more."""
        sql = (
            "select extract(epoch from reply_time)::float8 from pg_stat_replication join pg_replication_slots"
            " on active_pid = pid where slot_name = %s"
        )
        before = self._query(sql)
        wait_for("a status update", lambda: (now := self._query(sql)) and now != before)

    def status(self) -> Status | None:
        """Request the relay's status; return None if it does not answer."""
        try:
            return Status.from_json(request(self.name, {"request": "status"}))
        except ConnectionFailed:
            return None

    def last_status(self) -> Status:
        """Return the last status that the relay wrote to stdout."""
        return Status.from_json(json.loads(self._output("json").read_text().splitlines()[-1]))

    def last_words(self) -> str:
        """Return the relay's stderr."""
        return self._output("err").read_text()

    def letters(self) -> list[dict[str, Any]]:
        """Return the dead letters."""
        path = state_folder(self.name) / "dead-letters.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def log(self) -> str:
        """Return the relay's log."""
        path = state_folder(self.name) / "engine.log"
        return path.read_text() if path.exists() else ""

    # -- PostgreSQL's view of it
    # ---------------------------------------------------------------------------------

    def slot_lsn(self) -> int | None:
        """Return the slot's confirmed LSN, or None if there is no slot or it is still being created.

        PostgreSQL lists a slot before it has found the consistent point; no run could use the slot yet.
        """
        rows = self._query("select confirmed_flush_lsn::text from pg_replication_slots where slot_name = %s")
        return parse_lsn(rows[0][0]) if rows and rows[0][0] else None

    def _wait_released(self) -> None:
        wait_for("the slot's release", lambda: not self._sessions())

    def _sessions(self) -> list[tuple[Any, ...]]:
        return self._query(
            "select active_pid from pg_replication_slots where active and (slot_name = %s"
            " or (temporary and database = current_database()))"
        )

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(psycopg2.connect(self.database)) as connection, connection.cursor() as cursor:
            cursor.execute(sql, [self.name])
            return cursor.fetchall()

    def _output(self, kind: str) -> Path:
        return self._folder / f"{self.name}.{self._runs}.{kind}"


class RecordingOnly(Relay):
    """``bwtui record`` instead."""

    def command(self) -> list[str]:
        """Return the command line."""
        return ["record", "--json", "--headers"]


def execute(database: str, *statements: str) -> int:
    """Run the statements in one transaction, and return the end of the WAL after its commit."""
    with closing(psycopg2.connect(database)) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        connection.commit()
        connection.autocommit = True
        # Not the start of the next record: if this record ends with its page, the next one starts after a
        # page header.
        cursor.execute("select pg_current_wal_flush_lsn()::text")
        ((end,),) = cursor.fetchall()
        return parse_lsn(end)


def streaming(
    database: str, new_relay: Callable[..., Relay], *args: str, rows: int = 1, kind: type[Relay] = Relay
) -> Relay:
    """Return a relay that streams two tables of ``rows`` rows, and all tables created later."""
    create_tables(database, rows)
    relay = new_relay(*args, kind=kind)
    with session(database) as source:
        source.publish_all(relay.name)
    relay.start()
    relay.wait_streaming()
    return relay


def new_name(prefix: str = "faults") -> str:
    """Return a name that no other relay of this server has."""
    return f"{prefix}_{os.getpid():x}_{time.monotonic_ns():x}"

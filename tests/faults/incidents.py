"""A relay that carries a trickle of rows, and incidents of the services around it."""

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg2

from bwtui.model.status import Status
from bwtui.model.verdict import RelayVerdict
from bwtui.relay.process.control import ControlClient
from bwtui.sandbox.sandbox import Sandbox, ServiceName
from bwtui.tui.app import RelayApp
from bwtui.tui.sources.relay_model import RelayModel
from tests.database import session
from tests.faults.relays import Relay, wait_for
from tests.tui.picture import lines

#: Maximum delay, in seconds, until a stall is reported, plus slack for a machine that is busy with other
#: tests.
TOLD_SECONDS, SLACK_SECONDS = 3.0, 3.0
_PAUSE_SECONDS = 0.1


@contextmanager
def frozen(sandbox: Sandbox, *services: ServiceName) -> Iterator[None]:
    """Suspend all processes of the services during the block."""
    running = sandbox.status()
    assert running is not None
    pids = [pid for name in services for pid in _family(running.services[name].pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """Suspend one process during the block."""
    os.kill(pid, signal.SIGSTOP)
    # The process's threads stop one by one, and may answer until then.
    wait_for("it is stopped", lambda: _are_stopped(pid))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def drop_slot(database: str, relay: Relay) -> None:
    """Drop the slot of a streaming relay while the relay is suspended, then resume the relay."""
    drop = (
        "select pg_terminate_backend(active_pid), pg_drop_replication_slot(slot_name)"
        " from pg_replication_slots where slot_name = %s"
    )
    there = "select count(*) from pg_replication_slots where slot_name = %s"
    with session(database) as source, suspended(relay.pid):

        def is_dropped() -> bool:
            with suppress(psycopg2.errors.ObjectInUse):
                source.run(drop, relay.name)
            return not source.value(there, relay.name)

        wait_for("the slot to be dropped", is_dropped)


def _are_stopped(pid: int) -> bool:
    """Return whether the system has stopped all threads of a process ("proc_pid_stat(5)")."""
    stats = (path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    return all(stat.rpartition(") ")[2].startswith("T") for stat in stats)


def _family(pid: int | None) -> list[int]:
    """Return a process and all its descendants."""
    assert pid is not None
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in _family(int(child)))]


@contextmanager
def trickle(database: str, statement: str = "insert into accounts (owner) values (1)") -> Iterator[None]:
    """Run a statement ten times a second during the block, as far as the server answers."""
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            with suppress(psycopg2.Error), closing(psycopg2.connect(database)) as connection:
                connection.autocommit = True
                with connection.cursor() as cursor:
                    while not stop.wait(_PAUSE_SECONDS):
                        cursor.execute(statement)
            stop.wait(_PAUSE_SECONDS)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(20)


def stalled(relay: Relay, cause: str, *words: str, since: float | None = None) -> RelayVerdict:
    """Wait until the relay reports a stall by ``cause`` whose message contains ``words``; check the delay.

    ``since`` is the start of the incident by ``time.time``, by default now.
    """
    begun = time.time() if since is None else since

    def is_told(status: Status) -> bool:
        return status.verdict.condition == "stalled" and status.verdict.cause == cause

    status = _judged(relay, f"the stall by {cause}", is_told, 30)
    # The stall begins when the relay asks the service; the work before that does not count.
    begun = max(begun, status.verdict.since or begun)
    assert status.time - begun < TOLD_SECONDS + SLACK_SECONDS, status.verdict
    assert status.state == "stalled" or status.phase == "starting"
    for word in words:
        assert word in status.verdict.sentence, status.verdict
    return status.verdict


def healthy(relay: Relay, what: str = "that all is well again") -> Status:
    """Wait until the relay reports no trouble."""
    return _judged(
        relay, what, lambda status: status.verdict.condition == "healthy" and not status.detail, 60
    )


def _judged(relay: Relay, what: str, condition: Callable[[Status], bool], seconds: float) -> Status:
    """Return the first status that fulfils ``condition``; on a timeout, fail with the last verdict."""
    try:
        return relay.wait(what, condition, seconds)
    except AssertionError as error:
        last = relay.status()
        raise AssertionError(f"{error}; at last: {last and (last.detail, last.verdict)}") from error


def never(relay: Relay, wrong: Callable[[Status], object], seconds: float) -> list[Status]:
    """Check for ``seconds`` that no status is ``wrong``; return the statuses."""
    until = time.monotonic() + seconds
    seen: list[Status] = []
    while time.monotonic() < until:
        status = relay.status()
        if status is not None:
            assert not wrong(status), status.verdict
            seen.append(status)
        time.sleep(0.1)
    return seen


def _shapes(top: list[str]) -> list[str]:
    return [re.sub(r"[0-9.]+", "0", line) for line in top]


def first_lines(
    relay: Relay, word: str, size: tuple[int, int] = (80, 24), *, lines_read: int = 3
) -> list[str]:
    """Return the top of the relay's screens once it contains ``word``."""

    async def look() -> list[str]:
        client = ControlClient(relay.name)
        app = RelayApp(RelayModel(client))
        deadline = time.monotonic() + 30
        try:
            async with app.run_test(size=size) as pilot:
                before: list[str] = []
                # The first line determines the layout of the lines below; only their figures change later.
                while word not in (top := lines(app)[:lines_read])[0] or before != (before := _shapes(top)):
                    assert time.monotonic() < deadline, top
                    await pilot.pause(0.3)
                return top
        finally:
            await client.close()

    return asyncio.run(look())

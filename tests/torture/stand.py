"""The stand of a campaign: one relay, the services behind fault-injecting proxies, and the checks."""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg2
from confluent_kafka import KafkaException

from bwtui.model.lsn import parse_lsn
from bwtui.sandbox.runner import ServiceState
from bwtui.sandbox.sandbox import Sandbox, ServiceAddresses
from bwtui.source.slot import committed_lsn
from tests.faults.relays import Relay, new_name
from tests.proxy import Way, way_to, ways_to
from tests.slot_file import ended_in_order, saved_lsn, writes_slots_when_stopped
from tests.torture.histories import Histories
from tests.torture.judging import Judge, Mark
from tests.torture.topics import Topics
from tests.waiting import eventually

#: No encryption, because the proxy could not distinguish PostgreSQL's answers.
_PLAIN = "sslmode=disable&gssencmode=disable"
_RECOVERY_SECONDS = 120.0
#: A relay that can't start while a service is unavailable ends with this code, and its operator restarts it.
_MAY_END = frozenset({4})
_TORN_SECONDS = 30.0

#: Creates the relay from services, database, folder, name and its options.
Make = Callable[..., Relay]


class Stand:
    """The target of the faults."""

    def __init__(
        self,
        sandbox: Sandbox,
        services: ServiceAddresses,
        database: str,
        folder: Path,
        make: Callable[[str], Relay],
        *,
        exactly_once: bool,
    ) -> None:
        """``services`` and ``database`` are the direct addresses.

        Relays connect through the proxies that follow.
        """
        self.sandbox = sandbox
        self.services = services
        self.database = database
        self._folder = folder
        self._make = make
        self._hosts = 0
        self.relay = relay = make(new_name("torture"))
        self.exactly_once = exactly_once
        self.postgres_way: Way
        self.broker_ways: list[Way] = []
        self.registry_way: Way
        self.judge = Judge(relay.name)
        self.topics = Topics(services, self.judge.topics)
        self._versions = Topics(services, [self.judge.versions_topic])
        self.histories: Histories | None = None
        #: Exit codes of the relay that are expected at the moment, in addition to those always allowed.
        self.expected: set[int] = set()
        #: How often the relay ended on its own, by exit code, and how long each recovery took.
        self.ended: Counter[int] = Counter()
        self.recoveries: list[float] = []
        self.torn_looks = 0
        #: Number of SIGKILLs of the relay.
        self.kills = 0
        self._columns = 0
        self._of_slot = f"from pg_replication_slots where slot_name = '{relay.name}'"

    @property
    def ways(self) -> list[Way]:
        """Return all proxies."""
        return [self.postgres_way, *self.broker_ways, self.registry_way]

    @property
    def brokers(self) -> list[str]:
        """Return the names of the brokers' services."""
        status = self.sandbox.status()
        assert status is not None
        return [name for name in status.services if name.startswith("kafka")]

    def pid(self, service: str) -> int:
        """Return the process of a service."""
        status = self.sandbox.status()
        assert status is not None
        found = status.services[service].pid
        assert found is not None
        return found

    # -- used by faults --------------------------------------------------------------------------------------

    def crash(self, service: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a service with a signal, and restart it once it is gone."""
        if service == "postgres":
            self.mark_taken_back()
        os.kill(self.pid(service), number)

        def is_gone() -> bool:
            status = self.sandbox.status()
            return status is not None and status.services[service].state is ServiceState.DIED

        eventually(f"{service} is gone", is_gone)
        self.sandbox.start_service(service)  # type: ignore[arg-type]

    def restart(self, service: str) -> None:
        """Stop a service cleanly, and start it again.

        Before version 17 PostgreSQL does not save its slots then; a server that is killed because it stops
        too slowly does not save them either.
        """
        data, version = Path(self._setting("data_directory")), int(self._setting("server_version_num"))
        self.sandbox.stop_service(service)  # type: ignore[arg-type]
        if service == "postgres" and not (writes_slots_when_stopped(version) and ended_in_order(data)):
            self.mark_taken_back(data)
        self.sandbox.start_service(service)  # type: ignore[arg-type]

    def suspend(self, pid: int, seconds: float) -> None:
        """Suspend a process for a while."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        try:
            self.last(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def last(self, seconds: float) -> None:
        """Let a fault last; the duration is part of the fault."""
        threading.Event().wait(seconds)

    def ask(self, sql: str, *, answers: bool = True) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, if it has a result; none while PostgreSQL does not answer."""
        try:
            with closing(psycopg2.connect(self.database, connect_timeout=5)) as connection:
                connection.autocommit = True
                with connection.cursor() as cursor:
                    cursor.execute(sql)
                    return cursor.fetchall() if answers else []
        except (psycopg2.OperationalError, psycopg2.InterfaceError):
            return []

    def walsender(self) -> int | None:
        """Return the walsender of the relay."""
        rows = self.ask(f"select active_pid {self._of_slot}")
        return rows[0][0] if rows else None

    def confirmed(self) -> int:
        """Return the slot's confirmed LSN; 0 while PostgreSQL does not answer."""
        rows = self.ask(f"select confirmed_flush_lsn::text {self._of_slot}")
        return parse_lsn(rows[0][0]) if rows else 0

    def _setting(self, name: str) -> str:
        ((value,),) = eventually("PostgreSQL answers", lambda: self.ask(f"show {name}"))
        return str(value)

    def alter(self, table: str) -> None:
        """Add a column to a table."""
        self._columns += 1
        self.ask(f"alter table {table} add column more_{self._columns} text", answers=False)

    # -- the relay -----------------------------------------------------------------------------------------

    def kill_relay(self) -> None:
        """Kill the relay with SIGKILL, drop its data in transit, and check what it leaves."""
        self.end_relay()
        self.bury()

    def end_relay(self) -> None:
        """Kill the relay with SIGKILL, unless it has ended already."""
        self.relay.signal(signal.SIGKILL)
        self.kills += self.relay.wait_ended() == -signal.SIGKILL

    def bury(self) -> None:
        """Handle the remains of a relay that has ended: its connections, and its Kafka transaction."""
        for way in self.ways:
            # A network delivers data of a dead process within moments, not seconds.
            way.reset()
        eventually("the slot's release", lambda: self.ask("select 1") and self.walsender() is None)
        if self.exactly_once:
            self.look_for_torn()

    def start_relay(self, failpoint: str = "") -> None:
        """Restart the relay."""
        self.relay.start(failpoint=failpoint)

    def another_relay(self) -> Relay:
        """Start another relay of the same slot, as on another host, which has no state of the first.

        Faults act on the new relay from now on; the first is returned.
        """
        first = self.relay
        self._hosts += 1
        os.environ["BWTUI_STATE_HOME"] = str(self._folder / f"host {self._hosts}")
        self.relay = self._make(f"{first.name}_{self._hosts}")
        # Only its output file has its own name.
        self.relay.name = first.name
        self.relay.start()
        return first

    def is_read(self) -> bool:
        """Return whether the slot is read."""
        return bool(
            self.ask(
                "select 1 from pg_replication_slots join pg_stat_replication on pid = active_pid"
                f" where slot_name = '{self.relay.name}' and state = 'streaming'"
            )
        )

    def see_to_relay(self) -> None:
        """Restart the relay if it has ended as allowed; fail the test otherwise."""
        if not self.relay.has_ended:
            return
        code = self.relay.wait_ended()
        assert code in self.expected | _MAY_END, f"the relay ended with {code}: {self.relay.last_words()}"
        self.ended[code] += 1
        self.relay.start()

    def look_for_torn(self) -> None:
        """Check that read_committed sees each transaction of PostgreSQL completely, or not at all.

        Only while no relay runs: the markers that make a Kafka transaction visible are written one by one.
        """
        assert self.histories is not None
        until = time.monotonic() + _TORN_SECONDS
        self.torn_looks += 1
        while True:
            self.judge.take(self.topics.read())
            torn = self.judge.torn(self.histories.transactions())
            if not torn or time.monotonic() > until:
                break
        self.judge.verdict.torn += [f"transaction {number}" for number in sorted(torn)]

    # -- recovering ----------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Reset every proxy to normal operation."""
        for way in self.ways:
            way.calm()

    def recover(self, seconds: float = _RECOVERY_SECONDS) -> None:
        """Wait until everything committed so far is confirmed, and record the duration."""
        begun = time.monotonic()
        target = eventually("PostgreSQL answers", self._committed)

        def has_recovered() -> bool:
            self.see_to_relay()
            # Each poll opens a PostgreSQL session, which costs more than all that the relay does meanwhile.
            self.last(0.1)
            return self.confirmed() >= target

        eventually("the relay recovers", has_recovered, seconds)
        self.expected.clear()
        self.recoveries.append(time.monotonic() - begun)
        self.mark()

    def _committed(self) -> int | None:
        try:
            with closing(psycopg2.connect(self.database, connect_timeout=5)) as connection:
                connection.autocommit = True
                return committed_lsn(connection)
        except (psycopg2.OperationalError, psycopg2.InterfaceError):
            return None

    def mark(self) -> None:
        """Record the confirmed position, and then the end of the topic.

        Only while all is well: a restarted broker may report an earlier end for a while.
        """
        confirmed = self.confirmed()
        self.judge.marks.append(Mark(confirmed, self._ends()))

    def mark_taken_back(self, data: Path | None = None) -> None:
        """Expect that PostgreSQL ends, or has ended, and its slot returns to the position saved to disk.

        ``data``: the data directory of a server that does not answer any more.
        """
        saved = saved_lsn(data or Path(self._setting("data_directory")), self.relay.name)
        # Without this mark every repetition would count as a fault.
        ends = eventually("Kafka says where the topic ends", self._ends)
        self.judge.marks.append(Mark(saved, ends, taken_back=True))

    def _ends(self) -> dict[int, int]:
        with contextlib.suppress(KafkaException):
            return {place[1]: end for place, end in self._versions.ends().items()}
        return {}


@contextmanager
def standing(
    sandbox: Sandbox,
    services: ServiceAddresses,
    database: str,
    folder: Path,
    *args: str,
    make: Make = Relay,
    records: bool = False,
) -> Iterator[Stand]:
    """Run a campaign's stand during the block; ``args`` are further options of the relay.

    A relay with ``records`` records into a separate folder: a different host has a different disk.
    """
    with ExitStack() as stack:
        postgres, registry = urlsplit(database), urlsplit(services.schema_registry)
        postgres_way = stack.enter_context(way_to(_address(postgres.netloc), "postgres"))
        registry_way = stack.enter_context(way_to(_address(registry.netloc), "http"))
        broker_ways = stack.enter_context(ways_to(services.broker))
        by_way = replace(
            services,
            broker=",".join(way.address for way in broker_ways),
            schema_registry=registry._replace(netloc=registry_way.address).geturl(),
        )
        user = postgres.netloc.rpartition("@")[0]
        conninfo = postgres._replace(netloc=f"{user}@{postgres_way.address}", query=_PLAIN).geturl()

        def made(name: str) -> Relay:
            recorded = ("--record", str(folder / f"recording of {name}")) if records else ()
            relay = make(by_way, database, folder, name, "-d", conninfo, *recorded, *args)
            stack.callback(relay.close)
            return relay

        exactly_once = "--exactly-once" in args
        stand = Stand(sandbox, services, database, folder, made, exactly_once=exactly_once)
        stand.postgres_way, stand.registry_way, stand.broker_ways = postgres_way, registry_way, broker_ways
        yield stand


def _address(netloc: str) -> str:
    return netloc.rpartition("@")[2]


def drawn(dice: random.Random, least: float, most: float) -> float:
    """Return a duration, more often a short one."""
    return float(least + (most - least) * dice.random() ** 2)

"""The stand of a campaign: one relay, the services behind ways on which things happen, and looks at them."""

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

#: Not asked for, since PostgreSQL's answers could not be told apart.
_PLAIN = "sslmode=disable&gssencmode=disable"
_RECOVERY_SECONDS = 120.0
#: A relay that can't begin because a service is away says so and ends; whoever runs it starts it again.
_MAY_END = frozenset({4})
_TORN_SECONDS = 30.0

#: How the relay is made: by services, database, folder, name and its options.
Make = Callable[..., Relay]


class Stand:
    """What faults act upon."""

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
        """``services`` and ``database`` are without detours; relays by name go by the ways that follow."""
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
        #: What the relay may end with just now, besides what it ever may.
        self.expected: set[int] = set()
        #: How often it ended by itself, by exit code, and how long each recovery took.
        self.ended: Counter[int] = Counter()
        self.recoveries: list[float] = []
        self.torn_looks = 0
        #: How often the relay was ended with SIGKILL.
        self.kills = 0
        self._columns = 0
        self._of_slot = f"from pg_replication_slots where slot_name = '{relay.name}'"

    @property
    def ways(self) -> list[Way]:
        """All ways."""
        return [self.postgres_way, *self.broker_ways, self.registry_way]

    @property
    def brokers(self) -> list[str]:
        """The names of the brokers' services."""
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

    # -- what faults do ------------------------------------------------------------------------------------

    def crash(self, service: str, number: signal.Signals = signal.SIGKILL) -> None:
        """End a service with a signal, and start it again once it is gone."""
        if service == "postgres":
            self.mark_taken_back()
        os.kill(self.pid(service), number)

        def is_gone() -> bool:
            status = self.sandbox.status()
            return status is not None and status.services[service].state is ServiceState.DIED

        eventually(f"{service} is gone", is_gone)
        self.sandbox.start_service(service)  # type: ignore[arg-type]

    def restart(self, service: str) -> None:
        """Stop a service in order, and start it again.

        Before version 17 PostgreSQL writes down no slot then; nor does one that is killed, being too slow.
        """
        data, version = Path(self._setting("data_directory")), int(self._setting("server_version_num"))
        self.sandbox.stop_service(service)  # type: ignore[arg-type]
        if service == "postgres" and not (writes_slots_when_stopped(version) and ended_in_order(data)):
            self.mark_taken_back(data)
        self.sandbox.start_service(service)  # type: ignore[arg-type]

    def suspend(self, pid: int, seconds: float) -> None:
        """Have a process do nothing for a while."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
        try:
            self.last(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def last(self, seconds: float) -> None:
        """Let a fault last: its length is part of it."""
        threading.Event().wait(seconds)

    def ask(self, sql: str, *, answers: bool = True) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, if it has an answer; none while PostgreSQL does not answer."""
        try:
            with closing(psycopg2.connect(self.database, connect_timeout=5)) as connection:
                connection.autocommit = True
                with connection.cursor() as cursor:
                    cursor.execute(sql)
                    return cursor.fetchall() if answers else []
        except (psycopg2.OperationalError, psycopg2.InterfaceError):
            return []

    def walsender(self) -> int | None:
        """Return the process that sends the relay's stream."""
        rows = self.ask(f"select active_pid {self._of_slot}")
        return rows[0][0] if rows else None

    def confirmed(self) -> int:
        """Return what the slot is confirmed to; 0 while that can't be asked."""
        rows = self.ask(f"select confirmed_flush_lsn::text {self._of_slot}")
        return parse_lsn(rows[0][0]) if rows else 0

    def _setting(self, name: str) -> str:
        ((value,),) = eventually("PostgreSQL answers", lambda: self.ask(f"show {name}"))
        return str(value)

    def alter(self, table: str) -> None:
        """Give a table one more column."""
        self._columns += 1
        self.ask(f"alter table {table} add column more_{self._columns} text", answers=False)

    # -- the relay -----------------------------------------------------------------------------------------

    def kill_relay(self) -> None:
        """End it with SIGKILL, with all that is on its way, and see what it has left."""
        self.end_relay()
        self.bury()

    def end_relay(self) -> None:
        """End it with SIGKILL, unless it has ended already."""
        self.relay.signal(signal.SIGKILL)
        self.kills += self.relay.wait_ended() == -signal.SIGKILL

    def bury(self) -> None:
        """See to what a relay that has ended leaves: connections, and a transaction of Kafka's."""
        for way in self.ways:
            # A network carries on what a dead process has sent, within moments and not seconds.
            way.reset()
        eventually("the slot's release", lambda: self.ask("select 1") and self.walsender() is None)
        if self.exactly_once:
            self.look_for_torn()

    def start_relay(self, failpoint: str = "") -> None:
        """Start it again."""
        self.relay.start(failpoint=failpoint)

    def another_relay(self) -> Relay:
        """Start another relay of the same slot, as on another host, which knows nothing of the first.

        It is the one that faults act upon from now on; the first is returned.
        """
        first = self.relay
        self._hosts += 1
        os.environ["BWTUI_STATE_HOME"] = str(self._folder / f"host {self._hosts}")
        self.relay = self._make(f"{first.name}_{self._hosts}")
        # Only its output has a name of its own.
        self.relay.name = first.name
        self.relay.start()
        return first

    def is_read(self) -> bool:
        """Whether the slot is read."""
        return bool(
            self.ask(
                "select 1 from pg_replication_slots join pg_stat_replication on pid = active_pid"
                f" where slot_name = '{self.relay.name}' and state = 'streaming'"
            )
        )

    def see_to_relay(self) -> None:
        """Start it again if it has ended as it may; the test fails when it may not."""
        if not self.relay.has_ended:
            return
        code = self.relay.wait_ended()
        assert code in self.expected | _MAY_END, f"the relay ended with {code}: {self.relay.last_words()}"
        self.ended[code] += 1
        self.relay.start()

    def look_for_torn(self) -> None:
        """See that each transaction of PostgreSQL is there for read_committed in whole, or not at all.

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
        """Let every way be like any other."""
        for way in self.ways:
            way.calm()

    def recover(self, seconds: float = _RECOVERY_SECONDS) -> None:
        """Wait until all that is committed by now is confirmed, and note how long that took."""
        begun = time.monotonic()
        target = eventually("PostgreSQL answers", self._committed)

        def has_recovered() -> bool:
            self.see_to_relay()
            # Each look is a session of PostgreSQL's, which costs more than all that the relay does meanwhile.
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
        """Note what is confirmed, and then where the topic ends.

        Only where all is well: a broker that was started again may say for a while that it ends earlier.
        """
        confirmed = self.confirmed()
        self.judge.marks.append(Mark(confirmed, self._ends()))

    def mark_taken_back(self, data: Path | None = None) -> None:
        """Expect that PostgreSQL ends, or has, and that its slot stands where it was last written to disk.

        ``data``: the data directory of one that can't be asked any more.
        """
        saved = saved_lsn(data or Path(self._setting("data_directory")), self.relay.name)
        # Without this mark all that comes again would be taken for a fault.
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
    """Put up the stand for the block; ``args`` are the relay's further options.

    A relay that ``records`` does so in a folder of its own: another host has another disk.
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
    """Return a length of time, more often a short one."""
    return float(least + (most - least) * dice.random() ** 2)

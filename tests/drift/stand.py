"""The stand of a drift campaign: a database with tables, a relay of it, and a continuous writer."""

import contextlib
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import psycopg2
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from bwtui.model.status import Status
from bwtui.sandbox.sandbox import ServiceAddresses
from bwtui.state_folder import state_folder
from tests.database import Session, session
from tests.drift.comparison import differing
from tests.faults.relays import Relay, new_name, wait_for
from tests.fix_sandbox import fresh_database
from tests.torture.topics import Decoder
from tests.waiting import eventually

#: The publication of the relay's tables: a list that the relay creates, all tables, or the tables of schemas.
Publication = Literal["list", "all", "schemas"]

#: The tables that no change touches.
BYSTANDERS = ("public.bystander", "public.bystander_parts")
_SETUP = (
    "create schema extra",
    "create table bystander (id int primary key, n int not null unique, v text)",
    "create table bystander_parts (id int, n int not null, v text, primary key (id)) partition by range (id)",
    "create table bystander_low partition of bystander_parts for values from (minvalue) to (150)",
    "create table bystander_high partition of bystander_parts for values from (150) to (maxvalue)",
    *(f"insert into {name} select g, g, 'row ' || g from generate_series(1, 200) g" for name in BYSTANDERS),
)
_WRITER_PAUSE = 0.03
#: A status costs the relay some milliseconds.
_LOOK_SECONDS = 0.2
_START_SECONDS = 180.0
_COMMAND_SECONDS = 300


def writes(table: str, dice: random.Random) -> list[str]:
    """Return statements that insert, update and delete rows, and give one row another key."""
    word = f"{dice.getrandbits(40):x}"
    # An order of the rows that differs from call to call, and is the same for the same seed.
    some = f"(select id from {table} order by md5(id::text || '{word}') limit {dice.randint(1, 4)})"
    one = f"(select id from {table} order by md5('{word}' || id) limit 1)"
    return [
        f"insert into {table} (id, n, v) select m + g, m + g, '{word}'"
        f" from (select coalesce(max(id), 0) m from {table}) x, generate_series(1, {dice.randint(1, 4)}) g",
        f"delete from {table} where id in {some}",
        f"update {table} set v = '{word} after' where id in {some}",
        f"update {table} set id = (select max(id) + 1 from {table}) where id in {one}",
    ]


class Writer:
    """Writes to all tables in a thread of its own, in small transactions, unless it is paused.

    A table that a change has renamed, dropped or altered refuses some of them, which counts for nothing.
    """

    def __init__(self, database: str, tables: Sequence[str], seed: int) -> None:
        self._database = database
        self._tables = list(tables)
        self._dice = random.Random(seed)
        self._stop = threading.Event()
        #: Held while a transaction is open, and by those who pause the writer.
        self._lock = threading.Lock()
        self.transactions = 0
        self._thread = threading.Thread(target=self._run, name="drift writer", daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Write during the block."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Write nothing during the block."""
        with self._lock:
            yield

    def _run(self) -> None:
        with session(self._database) as opened:
            # A lock that a change holds must not keep the writer from ending.
            opened.run("set lock_timeout = '500ms'")
            while not self._stop.wait(_WRITER_PAUSE):
                with self._lock:
                    self._write(opened)

    def _write(self, opened: Session) -> None:
        statements = writes(self._dice.choice(self._tables), self._dice)
        chosen = self._dice.sample(statements, self._dice.randint(1, 2))
        try:
            opened.run(f"begin; {'; '.join(chosen)}; commit")
            self.transactions += 1
        except psycopg2.Error:
            opened.run("rollback")


class Stand:
    """The target of the changes."""

    def __init__(
        self,
        services: ServiceAddresses,
        database: str,
        folder: Path,
        publication: Publication,
        options: Sequence[str],
    ) -> None:
        """``options`` are the relay's."""
        self.services = services
        self.database = database
        self.folder = folder
        self.mode = publication
        self.relay = Relay(services, database, folder, new_name("drift"), *options)
        self.options = tuple(options)
        self.admin = AdminClient({"bootstrap.servers": services.broker})
        self.writer: Writer
        #: Ends the changes that still last, at the end of the stand.
        self.ends = ExitStack()
        self.kills = 0
        self._decoder = Decoder(services)
        self.run(*_SETUP)

    @property
    def publication(self) -> str:
        """The publication that the relay reads."""
        return f"bwtui_{self.relay.name}"

    def run(self, *statements: str) -> None:
        """Run the statements, each in a transaction of its own unless they begin one."""
        with session(self.database) as opened:
            for statement in statements:
                opened.run(statement)

    def publish(self) -> None:
        """Create the publication, unless the relay will create it."""
        target = {"all": "all tables", "schemas": "tables in schema public, extra"}.get(self.mode)
        if target:
            self.run(
                f"create publication {self.publication} for {target} with (publish_via_partition_root = true)"
            )

    def differing(self) -> dict[str, str]:
        """Compare topics with tables; see `tests.drift.comparison.differing`."""
        return differing(self._decoder, self.services, self.database, self.relay.name, "-u" in self.options)

    # -- topics --------------------------------------------------------------------------------------------

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and wait until it is gone; one that a relay recreates at once counts as gone."""
        with contextlib.suppress(KafkaException):
            before = self._topic_id(topic)
            self.admin.delete_topics([topic])[topic].result(30)
            eventually("the topic is gone", lambda: self._topic_id(topic) != before)

    def delete_topics(self) -> None:
        """Delete all topics of the relay, so that a long campaign does not fill the broker."""
        topics = [
            name
            for name in self.admin.list_topics(timeout=30).topics
            if name.startswith(f"{self.relay.name}.")
        ]
        for deleted in self.admin.delete_topics(topics).values() if topics else ():
            deleted.result(30)

    def make_topic(self, topic: str, partitions: int) -> None:
        """Make a topic; the relay may be faster."""
        try:
            self.admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def add_partitions(self, topic: str, more: int) -> None:
        """Give a topic more partitions."""
        count = len(self.admin.list_topics(topic, timeout=30).topics[topic].partitions)
        self.admin.create_partitions([NewPartitions(topic, count + more)])[topic].result(30)

    def _topic_id(self, topic: str) -> str:
        described = self.admin.describe_topics(TopicCollection([topic]))[topic]
        try:
            return str(described.result(30).topic_id)
        except KafkaException:
            return ""

    # -- the relay -----------------------------------------------------------------------------------------

    def status(self) -> Status | None:
        """Return the relay's status; None if it does not answer."""
        return self.relay.status()

    def freeze_at(self, failpoint: str) -> None:
        """Start the relay so that it blocks at a failpoint, and wait until it does, or streams."""
        self.relay.start(failpoint=f"{failpoint}:stop")
        wait_for("the relay stands still", lambda: self._is_frozen() or self._streams(), every=_LOOK_SECONDS)

    def thaw(self) -> None:
        """Let the relay continue."""
        self.relay.signal(signal.SIGCONT)

    def end(self, *, hard: bool) -> None:
        """Stop the relay, or kill it with SIGKILL."""
        if self.relay.has_ended:
            return
        if hard:
            self.relay.kill()
            self.kills += 1
        else:
            self.relay.stop()

    def last(self, seconds: float) -> None:
        """Let some time pass in which the relay works."""
        threading.Event().wait(seconds)

    def start(self, *args: str) -> None:
        """Start the relay unless it runs, and wait until it streams or ends."""
        if self.relay.has_ended:
            self.relay.start(*args)
        wait_for("the relay streams or ends", self._is_ready, _START_SECONDS, every=_LOOK_SECONDS)

    def catch_up(self) -> None:
        """Wait until the relay has confirmed everything committed so far, or has ended."""
        with contextlib.suppress(AssertionError):
            if not self.relay.has_ended:
                self.relay.wait_caught_up(30)

    def lose_state(self) -> None:
        """Remove the state folder; the relay must not run."""
        shutil.rmtree(state_folder(self.relay.name), ignore_errors=True)

    def another_relay(self, database: str) -> Relay:
        """Start a relay of another database that writes into the same topics; it ends with the stand."""
        other = Relay(self.services, database, self.folder, new_name("drift"), "-p", self.relay.name)
        self.ends.callback(other.close)
        other.start()
        return other

    def other_database(self) -> str:
        """Make another database; it is dropped at the end of the stand."""
        return self.ends.enter_context(fresh_database(self.services, "drift_other"))

    def follow(self, commands: Iterable[str]) -> str:
        """Run the commands and statements that the status names; return their output and exit codes.

        Commands that differ in their tables alone become one command.
        """
        joined: dict[tuple[str, ...], list[str]] = {}
        done = []
        for command in commands:
            if not command.startswith("bwtui "):
                self.run(command)
                done.append(f"{command}: run as SQL")
                continue
            words = shlex.split(command)[1:]
            tables = words.index("--table") if "--table" in words else len(words)
            joined.setdefault(tuple(words[:tables]), []).extend(words[tables:])
        return "\n".join((*done, *(self._follow([*first, *tables]) for first, tables in joined.items())))

    def _follow(self, args: list[str]) -> str:
        yes = ["--yes"] if args[0] == "repair" and "--yes" not in args else []
        done = subprocess.run(
            [str(Path(sys.executable).with_name("bwtui")), *args, *yes],
            check=False,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            stdin=subprocess.DEVNULL,
            env=os.environ.copy(),
        )
        return f"{shlex.join(args)}: exit code {done.returncode}\n{done.stdout[-800:]}{done.stderr[-800:]}"

    def _is_ready(self) -> bool:
        return self.relay.has_ended or self._streams()

    def _streams(self) -> bool:
        status = self.status()
        return status is not None and status.phase == "streaming"

    def _is_frozen(self) -> bool:
        stat = Path(f"/proc/{self.relay.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"


@contextmanager
def standing(
    services: ServiceAddresses, folder: Path, publication: Publication, options: Sequence[str] = ()
) -> Iterator[Stand]:
    """Yield the stand of a campaign; the relay is not started yet."""
    with fresh_database(services, "drift") as database:
        stand = Stand(services, database, folder, publication, options)
        with stand.ends:
            stand.ends.callback(stand.delete_topics)
            # Before the database is dropped.
            stand.ends.callback(stand.relay.close)
            yield stand

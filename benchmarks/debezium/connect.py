"""The way of Debezium: Kafka Connect, in a JVM that has relayed rows of the same shape before."""

import contextlib
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from benchmarks.debezium.runs import Relaying, Run, slot_of
from benchmarks.debezium.source import PUBLICATION, WARM
from benchmarks.debezium.topics import NO_FIGURES, Topics
from benchmarks.debezium.workloads import Kind
from benchmarks.processes import cpu_of, watched
from bwtui.errors import BwtuiError
from bwtui.sandbox.ports import LOOPBACK, choose
from tests.consumers.jars import (
    CONNECT_ALONE,
    confluent_jars,
    connect_plugin,
    connect_standalone,
    maven_jars,
)

DEBEZIUM = ("io.debezium", "debezium-connector-postgres", "3.7.0.Final")
#: The JVM's options beside its heap.
JVM = ("-XX:+UseParallelGC",)
#: Of the producer: what bwtui's has (`bwtui.kafka.client`), in the Java client's words.
_PRODUCER = {
    "compression.type": "lz4",
    "batch.size": "1000000",
    "buffer.memory": "67108864",
    "acks": "all",
    "enable.idempotence": "true",
    "max.request.size": "67108864",
}
#: Of the connector: rows alone, as bwtui sends them, and larger batches than the defaults.
CONNECTOR = {
    "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
    "plugin.name": "pgoutput",
    "publication.autocreate.mode": "disabled",
    "schema.name.adjustment.mode": "avro",
    "field.name.adjustment.mode": "avro",
    "max.batch.size": "16384",
    "max.queue.size": "65536",
    "max.queue.size.in.bytes": "67108864",
    "poll.interval.ms": "10",
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.unwrap.delete.tombstone.handling.mode": "tombstone",
}
_START_SECONDS = 180.0
_LOOK_SECONDS = 0.25
#: Asked more often, Connect's API would take CPU from what is measured.
_STATUS_SECONDS = 2.0


def fetch() -> None:
    """Fetch what is not here yet. Raises ConnectionFailed."""
    connect_plugin(*DEBEZIUM)
    _jars()


def producer(kind: Kind) -> dict[str, str]:
    """Return the producer's settings, each workload's as it is best for Debezium.

    bwtui's has no linger.ms, since the relay gathers rows by itself. Debezium does not, so its producer has
    Kafka's own default wherever the rate counts.
    """
    return {**_PRODUCER, "linger.ms": "0" if kind is Kind.LATENCY else "5"}


@contextlib.contextmanager
def debezium_relays(run: Run) -> Iterator[Relaying]:
    """Start Connect, let it relay the table ``warm``, and then what is measured."""
    port = choose(["connect"], {})["connect"]
    worker = {
        "bootstrap.servers": run.services.broker,
        "listeners": f"http://{LOOPBACK}:{port}",
        "plugin.path": str(connect_plugin(*DEBEZIUM)),
        "offset.flush.interval.ms": "10000",
        **{f"{kind}.converter": "io.confluent.connect.avro.AvroConverter" for kind in ("key", "value")},
        **{
            f"{kind}.converter.schema.registry.url": run.services.schema_registry for kind in ("key", "value")
        },
        **{f"producer.{name}": value for name, value in producer(run.workload.kind).items()},
    }
    jvm = [f"-Xmx{run.heap}", *JVM]
    with connect_standalone(run.folder, worker, None, jvm=jvm, jars=_jars()) as process:
        connect = Connect(f"http://{LOOPBACK}:{port}", process, run.folder / "connect.log")
        connect.wait_until_up()
        if run.warm_rows:
            _warm_up(run, connect)
        with slot_of(run, run.name) as slot, watched(process.pid, _LOOK_SECONDS) as seen:
            begin = cpu_of(process.pid)
            connect.put("measured", _connector(run, slot, run.name, PUBLICATION))
            relaying = Relaying(lambda: connect.check_now_and_then("measured"))
            yield relaying
            connect.check("measured")
            relaying.used.cpu_seconds = cpu_of(process.pid) - begin
            connect.delete("measured")
        # A JVM gives hardly anything back, so that is what it has had since its start.
        relaying.used.resident_mb = seen.peak_mb.get("all", 0.0)


def _jars() -> list[Path]:
    return [*maven_jars("connect-alone", CONNECT_ALONE), *confluent_jars()]


def _warm_up(run: Run, connect: "Connect") -> None:
    """Have the JVM compile what it will run, by rows of the same shape out of another table."""
    name = f"{run.name}_warm"
    topics = Topics(run.services, {WARM: f"{name}.public.{WARM}"}, 3)
    with slot_of(run, name, WARM) as slot, topics.made():
        connect.put("warm-up", _connector(run, slot, name, WARM))
        topics.wait_for(run.warm_rows, lambda: connect.check_now_and_then("warm-up"))
        connect.delete("warm-up")


def _connector(run: Run, slot: str, prefix: str, publication: str) -> dict[str, str]:
    dsn = conninfo_to_dict(run.source.dsn)
    _, _, threads = run.way.partition("-")
    tables = r"public\.warm" if publication == WARM else r"public\.bench.*"
    return {
        **CONNECTOR,
        "database.hostname": str(dsn["host"]),
        "database.port": str(dsn["port"]),
        "database.user": str(dsn["user"]),
        "database.password": str(dsn["password"]),
        "database.dbname": str(dsn["dbname"]),
        "topic.prefix": prefix,
        "slot.name": slot,
        "publication.name": publication,
        "table.include.list": tables,
        # Without an offset of its own no_data begins where the slot stands.
        "snapshot.mode": "initial" if run.workload.kind is Kind.SNAPSHOT else "no_data",
        "snapshot.max.threads": threads or "1",
    }


class Connect:
    """Kafka Connect's own API."""

    def __init__(self, url: str, process: Any, log: Path) -> None:
        self._url = url
        self._process = process
        self._log = log
        self._looked = 0.0
        # A proxy of the environment is not for loopback.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def wait_until_up(self) -> None:
        """Wait until it answers. Raises BwtuiError."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                self._ask("GET", "/connectors")
                return
            self._check_process()
            if time.monotonic() > deadline:
                raise self._failed(f"Kafka Connect does not answer after {_START_SECONDS:.0f} seconds")
            time.sleep(0.2)

    def put(self, name: str, config: dict[str, str]) -> None:
        """Have it run a connector. Raises BwtuiError."""
        try:
            self._ask("PUT", f"/connectors/{name}/config", config)
        except urllib.error.HTTPError as error:
            raise self._failed(
                f"Kafka Connect refuses the connector: {error.read().decode()[:500]}"
            ) from error

    def delete(self, name: str) -> None:
        """Take a connector away, with its task."""
        self._ask("DELETE", f"/connectors/{name}")

    def check_now_and_then(self, name: str) -> None:
        """Do what `check` does, if the last time is some seconds ago."""
        if time.monotonic() - self._looked > _STATUS_SECONDS:
            self.check(name)
            self._looked = time.monotonic()

    def check(self, name: str) -> None:
        """Raise BwtuiError if the connector or its task has failed."""
        self._check_process()
        try:
            status = self._ask("GET", f"/connectors/{name}/status")
        except urllib.error.HTTPError:
            # It has none yet.
            return
        for part in (status["connector"], *status["tasks"]):
            if part["state"] == "FAILED":
                raise self._failed(f"Debezium has failed: {str(part.get('trace'))[:1500]}")

    def _check_process(self) -> None:
        if self._process.poll() is not None:
            raise self._failed(f"Kafka Connect ended with {self._process.returncode}")

    def _failed(self, reason: str) -> BwtuiError:
        lines = self._log.read_text(errors="replace").splitlines()
        errors = [line[:400] for line in lines if re.search("ERROR|Error|OutOfMemory", line)]
        return BwtuiError(
            ": ".join([reason, *errors[-1:]]),
            f"{NO_FIGURES}; a larger --heap helps where memory is what lacks",
        )

    def _ask(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        request = urllib.request.Request(
            self._url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json"},
            method=method,
        )
        with self._opener.open(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None

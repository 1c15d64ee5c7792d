"""The settings of one relay: the command line and bwtui.toml set them, the engine reads them."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

Pairs = tuple[tuple[str, str], ...]
OutputFormat = Literal["avro", "json"]
OnError = Literal["exit", "log"]
Toast = Literal["fetch", "error", "placeholder"]
OnRecordError = Literal["stop", "stop-recording"]
SnapshotBy = Literal["export", "chunks"]
OnGap = Literal["close", "report"]
OnNewTables = Literal["add", "announce"]
LogFormat = Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Settings of one relay and of its screens; the defaults are those of the command line."""

    #: libpq connection string or URI, passed to libpq unchanged; may be empty (PG* variables).
    postgres: str = ""
    slot: str = "bottledwater"
    broker: str = "localhost:9092"
    schema_registry: str = "http://localhost:8081"
    output_format: OutputFormat = "avro"
    allow_unkeyed: bool = False
    topic_prefix: str = ""
    on_error: OnError = "exit"
    skip_snapshot: bool = False
    #: The first snapshot's method: from one exported snapshot before the stream, or alongside the stream.
    snapshot_by: SnapshotBy = "export"
    #: Number of processes for the first snapshot; None: as many as pay off, see `snapshot.workers.plan`.
    snapshot_workers: int | None = None
    #: The Spark cluster whose executors take the first snapshot; empty: this machine does.
    spark_master: str = ""
    #: Continue with a server whose history lacks what was relayed.
    accept_divergence: bool = False
    #: Start although the slot was relayed with other settings for the form of its messages.
    accept_settings: bool = False
    #: Recreate a lost slot, and send the differences in place of a new snapshot.
    heal: bool = False
    #: Send in Kafka transactions, so that read_committed consumers see every change once.
    exactly_once: bool = False
    #: A Kafka transaction is committed once it has this number of messages, or this age in milliseconds.
    commit_rows: int = 20_000
    commit_ms: int = 100
    #: Synchronize the slot to standbys, from PostgreSQL 17 on. None: only a slot that bwtui creates, or any
    #: with several hosts, see `bwtui.relay.promotion.failover_slot`.
    failover: bool | None = None
    #: Wait at the start for services that are unavailable.
    wait_for_services: bool = False
    #: What to send for a large value that an UPDATE did not change, if the old row is not available.
    toast: Toast = "fetch"
    #: The Avro namespace of records that are named after their tables; empty: one for each table.
    namespace: str = ""
    #: Name the types of values like Debezium for Kafka Connect.
    connect_names: bool = False
    #: Send a JSON message to this topic for every TRUNCATE; empty: only count them.
    truncate_topic: str = ""
    #: Send BEGIN and END of transactions to this topic; empty: none.
    transaction_topic: str = ""
    #: librdkafka properties (-C), and librdkafka topic properties (-T).
    kafka_config: Pairs = ()
    topic_config: Pairs = ()
    #: Further keys of Confluent's registry client, such as basic.auth.user.info.
    registry_config: Pairs = ()
    #: Empty: bwtui_<slot>.
    publication: str = ""
    #: Regular expressions for "schema.table", matched whole; no tables means all.
    tables: tuple[str, ...] = ()
    exclude_tables: tuple[str, ...] = ()
    #: "add" puts a table that is created later into the publication automatically.
    new_tables: OnNewTables = "add"
    #: For a table that is not proven: compare it and send the differences, or only report it.
    on_gap: OnGap = "close"
    headers: bool = False
    dead_letter_topic: str = ""
    end_lsn: int | None = None
    until_caught_up: bool = False
    #: The folder of the recording; empty: none.
    record: str = ""
    #: If the recording can't be written: end, or continue without it.
    on_record_error: OnRecordError = "stop"
    #: A segment of the recording is finished once it has this number of bytes, or this age in seconds.
    segment_bytes: int = 64 << 20
    segment_seconds: int = 300
    #: Maximum share of the stream's time for rows of `bwtui snapshot` (per cent).
    snapshot_share: int = 30
    #: Record without Kafka and without a schema registry.
    record_only: bool = False
    #: Address for metrics and probes over HTTP: a port, or an address and a port; empty: none.
    listen: str = ""
    #: Format of the relay's log, and with --headless of its lines on stderr.
    log_format: LogFormat = "text"
    #: The relay's name, for attach, status and stop. Empty: the slot's name.
    name: str = ""
    #: The screens change nothing.
    readonly: bool = False
    #: Where each value came from, by option name or, for a property, "table.key"; defaults are left out.
    origins: Pairs = field(default=(), compare=False)

    @property
    def is_bounded(self) -> bool:
        """True if the relay ends on its own."""
        return self.until_caught_up or self.end_lsn is not None

    @property
    def relay_name(self) -> str:
        """Name of the relay's folder and control socket."""
        return self.name or self.slot

    @property
    def sink(self) -> str:
        """Name of the kind of sink: that of its module in `bwtui.sink`."""
        if self.record_only:
            return "nothing"
        return "transactions" if self.exactly_once else "kafka"

    @property
    def side_topics(self) -> dict[str, str]:
        """Topics that do not hold a table's rows, by the options that name them."""
        named = {
            "dead-letter-topic": self.dead_letter_topic,
            "truncate-topic": self.truncate_topic,
            "transaction-topic": self.transaction_topic,
        }
        return {option: topic for option, topic in named.items() if topic}

    @property
    def publication_name(self) -> str:
        """Name of the publication that the relay reads."""
        return self.publication or f"bwtui_{self.slot}"

    @property
    def owns_publication(self) -> bool:
        """Whether bwtui creates a missing publication, and decides which tables are in it."""
        return not self.publication

    @property
    def adds_new_tables(self) -> bool:
        """Whether new tables join the publication automatically."""
        return self.new_tables == "add" and self.owns_publication

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object for starting the engine's process; it may contain secrets."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "RelaySettings":
        """Rebuild settings from `to_json`."""
        return cls(**{name: _tuples(value) for name, value in data.items()})


def _tuples(value: Any) -> Any:
    """Convert JSON's lists, and nested ones, back to tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value

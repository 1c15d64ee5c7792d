"""The settings of one relay, each declared once: for the command line, the environment and bwtui.toml.

A field of `RelaySettings` declares its option: type, default, help, flags and validation. The option's name
is that of the field, with dashes: the long flag, and the key in bwtui.toml (with underscores or dashes);
``BWTUI_`` followed by it in capitals is the environment variable. `bwtui.cli.inputs.relay_options`
generates the commands' options and their help.
"""

import dataclasses
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args, get_origin

from bwtui.masking import without_passwords
from bwtui.option_checks import (
    check_address,
    check_brokers,
    check_connection,
    check_name,
    check_namespace,
    check_publication,
    check_regex,
    check_registries,
    check_share,
    check_slot,
    check_spark_master,
    check_topic,
    check_workers,
)

T = TypeVar("T")
Kind = Literal["text", "switch", "lsn", "number", "list", "pairs"]
Pairs = tuple[tuple[str, str], ...]
OutputFormat = Literal["avro", "json"]
OnError = Literal["exit", "log"]
Toast = Literal["fetch", "error", "placeholder"]
OnRecordError = Literal["stop", "stop-recording"]
SnapshotBy = Literal["export", "chunks"]
OnGap = Literal["close", "report"]
OnNewTables = Literal["add", "announce"]
LogFormat = Literal["text", "json"]
#: The profile in the origin of a setting, as `bwtui.config` writes it.
_PROFILE = re.compile(r"bwtui\.toml \[profile\.(.+)\]$")
#: Text that double quotes protect from every shell.
_SIMPLE = re.compile(r'[^"$`\\!\n]*')


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a relay."""

    name: str
    #: The field of RelaySettings that it sets.
    field: str
    #: Describes its effect; the command line leaves out options without a help text.
    help: str = ""
    #: The short flag.
    flag: str = ""
    metavar: str = ""
    kind: Kind = "text"
    #: Raises ValueError with a plain sentence if the text is invalid.
    check: Callable[[str], None] | None = None
    #: The valid values, if they can be listed.
    choices: tuple[str, ...] = ()
    #: A description of the default, if the field's default does not show it.
    shown_default: str = ""
    #: The table of bwtui.toml, for pairs.
    table: str = ""
    #: True if empty text is valid and means none.
    optional: bool = False
    #: True if it names a file or folder, whose name may be any bytes.
    is_path: bool = False
    #: True if it is for the screens, not for the relay that they show.
    of_screens: bool = False

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return "BWTUI_" + self.name.upper().replace("-", "_")


def option(default: T, help: str = "", flag: str = "", metavar: str = "", **declared: Any) -> T:
    """Declare an option with the name, type and default of its field; ``declared`` are further fields of
    `Option`.
    """
    declaration = {"help": help, "flag": flag, "metavar": metavar, **declared}
    return field(default=default, metadata={"option": declaration})


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Settings of one relay and of its screens; the defaults are those of the command line."""

    postgres: str = option(
        "",
        "Connection string or URI, passed to libpq unchanged; PG* variables, ~/.pgpass and services work.",
        "d",
        "DSN",
        check=check_connection,
        optional=True,
    )
    slot: str = option("bottledwater", "Replication slot.", "s", "NAME", check=check_slot)
    broker: str = option("localhost:9092", "Kafka brokers.", "b", "HOST:PORT,…", check=check_brokers)
    schema_registry: str = option(
        "http://localhost:8081", "Schema registry.", "r", "URL", check=check_registries
    )
    output_format: OutputFormat = option("avro", "avro or json.", "f", "FORMAT")
    allow_unkeyed: bool = option(
        False, "Also relay tables without a key; their messages have a null key.", "u"
    )
    topic_prefix: str = option(
        "", "Prefix every topic name with P and a dot.", "p", "P", check=check_topic, optional=True
    )
    on_error: OnError = option(
        "exit",
        "If a row can't be relayed: 'exit' stops before its transaction, which the next start rereads; 'log' "
        "writes the row to the dead letters and continues.",
        "e",
        "POLICY",
    )
    skip_snapshot: bool = option(False, "Create the slot without copying the tables' existing rows.", "x")
    snapshot_by: SnapshotBy = option(
        "export",
        "First snapshot: 'export' copies all tables before streaming, and after a crash from scratch; "
        "'chunks' streams immediately, sends the tables' rows between changes, and resumes after a crash.",
        metavar="HOW",
    )
    #: None: as many as pay off, see `snapshot.worker_pool`.
    snapshot_workers: int | None = option(
        None,
        "Number of processes that take the first snapshot, each with its own session (1 to 32).",
        metavar="N",
        check=check_workers,
        shown_default="one per core, at most 3; 1 if the tables have less than 128 MiB",
    )
    spark_master: str = option(
        "",
        "Take the first snapshot on this Spark cluster, with --snapshot-workers tasks (docs/operate.md).",
        metavar="URL",
        check=check_spark_master,
        optional=True,
    )
    accept_divergence: bool = option(
        False,
        "Continue although the server's history lacks relayed changes (an older copy, a standby promoted too "
        "soon): topics keep them.",
    )
    accept_settings: bool = option(
        False,
        "Start although the slot was relayed with a different output format, prefix, namespace, registry or "
        "partitioner: existing records stay as they are, and every table is compared.",
    )
    heal: bool = option(
        False,
        "Recreate a lost slot and compare topics with tables: only keys that differ are sent, in place of "
        "a new snapshot.",
    )
    exactly_once: bool = option(
        False,
        "Send rows and the position in Kafka transactions: read_committed consumers see each change exactly "
        "once, whichever process crashes; one process takes the snapshot (docs/exactly-once.md).",
    )
    commit_rows: int = option(
        20_000,
        "With --exactly-once: commit once N messages are sent, at the end of a PostgreSQL transaction.",
        metavar="N",
    )
    commit_ms: int = option(
        100,
        "With --exactly-once: commit after N milliseconds, after a fifth of that if nothing is left to send.",
        metavar="N",
    )
    #: None: only a slot that bwtui creates, or any with several hosts, see
    #: `bwtui.relay.history.promotion`.
    failover: bool | None = option(
        None,
        "Make the slot, even an existing one, a failover slot, which standbys synchronize (PostgreSQL 17 or "
        "later); --no-failover leaves the slot unchanged.",
        shown_default="if bwtui creates the slot, or -d names several hosts",
    )
    wait_for_services: bool = option(
        False,
        "At the start, wait for PostgreSQL, Kafka and registry while they are unreachable, instead of ending "
        "with exit code 4; a failed authentication still ends the start.",
    )
    kafka_config: Pairs = option((), "A property of librdkafka; repeatable.", "C", "K=V", table="kafka")
    topic_config: Pairs = option(
        (),
        "A topic property of librdkafka's producer, not a setting of the topic; repeatable.",
        "T",
        "K=V",
        table="topic",
    )
    #: Further keys of Confluent's registry client, such as basic.auth.user.info.
    registry_config: Pairs = option((), table="registry")
    publication: str = option(
        "",
        "Publication to read; the relay's first start creates it if it is missing.",
        metavar="NAME",
        check=check_publication,
        optional=True,
        shown_default="bwtui_SLOT",
    )
    tables: tuple[str, ...] = option(
        (),
        "Only tables whose schema.table, or name in schema public, matches REGEX as a whole; repeatable.",
        metavar="REGEX",
        check=check_regex,
        name="table",
    )
    exclude_tables: tuple[str, ...] = option(
        (), "Exclude these tables; repeatable.", metavar="REGEX", check=check_regex, name="exclude-table"
    )
    new_tables: OnNewTables = option(
        "add",
        "If a table that matches the selection is created later: 'add' adds it to bwtui's own "
        "publication and sends its earlier rows; 'announce' only reports the statement that adds it.",
        metavar="HOW",
    )
    on_gap: OnGap = option(
        "close",
        "If a table is not proven, because of a change that the stream does not report: 'close' "
        "compares it with its topic and sends what differs; 'report' only shows the command.",
        metavar="HOW",
    )
    headers: bool = option(False, "Add Kafka headers: commit LSN, ordinal, operation, xid.")
    dead_letter_topic: str = option(
        "",
        "Topic that also receives the rows that can't be relayed.",
        metavar="TOPIC",
        check=check_topic,
        optional=True,
    )
    toast: Toast = option(
        "fetch",
        "The stream omits large values that an UPDATE did not change: 'fetch' reads the row's "
        "present value, 'error' applies --on-error, 'placeholder' sends null and names the column in "
        "__escaped.",
        metavar="MODE",
    )
    namespace: str = option(
        "",
        "Name records after their tables, in this Avro namespace: com.acme.shop.Orders and OrdersKey. Only "
        "for new topics.",
        metavar="NAME",
        check=check_namespace,
        optional=True,
    )
    connect_names: bool = option(
        False, "Add Debezium's Kafka Connect type names to value schemas, in addition to the logical types."
    )
    truncate_topic: str = option(
        "",
        "Send a JSON message to TOPIC for every TRUNCATE.",
        metavar="TOPIC",
        check=check_topic,
        optional=True,
    )
    transaction_topic: str = option(
        "",
        "Send BEGIN and END of each transaction to TOPIC, with row counts: Debezium's transaction metadata.",
        metavar="TOPIC",
        check=check_topic,
        optional=True,
    )
    record: str = option(
        "",
        "Record everything that is read and sent in DIR; nothing is confirmed before it is recorded.",
        metavar="DIR",
        optional=True,
        is_path=True,
    )
    on_record_error: OnRecordError = option(
        "stop",
        "If the recording can't be written: 'stop' ends the relay, 'stop-recording' continues without it.",
        metavar="POLICY",
    )
    segment_bytes: int = option(64 << 20, "Start a new file of the recording after N bytes.", metavar="N")
    segment_seconds: int = option(300, "… or after N seconds.", metavar="N")
    snapshot_share: int = option(
        30,
        "Maximum percentage of the relay's time for rows of 'bwtui snapshot' and 'bwtui repair' while "
        "the stream has rows (1 to 90).",
        metavar="PERCENT",
        check=check_share,
    )
    end_lsn: int | None = option(
        None,
        "End when everything up to LSN, such as 0/16B3748, is confirmed and no table is left to compare; "
        "exit code 3 if a table is not proven.",
        metavar="LSN",
        name="endpos",
        kind="lsn",
    )
    until_caught_up: bool = option(
        False,
        "End when everything committed before the start is confirmed, no rows are waiting and no table "
        "is left to compare; exit code 3 if a table is not proven.",
    )
    listen: str = option(
        "",
        "Serve /metrics for Prometheus, /healthz and /readyz over HTTP; a port alone means 127.0.0.1.",
        metavar="[ADDRESS:]PORT",
        check=check_address,
        optional=True,
    )
    log_format: LogFormat = option("text", "Write the log as 'text', or as 'json' lines.")
    name: str = option(
        "",
        "The relay's name for attach, status and stop.",
        metavar="NAME",
        check=check_name,
        optional=True,
        shown_default="the slot's",
    )
    readonly: bool = option(
        False,
        "Read-only screens: no key changes anything, and leaving them never stops a relay.",
        of_screens=True,
    )
    #: Record without Kafka and without a schema registry.
    record_only: bool = False
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

    @property
    def drop_command(self) -> str:
        """The command that drops the relay's slot."""
        return drop_command(self.slot, self.postgres, dict(self.origins).get("postgres", ""))

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object for starting the engine's process; it may contain secrets."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "RelaySettings":
        """Rebuild settings from `to_json`."""
        return cls(**{name: _tuples(value) for name, value in data.items()})


def _kind(annotation: Any) -> Kind:
    if annotation == Pairs:
        return "pairs"
    if annotation == tuple[str, ...]:
        return "list"
    types = get_args(annotation) or (annotation,)
    return "switch" if bool in types else "number" if int in types else "text"


def _declared_option(one: "dataclasses.Field[Any]") -> Option:
    derived = {
        "name": one.name.replace("_", "-"),
        "kind": _kind(one.type),
        "choices": get_args(one.type) if get_origin(one.type) is Literal else (),
    }
    return Option(**{**derived, "field": one.name, **one.metadata["option"]})


#: In the order of the help.
OPTIONS = tuple(map(_declared_option, filter(lambda one: one.metadata, dataclasses.fields(RelaySettings))))


def _tuples(value: Any) -> Any:
    """Convert JSON's lists, and nested ones, back to tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def drop_command(slot: str, postgres: str = "", origin: str = "") -> str:
    """Return the command for ``slot`` on the server of a connection string, without the passwords in it.

    ``origin`` is the place where the string was set; see `RelaySettings.origins`.

    >>> drop_command("shop", "host=db dbname=shop password=secret")
    'bwtui slots drop shop -d "host=db dbname=shop"'
    """
    if without_passwords(postgres) != postgres and (profile := _PROFILE.search(origin)):
        # The file also has the password.
        return f"bwtui slots drop {slot} --profile {shlex.quote(profile[1])}"
    server = server_option(postgres, origin)
    if not server:
        return f"bwtui slots drop {slot}"
    quoted = shlex.quote(server)
    if quoted != server and _SIMPLE.fullmatch(server):
        # Hints put commands between single quotes.
        quoted = f'"{server}"'
    return f"bwtui slots drop {slot} -d {quoted}"


def server_option(postgres: str, origin: str = "") -> str:
    """Return the value of -d for the server of a connection string, without passwords; "" for no -d."""
    server = without_passwords(postgres)
    is_stored = postgres == os.environ.get("BWTUI_POSTGRES") or "bwtui.toml" in origin
    if server != postgres and is_stored:
        # The variable or the file also has the password; -d would replace it.
        return ""
    return server

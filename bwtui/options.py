"""The options of a relay: one table for the command line, the environment and bwtui.toml.

Each option has one name, written as its long flag. ``BWTUI_`` followed by the name in capitals is its
environment variable, and the name itself is its key in bwtui.toml (with underscores or dashes). The commands'
options and their help are generated from it (`bwtui.cli.options.relay_options`); the default is that of its
field in `RelaySettings`. `parse` converts text to that field's value, or raises a plain sentence about the
problem; it never does any I/O.
"""

import contextlib
import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args
from urllib.parse import urlsplit

from bwtui.errors import UsageError
from bwtui.masking import mask_connection
from bwtui.model.lsn import parse_lsn
from bwtui.model.option_checks import (
    check_address,
    check_characters,
    check_connection,
    check_name,
    check_namespace,
    check_property,
    check_publication,
    check_regex,
    check_share,
    check_slot,
    check_spark_master,
    check_topic,
    check_workers,
    parse_number,
)
from bwtui.settings import (
    LogFormat,
    OnError,
    OnGap,
    OnNewTables,
    OnRecordError,
    OutputFormat,
    SnapshotBy,
    Toast,
)

Kind = Literal["text", "switch", "lsn", "number", "list", "pairs"]
Value = str | bool | int | None | tuple[str, ...]

# With an unknown protocol, librdkafka has no broker and does not wait for one.
_PROTOCOL = r"(?:(?i:plaintext|ssl|sasl_plaintext|sasl_ssl)://)?"
_BROKER = re.compile(_PROTOCOL + r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/@,\[\]]+)(?::(\d{1,5}))?")
_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a relay."""

    name: str
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
    default: str = ""
    #: The field of RelaySettings that it sets, if that has a different name.
    fills: str = ""
    #: The table of bwtui.toml, for pairs.
    table: str = ""
    #: True if empty text is valid and means none.
    optional: bool = False
    #: True if it names a file or folder, whose name may be any bytes.
    is_path: bool = False
    #: True if it is for the screens, not for the relay that they show.
    of_screens: bool = False

    @property
    def field(self) -> str:
        """Name of the field of RelaySettings that it sets."""
        return self.fills or self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return "BWTUI_" + self.name.upper().replace("-", "_")


def nearest(text: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate that ``text`` was probably meant to be, or None."""
    matches = difflib.get_close_matches(text, list(candidates), n=1, cutoff=0.6)
    return matches[0] if matches else None


def split_advice(error: ValueError) -> tuple[str, str]:
    """Return the problem, and the advice in parentheses at its end."""
    problem, _, advice = str(error).rpartition(" (")
    return (problem, advice.removesuffix(")")) if problem and advice.endswith(")") else (str(error), "")


@contextlib.contextmanager
def refused_at(place: str) -> Iterator[None]:
    """Turn a ValueError of the block into a UsageError about ``place``; its advice becomes the hint."""
    try:
        yield
    except ValueError as error:
        problem, advice = split_advice(error)
        raise UsageError(f"{place}: {problem}", advice) from error


def parse_switch(text: str) -> bool:
    """Return the boolean that ``text`` means; raises ValueError if it means none."""
    answer = text.strip().lower()
    if answer in _TRUE:
        return True
    if answer in _FALSE:
        return False
    raise ValueError(f"{text!r} is neither true nor false (use true or false, yes or no, on or off, 1 or 0)")


def parse_pair(text: str) -> tuple[str, str]:
    """Return the key and value of ``K=V``; the ValueError does not contain the value, which may be a
    secret.
    """
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals:
        raise ValueError("a property must have the form KEY=VALUE, but '=' is missing (such as linger.ms=20)")
    check_property(key)
    check_characters(value)
    return key, value.strip()


def parse(option: Option, text: str) -> Value:
    """Convert ``text`` to a value of ``option``; raises ValueError with a plain sentence."""
    if not option.is_path:
        check_characters(text)
    if option.kind == "switch":
        return parse_switch(text)
    if option.kind == "lsn":
        return parse_lsn(text)
    if option.choices:
        _check_choice(option.choices, text)
    if option.check is not None and (text or not option.optional):
        option.check(text)
    return parse_number(text) if option.kind == "number" else text


def _check_choice(choices: tuple[str, ...], text: str) -> None:
    if text not in choices:
        close = nearest(text.lower(), choices)
        advice = f"did you mean {close}?" if close else f"use {' or '.join(choices)}"
        raise ValueError(f"{text!r} is not one of {', '.join(choices)} ({advice})")


def _check_brokers(text: str) -> None:
    """Raise ValueError unless ``text`` is a valid list of brokers."""
    for part in text.split(","):
        match = _BROKER.fullmatch(part.strip())
        if match is None or (match[1] is not None and not 0 < int(match[1]) < 65536):
            raise ValueError(
                f"{mask_connection(part.strip())!r} is not a broker (expected host or host:port)"
            )


def _check_registry(text: str) -> None:
    """Raise ValueError unless ``text`` is a valid list of registry URLs."""
    for part in text.split(","):
        shown = mask_connection(part.strip())
        try:
            url = urlsplit(part.strip())
            valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise ValueError(f"{shown!r} is not a registry's URL (expected http://host:port or https://…)")


#: In the order of the help.
OPTIONS: tuple[Option, ...] = (
    Option(
        "postgres",
        "Connection string or URI, passed to libpq unchanged; PG* variables, ~/.pgpass and services work.",
        "d",
        "DSN",
        check=check_connection,
        optional=True,
    ),
    Option("slot", "Replication slot.", "s", "NAME", check=check_slot),
    Option("broker", "Kafka brokers.", "b", "HOST:PORT,…", check=_check_brokers),
    Option("schema-registry", "Schema registry.", "r", "URL", check=_check_registry),
    Option("output-format", "avro or json.", "f", "FORMAT", choices=get_args(OutputFormat)),
    Option(
        "allow-unkeyed",
        "Also relay tables without a key; their messages have a null key.",
        "u",
        kind="switch",
    ),
    Option(
        "topic-prefix",
        "Prefix every topic name with P and a dot.",
        "p",
        "P",
        check=check_topic,
        optional=True,
    ),
    Option(
        "on-error",
        "If a row can't be relayed: 'exit' stops before its transaction, which the next start rereads; 'log' "
        "writes the row to the dead letters and continues.",
        "e",
        "POLICY",
        choices=get_args(OnError),
    ),
    Option("skip-snapshot", "Create the slot without copying the tables' existing rows.", "x", kind="switch"),
    Option(
        "snapshot-by",
        "First snapshot: 'export' copies all tables before streaming, and after a crash from scratch; "
        "'chunks' streams immediately, sends the tables' rows between changes, and resumes after a crash.",
        metavar="HOW",
        choices=get_args(SnapshotBy),
    ),
    Option(
        "snapshot-workers",
        "Number of processes that take the first snapshot, each with its own session (1 to 32).",
        metavar="N",
        kind="number",
        check=check_workers,
        default="one per core, at most 3; 1 if the tables have less than 128 MiB",
    ),
    Option(
        "spark-master",
        "Take the first snapshot on this Spark cluster, with --snapshot-workers tasks (docs/operate.md).",
        metavar="URL",
        check=check_spark_master,
        optional=True,
    ),
    Option(
        "accept-divergence",
        "Continue although the server's history lacks relayed changes (an older copy, a standby promoted too "
        "soon): topics keep them.",
        kind="switch",
    ),
    Option(
        "accept-settings",
        "Start although the slot was relayed with a different output format, prefix, namespace, registry or "
        "partitioner: existing records stay as they are, and every table is compared.",
        kind="switch",
    ),
    Option(
        "heal",
        "Recreate a lost slot and compare topics with tables: only keys that differ are sent, in place of "
        "a new snapshot.",
        kind="switch",
    ),
    Option(
        "exactly-once",
        "Send rows and the position in Kafka transactions: read_committed consumers see each change exactly "
        "once, whichever process crashes; one process takes the snapshot (docs/exactly-once.md).",
        kind="switch",
    ),
    Option("commit-rows", "With --exactly-once: commit after N messages.", metavar="N", kind="number"),
    Option(
        "commit-ms",
        "… or after N milliseconds; after a fifth of that if nothing more is waiting to be sent.",
        metavar="N",
        kind="number",
    ),
    Option(
        "failover",
        "Make the slot, even an existing one, a failover slot, which standbys synchronize (PostgreSQL 17 or "
        "later); --no-failover leaves the slot unchanged.",
        kind="switch",
        default="if bwtui creates the slot, or -d names several hosts",
    ),
    Option(
        "wait-for-services",
        "At the start, wait for PostgreSQL, Kafka and registry while they are unreachable, instead of ending "
        "with exit code 4; a failed authentication still ends the start.",
        kind="switch",
    ),
    Option("kafka-config", "A property of librdkafka; repeatable.", "C", "K=V", "pairs", table="kafka"),
    Option("topic-config", "A topic property; repeatable.", "T", "K=V", "pairs", table="topic"),
    Option("registry-config", kind="pairs", table="registry"),
    Option(
        "publication",
        "Publication to read.",
        metavar="NAME",
        check=check_publication,
        default="bwtui_SLOT",
        optional=True,
    ),
    Option(
        "table",
        "Relay only tables whose schema.table matches REGEX as a whole; repeatable.",
        metavar="REGEX",
        kind="list",
        check=check_regex,
        fills="tables",
    ),
    Option(
        "exclude-table",
        "Exclude these tables; repeatable.",
        metavar="REGEX",
        kind="list",
        check=check_regex,
        fills="exclude_tables",
    ),
    Option(
        "new-tables",
        "If a table that matches the selection is created later: 'add' adds it to bwtui's own "
        "publication and sends its earlier rows; 'announce' only reports the statement that adds it.",
        metavar="HOW",
        choices=get_args(OnNewTables),
    ),
    Option(
        "on-gap",
        "If a table is not proven, because of a change that the stream does not report: 'close' "
        "compares it with its topic and sends what differs; 'report' only shows the command.",
        metavar="HOW",
        choices=get_args(OnGap),
    ),
    Option("headers", "Add Kafka headers: commit LSN, ordinal, operation, xid.", kind="switch"),
    Option(
        "dead-letter-topic",
        "Also send rows that can't be relayed to TOPIC.",
        metavar="TOPIC",
        check=check_topic,
        optional=True,
    ),
    Option(
        "toast",
        "The stream omits large values that an UPDATE did not change: 'fetch' reads the row's "
        "present value, 'error' applies --on-error, 'placeholder' sends null and names the column in "
        "__escaped.",
        metavar="MODE",
        choices=get_args(Toast),
    ),
    Option(
        "namespace",
        "Name records after their tables, in this Avro namespace: com.acme.shop.Orders and OrdersKey. Only "
        "for new topics.",
        metavar="NAME",
        check=check_namespace,
        optional=True,
    ),
    Option(
        "connect-names",
        "Add Debezium's Kafka Connect type names to value schemas, in addition to the logical types.",
        kind="switch",
    ),
    Option(
        "truncate-topic",
        "Send a JSON message to TOPIC for every TRUNCATE.",
        metavar="TOPIC",
        check=check_topic,
        optional=True,
    ),
    Option(
        "transaction-topic",
        "Send BEGIN and END of each transaction to TOPIC, with row counts: Debezium's transaction metadata.",
        metavar="TOPIC",
        check=check_topic,
        optional=True,
    ),
    Option(
        "record",
        "Record everything that is read and sent in DIR; nothing is confirmed before it is recorded.",
        metavar="DIR",
        optional=True,
        is_path=True,
    ),
    Option(
        "on-record-error",
        "If the recording can't be written: 'stop' ends the relay, 'stop-recording' continues without it.",
        metavar="POLICY",
        choices=get_args(OnRecordError),
    ),
    Option("segment-bytes", "Start a new file of the recording after N bytes.", metavar="N", kind="number"),
    Option("segment-seconds", "… or after N seconds.", metavar="N", kind="number"),
    Option(
        "snapshot-share",
        "Maximum percentage of the relay's time for rows of 'bwtui snapshot' and 'bwtui repair' while "
        "the stream has rows (1 to 90).",
        metavar="PERCENT",
        kind="number",
        check=check_share,
    ),
    Option(
        "endpos",
        "End when everything up to LSN is confirmed and no table is left to compare; exit code 3 if a table "
        "is not proven.",
        metavar="LSN",
        kind="lsn",
        fills="end_lsn",
    ),
    Option(
        "until-caught-up",
        "End when everything committed before the start is confirmed, no rows are waiting and no table "
        "is left to compare; exit code 3 if a table is not proven.",
        kind="switch",
    ),
    Option(
        "listen",
        "Serve /metrics for Prometheus, /healthz and /readyz over HTTP; a port alone means 127.0.0.1.",
        metavar="[ADDRESS:]PORT",
        check=check_address,
        optional=True,
    ),
    Option("log-format", "Write the log as 'text', or as 'json' lines.", choices=get_args(LogFormat)),
    Option(
        "name",
        "The relay's name for attach, status and stop.",
        metavar="NAME",
        check=check_name,
        default="the slot's",
        optional=True,
    ),
    Option(
        "readonly",
        "Read-only screens: no key changes anything, and leaving them never stops a relay.",
        kind="switch",
        of_screens=True,
    ),
)
BY_NAME = {option.name: option for option in OPTIONS}
PAIR_OPTIONS = {option.table: option for option in OPTIONS if option.kind == "pairs"}

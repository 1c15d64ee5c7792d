"""The Kafka properties for -C and -T, taken from librdkafka itself, and ``bwtui connect --config-help``.

The list and the checks come from the same library that will run, through functions of its C interface that do
no I/O. It is loaded directly, without confluent_kafka's Python part. If it can't be found, the engine does
the checks.
"""

import ctypes
import functools
import importlib.util
import os
import re
import shutil
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bwtui.errors import UsageError
from bwtui.file_errors import file_failed
from bwtui.kafka.client import DEFAULTS, FIXED
from bwtui.masking import is_secret
from bwtui.options import OfProperty, nearest, usual_place
from bwtui.settings import Pairs, RelaySettings

_NAMED = re.compile(r'property "[^"]*"')
_UNKNOWN = -2
_OK = 0
#: Settings of a topic on the broker, which clients do not have.
_OF_TOPICS = frozenset(
    {
        "partitions",
        "partition.count",
        "num.partitions",
        "replication.factor",
        "cleanup.policy",
        "retention.ms",
        "retention.bytes",
        "delete.retention.ms",
        "min.insync.replicas",
        "max.message.bytes",
    }
)
_ROW = re.compile(
    r"(?P<name>\S+) +\| +(?P<side>[*CP]) +\|(?P<range>[^|]*)\|(?P<default>.*?)\|[^|]*\|(?P<text>.*)"
)


@dataclass(frozen=True, slots=True)
class LibrdkafkaProperty:
    """One property of librdkafka's producer."""

    name: str
    topic: bool
    range: str
    default: str
    description: str


def check(settings: RelaySettings, place: OfProperty = usual_place) -> None:
    """Raise UsageError for a property that librdkafka does not have, or a value that it rejects.

    The same applies to a file that can't be read, including the registry's: neither library says which one it
    was.
    """
    _check_files(settings.kafka_config, "kafka-config", place)
    _check_files(settings.registry_config, "registry-config", place)
    _check_token(settings.kafka_config, place)
    library = _library()
    if library is None:
        return
    _check_pairs(library, settings.kafka_config, "kafka-config", place)
    _check_pairs(library, settings.topic_config, "topic-config", place)


def _check_files(pairs: Pairs, option: str, place: OfProperty) -> None:
    for key, value in pairs:
        # With "probe", librdkafka looks for the system's certificates.
        if not key.endswith(".location") or value in ("", "probe"):
            continue
        try:
            if not Path(value).is_dir():
                Path(value).open("rb").close()
        except OSError as error:
            problem = f"{place(option, key)}: the file that {key} names can't be read: {value}"
            raise file_failed(problem, error, UsageError) from error


def _check_token(pairs: Pairs, place: OfProperty) -> None:
    """Raise UsageError for OAUTHBEARER without a source of tokens, for which librdkafka would wait
    forever.
    """
    values = dict(pairs)
    key = "sasl.mechanism" if "sasl.mechanism" in values else "sasl.mechanisms"
    is_used = values.get("security.protocol", "").upper().startswith("SASL")
    has_source = (
        values.get("sasl.oauthbearer.method", "").lower() == "oidc"
        or values.get("enable.sasl.oauthbearer.unsecure.jwt", "").lower() in ("true", "1")
        or "sasl.oauthbearer.metadata.authentication.type" in values
    )
    if is_used and values.get(key, "").upper() == "OAUTHBEARER" and not has_source:
        raise UsageError(
            f"{place('kafka-config', key)}: {key}=OAUTHBEARER needs a source for its token",
            "add sasl.oauthbearer.method=oidc, sasl.oauthbearer.token.endpoint.url, "
            "sasl.oauthbearer.client.id and sasl.oauthbearer.client.secret",
        )


def _check_pairs(library: ctypes.CDLL, pairs: Pairs, option: str, place: OfProperty) -> None:
    topic = option == "topic-config"
    kind = "topic_conf" if topic else "conf"
    new = getattr(library, f"rd_kafka_{kind}_new")
    new.restype = ctypes.c_void_p
    conf = ctypes.c_void_p(new())
    set_property = getattr(library, f"rd_kafka_{kind}_set")
    try:
        for key, value in pairs:
            text = ctypes.create_string_buffer(512)
            result = set_property(conf, key.encode(), value.encode(), text, ctypes.c_size_t(len(text)))
            if result == _UNKNOWN:
                raise _unknown(key, topic, place(option, key))
            if result != _OK:
                raise _refused(key, text.value.decode("utf-8", "replace"), place(option, key))
    finally:
        getattr(library, f"rd_kafka_{kind}_destroy")(conf)


def _unknown(key: str, topic: bool, where: str) -> UsageError:
    names = [p.name for p in properties() if p.topic or not topic]
    if topic and any(p.name == key for p in properties()):
        return UsageError(f"{where}: {key} is not a topic property", f"give it with -C {key}=…")
    if key.replace("-", ".") in _OF_TOPICS:
        return UsageError(
            f"{where}: {key} is a topic setting of the broker, not a producer property",
            "create the topic before the relay starts: kafka-topics.sh --create --partitions N "
            "--config K=V; bwtui uses existing topics as they are, and creates new ones with the "
            "broker's num.partitions",
        )
    close = nearest(key, names)
    hint = f"did you mean {close}?" if close else "'bwtui connect --config-help' lists the properties"
    return UsageError(f"{where}: librdkafka has no property {key}", hint)


def _refused(key: str, reason: str, where: str) -> UsageError:
    # librdkafka names the property behind an alias, which the user has not set: linger.ms is such an alias.
    reason = _NAMED.sub(lambda _: f'property "{key}"', reason)
    if is_secret(key):
        reason = f"librdkafka rejects the value of {key}"
    return UsageError(f"{where}: {reason}", "'bwtui connect --config-help' lists the valid values")


@functools.cache
def properties() -> tuple[LibrdkafkaProperty, ...]:
    """Return the producer's properties in librdkafka's order; empty if the library can't be found."""
    library = _library()
    if library is None:
        return ()
    return tuple(_parse(_shown(library)))


def _shown(library: ctypes.CDLL) -> str:
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    with tempfile.TemporaryFile() as file:
        stream = ctypes.c_void_p(libc.fdopen(os.dup(file.fileno()), b"w"))
        library.rd_kafka_conf_properties_show(stream)
        libc.fclose(stream)
        file.seek(0)
        return file.read().decode("utf-8", "replace")


def _parse(text: str) -> Iterator[LibrdkafkaProperty]:
    topic = False
    for line in text.splitlines():
        if line.startswith("## "):
            topic = "Topic" in line
        match = _ROW.fullmatch(line)
        # Callbacks and pointers can't be given as text; consumer properties are unused here.
        if match is None or match["side"] == "C" or "see dedicated API" in match["text"]:
            continue
        plain = re.sub(r"<br>.*|[`*]", "", match["text"]).strip()
        yield LibrdkafkaProperty(
            match["name"], topic, match["range"].strip(), match["default"].strip(), plain
        )


@functools.cache
def _library() -> ctypes.CDLL | None:
    spec = importlib.util.find_spec("confluent_kafka")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    # The folders where wheels keep their libraries, on Linux and on macOS.
    folders = (package.parent / "confluent_kafka.libs", package / ".dylibs")
    for path in (p for folder in folders for p in sorted(folder.glob("librdkafka*"))):
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    return None


_HEAD = """\
-C KEY=VALUE sets a producer property of librdkafka, and -T KEY=VALUE a topic property. Both are repeatable,
and have a table in bwtui.toml: [kafka] and [topic]. Put passwords there, because every user of the machine
can read command lines. BWTUI_KAFKA_CONFIG and BWTUI_TOPIC_CONFIG take one KEY=VALUE per line.
"""
_MISSING = (
    "the list of librdkafka's properties is not available here; see CONFIGURATION.md in librdkafka's "
    "documentation"
)


def config_help() -> str:
    """Return the properties that -C and -T accept, and those that bwtui sets itself."""
    width = min(shutil.get_terminal_size().columns, 110)
    lines = [
        textwrap.fill(_HEAD.replace("\n", " "), width),
        "",
        "Fixed by bwtui (other values are rejected):",
    ]
    lines += [f"  {_fixed_property(key, allowed)}: {reason}" for key, (allowed, reason) in FIXED.items()]
    lines += ["", "Defaults of bwtui, which -C and -T can change:"]
    lines += [f"  {key}={_text(value)}" for key, value in DEFAULTS.items()]
    listed = properties()
    if not listed:
        return "\n".join([*lines, "", _MISSING])
    for topic, title in ((False, "Global properties (-C):"), (True, "Topic properties (-T):")):
        lines += ["", title]
        for entry in listed:
            if entry.topic == topic:
                lines += _entry(entry, width)
    return "\n".join(lines)


def _fixed_property(key: str, allowed: tuple[str, ...]) -> str:
    return f"{key}={' or '.join(allowed)}" if allowed else key


def _entry(entry: LibrdkafkaProperty, width: int) -> Iterator[str]:
    yield f"  {entry.name}"
    facts = []
    if entry.range:
        facts.append(entry.range)
    if entry.name in FIXED:
        facts.append("fixed by bwtui")
    elif entry.name in DEFAULTS:
        facts.append(f"default {_text(DEFAULTS[entry.name])} (librdkafka's is {entry.default or 'empty'})")
    elif entry.default:
        facts.append(f"default {entry.default}")
    text = entry.description + (f" [{'; '.join(facts)}]" if facts else "")
    yield from textwrap.wrap(text, width, initial_indent="      ", subsequent_indent="      ")


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

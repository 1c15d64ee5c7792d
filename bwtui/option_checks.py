"""Validate the texts of single options; each check raises ValueError with a plain sentence."""

import re
from urllib.parse import urlsplit

from bwtui.masking import mask_connection

_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_RELAY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,200}")
_NAMESPACE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*")
_PROPERTY = re.compile(r"[A-Za-z0-9._-]+")
_IDENTIFIER_BYTES = 63
# With an unknown protocol, librdkafka has no broker and does not wait for one.
_PROTOCOL = r"(?:(?i:plaintext|ssl|sasl_plaintext|sasl_ssl)://)?"
_BROKER = re.compile(_PROTOCOL + r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:/@,\[\]]+)(?::(\d{1,5}))?")
SPARK_MASTER = re.compile(
    r"local(\[(\*|[1-9]\d*)(,[1-9]\d*)?\])?|spark://[^,/\s]+:\d+(,[^,/\s]+:\d+)*|(yarn|k8s://\S+)"
)
SPARK_MASTER_HINT = "use local[*], local[4] or spark://host:7077"


def check_name(text: str) -> None:
    """Raise ValueError unless ``text`` can name a relay: it becomes the name of a folder."""
    if not _RELAY.fullmatch(text):
        raise ValueError(
            f"{text!r} can't name a relay (use up to 63 letters, digits, '.', '_', '-'; not '.' or '-' first)"
        )


def check_slot(text: str) -> None:
    """Raise ValueError unless PostgreSQL accepts ``text`` as the name of a replication slot."""
    if not _SLOT.fullmatch(text):
        raise ValueError(
            f"{text!r} can't name a replication slot (use at most 63 lower-case letters, digits and '_')"
        )


def check_publication(text: str) -> None:
    """Raise ValueError unless ``text`` can name a publication."""
    if len(text.encode()) > _IDENTIFIER_BYTES or "\0" in text:
        raise ValueError(f"{text!r} can't name a publication (use at most 63 bytes)")


def check_brokers(text: str) -> None:
    """Raise ValueError unless ``text`` is a valid list of brokers."""
    for part in text.split(","):
        match = _BROKER.fullmatch(part.strip())
        if match is None or (match[1] is not None and not 0 < int(match[1]) < 65536):
            raise ValueError(
                f"{mask_connection(part.strip())!r} is not a broker (expected host or host:port)"
            )


def check_registries(text: str) -> None:
    """Raise ValueError unless ``text`` is a valid list of registry URLs."""
    for part in text.split(","):
        shown = mask_connection(part.strip())
        try:
            url = urlsplit(part.strip())
            # An HTTP client would encode blanks, and a resolver report a name with one as unknown.
            plain = url.scheme in ("http", "https") and not re.search(r"\s", part.strip())
            valid = plain and bool(url.hostname) and url.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise ValueError(f"{shown!r} is not a registry's URL (expected http://host:port or https://…)")


def check_topic(text: str) -> None:
    """Raise ValueError unless ``text`` can be part of a topic's name."""
    if not _TOPIC.fullmatch(text) or text in (".", ".."):
        raise ValueError(
            f"{text!r} can't be part of a topic's name (letters, digits, '.', '_' and '-', at most 200)"
        )


def check_namespace(text: str) -> None:
    """Raise ValueError unless ``text`` can be an Avro namespace."""
    if not _NAMESPACE.fullmatch(text) or len(text) > 200:
        raise ValueError(
            f"{text!r} is not an Avro namespace (names of letters, digits and '_' separated by dots, such as"
            " com.acme.shop; at most 200)"
        )


def check_connection(text: str) -> None:
    """Raise ValueError unless ``text`` can be a connection string."""
    if "\0" in text or "\n" in text:
        raise ValueError("the connection string spans several lines (write it on one line)")


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of an address to listen on; the default host is the loopback address.

    Raises ValueError with a plain sentence.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536
    if not is_port or not re.fullmatch(r"[A-Za-z0-9._:%-]*", host) or (":" in text and not colon):
        raise ValueError(
            f"{text!r} is not a listen address (a port, which means this machine only, or ADDRESS:PORT: 9847,"
            " 0.0.0.0:9847, [::1]:9847)"
        )
    return host or "127.0.0.1", int(port)


def check_address(text: str) -> None:
    """Raise ValueError unless ``text`` can be an address to listen on."""
    parse_address(text)


def check_property(key: str) -> None:
    """Raise ValueError unless ``key`` can be the name of a property."""
    if not _PROPERTY.fullmatch(key):
        raise ValueError(f"{key!r} is not the name of a property (letters, digits, '.', '_' and '-')")


def _is_within(text: str, most: int) -> bool:
    # Longer numbers, which `parse_number` rejects, are never converted.
    return text.isdecimal() and len(text) <= 15 and 1 <= int(text) <= most


def check_share(text: str) -> None:
    """Raise ValueError unless ``text`` can be a share in percent."""
    if not _is_within(text, 90):
        raise ValueError(f"{text!r} is not a valid percentage (a whole number from 1 to 90)")


def check_workers(text: str) -> None:
    """Raise ValueError unless ``text`` can be a number of processes."""
    if not _is_within(text, 32):
        raise ValueError(f"{text!r} is not a valid number of processes (a whole number from 1 to 32)")


def check_spark_master(text: str) -> None:
    """Raise ValueError unless ``text`` names a Spark master."""
    if text and not SPARK_MASTER.fullmatch(text):
        raise ValueError(f"{text!r} is not a Spark master ({SPARK_MASTER_HINT})")


def check_regex(text: str) -> None:
    """Raise ValueError unless ``text`` can be a regular expression."""
    # An unset shell variable yields an empty text, which must not match every table.
    if not text:
        raise ValueError(
            "'' matches no table (it must match schema.table as a whole; '.*' matches every table)"
        )
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(
            f"{text!r} is not a regular expression: {error} (it must match schema.table as a whole)"
        ) from error


def check_characters(text: str) -> None:
    """Raise ValueError if the bytes were not UTF-8, without the text, which may contain a password."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"character {error.start + 1} of the value is not valid UTF-8 (PostgreSQL, Kafka and the registry"
            " accept only UTF-8)"
        ) from error


def parse_number(text: str, example: str = "300") -> int:
    """Return a positive integer; k, M and G mean powers of 1,024. A hint shows ``example``."""
    match = re.fullmatch(r"(\d{1,15})([kKMG]?)", text.strip())
    if match is None or not int(match[1]):
        raise ValueError(f"{text!r} is not a positive whole number (such as {example})")
    number = int(match[1]) << {"": 0, "k": 10, "K": 10, "M": 20, "G": 30}[match[2]]
    if number >= 1 << 53:
        raise ValueError(f"{text!r} is too large (use a number below 2^53)")
    return number

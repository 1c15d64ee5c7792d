"""The schema registry's client: registers schemas, and distinguishes a refusal from an outage.

It uses Confluent's REST interface through Confluent's own client. Every registration names its subject, so
the client's subject name strategy is never used.
"""

import ast
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from confluent_kafka.schema_registry import RegisteredSchema as RegisteredVersion
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from bwtui.blocking import interruptible, within
from bwtui.command_log import COMMANDS, REGISTRY
from bwtui.encode.schema_differences import as_record, incompatibilities, misread
from bwtui.errors import AuthenticationFailed, BwtuiError, ConnectionFailed, UsageError
from bwtui.options import OfProperty, nearest, usual_place
from bwtui.settings import Pairs, RelaySettings

# The properties in [registry]: those of Confluent's client, with numbers converted.

_OPTION = "registry-config"
_WHOLE = ("cache.capacity", "max.retries", "retries.wait.ms", "retries.max.wait.ms")
_NUMBERS = (*_WHOLE, "timeout", "cache.latest.ttl.sec")
_TEXTS = (
    *("ssl.ca.location", "ssl.key.location", "ssl.key.password", "ssl.certificate.location"),
    *("basic.auth.user.info", "proxy", "bearer.auth.credentials.source", "bearer.auth.token"),
    *("bearer.auth.logical.cluster", "bearer.auth.identity.pool.id", "bearer.auth.client.id"),
    *("bearer.auth.client.secret", "bearer.auth.scope", "bearer.auth.issuer.endpoint.url"),
)
#: Usual names for parts of basic.auth.user.info.
_OF_A_USER = ("user", "username", "password", "sasl.username", "sasl.password")
_AS_BROKER = "-r/--schema-registry sets it"


def registry_config(url: str, pairs: Pairs, place: OfProperty = usual_place) -> dict[str, Any]:
    """Return the configuration of a client for ``url``. Raises UsageError with the property's place."""
    config: dict[str, Any] = {"url": url, "timeout": 10, "max.retries": 0}
    for key, text in pairs:
        where = place(_OPTION, key)
        if key == "url":
            raise UsageError(f"{where}: url is not allowed: {_AS_BROKER}", "omit this property")
        if key not in _NUMBERS and key not in _TEXTS:
            raise UsageError(f"{where}: the registry's client has no property {key}", _hint(key))
        config[key] = _number(where, key, text) if key in _NUMBERS else text
    return config


@functools.cache
def _client(config: tuple[tuple[str, Any], ...]) -> SchemaRegistryClient:
    """Return the client for a configuration: creating one loads all certificates, 45 ms of CPU."""
    return SchemaRegistryClient(dict(config))


def ask_registry(settings: RelaySettings) -> Callable[[int], str | None]:
    """Return a function that fetches a schema by ID from the registry; None if there is no such schema."""
    configured = registry_config(settings.schema_registry, settings.registry_config)

    def ask(number: int) -> str | None:
        try:
            client = _client(tuple(configured.items()))
            # The registry may have been replaced since the last query.
            client.clear_caches()
            with COMMANDS.issued(REGISTRY, f"fetch schema {number}"):
                return client.get_schema(number).schema_str
        except SchemaRegistryError as error:
            # A missing path, or a proxy's response, is a plain 404.
            if error.error_code in MISSING:
                return None
            problem = f"the schema registry refused schema {number}: {plain_reason(error)}"
            hint = (
                "check the permissions of the user, and that -r/--schema-registry is the registry that "
                "the relay used"
            )
            raise ConnectionFailed(problem, hint) from error
        except Exception as error:
            raise ConnectionFailed("can't reach the schema registry", "check -r/--schema-registry") from error

    return ask


def _hint(key: str) -> str:
    """Return the hint for a property that does not exist."""
    if key in _OF_A_USER:
        return 'use basic.auth.user.info, as "USER:PASSWORD"'
    close = nearest(key, (*_NUMBERS, *_TEXTS))
    return f"did you mean {close}?" if close else f"valid properties: {', '.join((*_TEXTS, *_NUMBERS))}"


def _number(where: str, key: str, text: str) -> float:
    try:
        number = int(text) if key in _WHOLE else float(text)
    except ValueError:
        number = -1
    # NaN and infinity fail this comparison too.
    if not 0 <= number < 1e9:
        raise UsageError(f"{where}: {key}={text} is not a valid number", f"use one from 0, such as {key} = 5")
    return number


T = TypeVar("T")

#: Confluent's error codes about a schema itself ("Schema Registry API Reference"): incompatible, invalid, and
#: a name of the subject, size or rules of the schema that the registry does not accept. All other errors,
#: even with these statuses, are about rights, modes, or a proxy's own response.
_OF_THE_SCHEMA = frozenset({409, 422, 42201, 42208, 42209, 42210})
#: Missing subject, version, schema, or setting of a subject. A path that does not exist at all is a plain
#: 404.
MISSING = range(40401, 40500)
#: A request that timed out, and too many requests.
_LATER = (408, 429)
#: Exceptions of Confluent's client for an answer that is not JSON, or not in a registry's form.
_NOT_ITS_FORM = (json.JSONDecodeError, AttributeError, TypeError, KeyError)
#: The number of a version or an id in a path: the command log treats all of them as one request.
_VERSION = re.compile(r"(?:(?<=/versions/)|(?<=/schemas/ids/))\d+$")
#: The beginning of the client's message for an answer that is not JSON; Python's form of its bytes follows.
_NOT_JSON = "Unknown Schema Registry Error: "
_PAGE = re.compile(r"<(?:!doctype|html|head|body|title)\b", re.IGNORECASE)
#: The text in Python's ssl errors for an untrusted certificate.
_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"
#: Timeout of a whole answer, which may arrive byte by byte, as a multiple of the timeout of one read.
_WHOLE_ANSWER = 3
#: Confluent's client caches every schema; after this many requests its caches are cleared.
_SCHEMAS_KEPT = 1_000
_ANOTHERS = "a different producer uses that topic: choose separate topics with --topic-prefix"
_RENAMED = (
    "--namespace is for topics that are new: give it as it was when these were made, or leave it out, or "
    "write into others with --topic-prefix"
)


_NO_SUCH_PATH = (
    "check the path in -r/--schema-registry: Confluent's registry has none, Apicurio's is /apis/ccompat/v7; "
    "and check the proxy, if there is one"
)


class _RegistryRedirect(Exception):
    """The answer redirects; the text of the exception is the address to use instead."""

    def __init__(self, status: int, address: str) -> None:
        super().__init__(address)
        self.status = status


class SchemaRefused(BwtuiError):
    """The registry answered and rejected this schema; a retry does not help."""

    def __init__(self, message: str, hint: str, status: int) -> None:
        super().__init__(message, hint)
        #: The HTTP status of the answer.
        self.status = status


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A subject's registered schema; its ``id`` is part of every message."""

    subject: str
    id: int
    version: int | None
    schema: str


@dataclass(frozen=True, slots=True)
class SchemaCheck:
    """A registry's judgement of a schema; ``reasons`` name the fields that violate the subject's rule."""

    subject: str
    state: Literal["new", "unchanged", "compatible", "incompatible"]
    rule: str
    reasons: tuple[str, ...] = ()


class StoredVersion(NamedTuple):
    """A version of a subject; few registries report ``registered`` (Unix seconds)."""

    id: int
    schema: str
    registered: float | None


class _RegistryClient(SchemaRegistryClient):
    """Confluent's client, with requests that it does not support, or only through its cache."""

    def effective_compatibility(self, subject: str) -> str:
        """Return the effective compatibility level of a subject: its own, or the global one.

        Without defaultToGlobal a registry may return NONE for a subject without its own level (Apicurio).
        """
        path = f"config/{quote(subject, safe='')}"
        return str(self._rest_client.get(path, {"defaultToGlobal": "true"})["compatibilityLevel"])

    def text(self, number: int) -> str:
        """Return the schema that currently has an id, ignoring the cache."""
        return str(self._rest_client.get(f"schemas/ids/{number}")["schema"])

    def numbers(self, subject: str, *, deleted: bool) -> list[int]:
        """Return the numbers of a subject's versions; with ``deleted`` also of softly deleted ones."""
        path = f"subjects/{quote(subject, safe='')}/versions"
        versions = self._rest_client.get(path, {"deleted": "true"} if deleted else {})
        if not all(isinstance(number, int) for number in versions):
            raise TypeError("no numbers")
        return list(versions)

    def stored(self, subject: str, version: int) -> StoredVersion:
        """Return one version, even if it is softly deleted."""
        path = f"subjects/{quote(subject, safe='')}/versions/{version}"
        data = self._rest_client.get(path, {"deleted": "true"})
        moment = data.get("ts")
        registered = moment / 1000 if isinstance(moment, int | float) and moment > 0 else None
        number, text = data["id"], data["schema"]
        if not isinstance(number, int) or not isinstance(text, str):
            raise TypeError("no schema")
        return StoredVersion(number, text, registered)


class SchemaRegistry:
    """Registers Avro schemas, and looks them up."""

    def __init__(self, url: str, config: Pairs = ()) -> None:
        """``config`` has further keys of Confluent's client. Raises BwtuiError when they are invalid."""
        #: The URL, without user and password.
        self.url_without_user = url_without_user(url)
        self._requests = 0
        try:
            properties = registry_config(url, config)
            self._client = _RegistryClient(properties)
            _watch_requests(self._client, _WHOLE_ANSWER * float(properties["timeout"]))
        except (ValueError, TypeError, OSError) as error:
            problem = f"the schema registry's settings are not valid: {error}"
            raise UsageError(problem, "check -r/--schema-registry and [registry] of bwtui.toml") from error

    def close(self) -> None:
        """Disconnect; no further requests are possible."""
        self._client.close()

    def refuse_renamed(self, subject: str, schema: str) -> None:
        """Raise SchemaRefused if the subject has records with a different name: keys would have other bytes.

        A registry may accept them if its rule is NONE. Raises ConnectionFailed.
        """
        latest = self._latest(subject)
        was, now = (_record_name(text) for text in (latest or schema, schema))
        if not was:
            raise SchemaRefused(f"subject {subject} has a schema that is not a record", _ANOTHERS, 409)
        if was != now:
            raise SchemaRefused(f"subject {subject} has records named {was}, not {now}", _RENAMED, 409)

    def check(self) -> None:
        """Check that the registry answers. Raises ConnectionFailed."""
        self.subjects()

    def subjects(self) -> list[str]:
        """Return the names of all subjects. Raises ConnectionFailed."""
        try:
            subjects: object = interruptible(self._client.get_subjects)
        except Exception as error:
            raise self._unavailable(error) from error
        if not isinstance(subjects, list):
            raise self._no_registry("its response is not a list of subjects")
        return subjects

    def register(self, subject: str, schema: str) -> RegisteredSchema:
        """Register ``schema`` (JSON text) under ``subject``, or find it there.

        Raises SchemaRefused when the registry rejects this schema (409 incompatible, 422 invalid), and when
        older rows would be misread with it, which a registry does not detect. All other errors justify a
        retry and raise ConnectionFailed: the registry is unreachable, fails, denies access, or the server is
        not a registry.
        """
        self._bound_caches()
        registered = self._look_up(subject, Schema(schema, "AVRO"))
        if registered is not None and registered.schema_id is not None and registered.version is not None:
            return RegisteredSchema(subject, registered.schema_id, registered.version, schema)
        self._refuse_misread(subject, schema)
        return self.register_new(subject, schema)

    def register_new(self, subject: str, schema: str) -> RegisteredSchema:
        """Register the first schema of a subject, with fewer requests. Raises as `register` does."""
        requested = Schema(schema, "AVRO")
        self._bound_caches()
        try:
            with self._explained(subject):
                answer = self._client.register_schema_full_response(subject, requested)
                version = answer.version
                if version is None:
                    version = self._client.lookup_schema(subject, requested).version
        except SchemaRefused as error:
            if error.status != 409:
                raise
            raise self._incompatible(subject, schema, error) from error
        if answer.schema_id is None:
            # Rows with an invented id could never be read.
            raise self._unavailable(ValueError(f"its response for {subject} has no id"))
        return RegisteredSchema(subject, answer.schema_id, version, schema)

    def _bound_caches(self) -> None:
        self._requests += 1
        if self._requests % _SCHEMAS_KEPT == 0:
            self._client.clear_caches()  # type: ignore[no-untyped-call]

    def _refuse_misread(self, subject: str, schema: str) -> None:
        latest = self._latest(subject)
        if latest is None or not (reasons := misread(latest, schema)):
            return
        rule = self.level(subject)
        if rule != "NONE":
            raise SchemaRefused(
                f"subject {subject} with rule {rule} can't accept the new schema: {'; '.join(reasons)}: "
                "consumers would misread the values of older rows, which the registry does not check",
                self._relax(subject),
                409,
            )

    def register_id(self, subject: str, schema: str) -> int:
        """Register ``schema`` as `register` does, and return only its id."""
        return self.register(subject, schema).id

    def schema_id(self, subject: str, schema: str) -> int | None:
        """Return the id of ``schema`` if it is registered under ``subject``; does not register it.

        Raises ConnectionFailed or SchemaRefused.
        """
        registered = self._look_up(subject, Schema(schema, "AVRO"))
        return None if registered is None else registered.schema_id

    def schema_text(self, number: int) -> str | None:
        """Return the schema with the id ``number``, or None. Raises ConnectionFailed or SchemaRefused."""
        schema = self._existing(f"schema {number}", lambda: self._client.get_schema(number))
        return None if schema is None else schema.schema_str

    def text_now(self, number: int) -> str | None:
        """Return what `schema_text` does, without the cache. Raises ConnectionFailed or SchemaRefused."""
        return self._existing(f"schema {number}", lambda: self._client.text(number))

    def verdict(self, subject: str, schema: str) -> SchemaCheck:
        """Predict the result of `register`, without registering. Raises ConnectionFailed or SchemaRefused."""
        requested = Schema(schema, "AVRO")
        latest = self._latest(subject)
        rule = self.level(subject)
        if latest is None:
            return SchemaCheck(subject, "new", rule)
        if self._look_up(subject, requested) is not None:
            return SchemaCheck(subject, "unchanged", rule)
        wrong = tuple(misread(latest, schema)) if rule != "NONE" else ()
        if wrong:
            return SchemaCheck(subject, "incompatible", rule, wrong)
        with self._explained(subject):
            if self._client.test_compatibility(subject, requested, verbose=True):
                return SchemaCheck(subject, "compatible", rule)
        reasons = tuple(incompatibilities(latest, schema, rule))
        return SchemaCheck(subject, "incompatible", rule, reasons)

    def versions(self, subject: str) -> dict[int, bool]:
        """Return the numbers of a subject's versions, in ascending order, and whether each is softly deleted.

        Raises ConnectionFailed or SchemaRefused.
        """
        every = self._existing(subject, lambda: self._client.numbers(subject, deleted=True)) or []
        present = set(self._existing(subject, lambda: self._client.numbers(subject, deleted=False)) or ())
        return {number: number not in present for number in sorted(present.union(every))}

    def version(self, subject: str, number: int) -> StoredVersion | None:
        """Return a version of a subject, or None if missing. Raises ConnectionFailed or SchemaRefused."""
        return self._existing(subject, lambda: self._client.stored(subject, number))

    def level(self, subject: str) -> str:
        """Return the effective compatibility level of the subject, its own or the global one.

        Raises ConnectionFailed or SchemaRefused.
        """
        level = self._existing(subject, lambda: self._client.effective_compatibility(subject))
        if level is not None:
            return level
        with self._explained(subject):
            return str(self._client.get_compatibility())

    def _look_up(self, subject: str, schema: Schema) -> RegisteredVersion | None:
        """Return the subject's version with this ``schema``, or None."""
        return self._existing(subject, lambda: self._client.lookup_schema(subject, schema))

    def _latest(self, subject: str) -> str | None:
        """Return the subject's newest schema, or None if there is no such subject."""
        newest = self._existing(subject, lambda: self._client.get_latest_version(subject))
        return None if newest is None else newest.schema.schema_str

    def _existing(self, subject: str, request: Callable[[], T]) -> T | None:
        """Return the registry's answer to ``request``, or None if the name or id does not exist."""
        with self._explained(subject):
            try:
                return request()
            except SchemaRegistryError as error:
                if error.error_code not in MISSING:
                    raise
                return None

    def _incompatible(self, subject: str, schema: str, error: SchemaRefused) -> SchemaRefused:
        """Return a refusal that names field and rule, which the registry's own message may lack."""
        try:
            latest, rule = self._latest(subject), self.level(subject)
        except BwtuiError:
            return error
        reasons = "; ".join(incompatibilities(latest, schema, rule) if latest else ()) or error.message
        if latest and not _record_name(latest):
            return SchemaRefused(
                f"the schema registry rejects {subject} (HTTP 409): {reasons}", _ANOTHERS, 409
            )
        if latest and _record_name(latest) != _record_name(schema):
            return SchemaRefused(
                f"the schema registry rejects {subject} (HTTP 409): {reasons}", _RENAMED, 409
            )
        return SchemaRefused(
            f"the schema registry rejects {subject} (HTTP 409) under rule {rule}: {reasons}",
            self._relax(subject),
            409,
        )

    def _relax(self, subject: str) -> str:
        """Return a hint with the command that removes the subject's rule."""
        return (
            "altering the table back does not undo changes in the WAL: relax the rule until they are sent: "
            """curl -X PUT -H 'Content-Type: application/json' -d '{"compatibility": "NONE"}' """
            f"{self.url_without_user}/config/{subject}"
        )

    @contextmanager
    def _explained(self, subject: str) -> Iterator[None]:
        """Distinguish an outage from a refusal."""
        try:
            yield
        except SchemaRegistryError as error:
            if error.error_code not in _OF_THE_SCHEMA:
                raise self._unavailable(error) from error
            raise _refused(subject, error) from error
        except Exception as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> ConnectionFailed:
        if isinstance(error, _RegistryRedirect):
            return ConnectionFailed(
                f"the schema registry at {self.url_without_user} redirects to {error} (HTTP {error.status}), "
                "but bwtui does not follow redirects",
                f"set the registry's own address, such as -r {error}",
            )
        status = error.http_status_code if isinstance(error, SchemaRegistryError) else 0
        is_page = status > 0 and bool(_PAGE.search(str(error)))
        if isinstance(error, _NOT_ITS_FORM) or (
            is_page and status < 500 and status not in (401, 403, *_LATER)
        ):
            why = "its response is not a registry's"
            if status == 404:
                return self._no_registry("the path does not exist there (HTTP 404)", _NO_SUCH_PATH)
            return self._no_registry(f"{why} (HTTP {status})" if status else why)
        reason = plain_reason(error)
        if is_page:
            reason = f"a page with HTTP status {status}"
        place = f"the schema registry at {self.url_without_user}"
        if _CERTIFICATE in reason.upper():
            hint = "check ssl.ca.location and the certificates of [registry]"
            return AuthenticationFailed(f"TLS verification with {place} failed: {reason[:200]}", hint)
        if status == 429:
            hint = "try again later; a running relay retries, and a starting one with --wait-for-services"
            return ConnectionFailed(f"{place} limits the rate of requests (HTTP 429): {reason[:200]}", hint)
        if not isinstance(error, SchemaRegistryError):
            hint = (
                "check that the registry runs there, and check -r/--schema-registry or BWTUI_SCHEMA_REGISTRY"
            )
            return ConnectionFailed(f"can't reach {place}: {reason[:200]}", hint)
        if status >= 500 or status in _LATER:
            code, text = _code(error), "a web page" if is_page else _text(error)
            hint = "check the registry's log, and the proxy, if there is one"
            return ConnectionFailed(f"{place} answers {code}{f': {text[:200]}' if text else ''}", hint)
        if error.http_status_code in (401, 403):
            hint = "check user and password in -r or BWTUI_SCHEMA_REGISTRY, and the user's rights"
            return AuthenticationFailed(f"{place} rejects the client: {reason[:200]}", hint)
        if error.error_code == 42205:
            hint = "set the mode of the registry, and of the subject, to READWRITE"
            return ConnectionFailed(f"{place} is not accepting schemas: {reason[:200]}", hint)
        hint = _NO_SUCH_PATH
        if status != 404:
            hint = "check the path in -r/--schema-registry, and check the proxy, if there is one"
        return ConnectionFailed(f"{place} does not respond like a registry: {reason[:200]}", hint)

    def _no_registry(self, why: str, hint: str = "") -> ConnectionFailed:
        hint = (
            hint
            or "check scheme, port and path of -r/--schema-registry, and check the proxy, if there is one"
        )
        problem = f"the server at {self.url_without_user} is not a schema registry: {why}"
        return ConnectionFailed(problem, hint)


def _watch_requests(client: SchemaRegistryClient, seconds: float) -> None:
    """Limit the duration of the client's HTTP requests, and add them to the command log.

    The client's own timeout is for each read, so an answer that arrives byte by byte never exceeds it.
    Answers from its cache are not requests.
    """
    # The client has no public hook. If this attribute is missing, there is just no limit and no log entry.
    session = getattr(getattr(client, "_rest_client", None), "session", None)
    if session is None:
        return
    request = session.request

    def watched(method: str, url: str, **more: Any) -> Any:
        path = _VERSION.sub("…", urlsplit(url).path)
        end = COMMANDS.begin(REGISTRY, f"{method} {path}")
        try:
            response = within(seconds, lambda: request(method, url=url, **more))
        except BaseException as error:
            end(type(error).__name__)
            raise
        end("" if response.is_success else f"HTTP {response.status_code}")
        if response.has_redirect_location:
            raise _RegistryRedirect(response.status_code, _base(url, response.headers["location"]))
        return response

    session.request = watched


def _base(url: str, location: str) -> str:
    """Return the registry's new base address if a request to ``url`` was redirected to ``location``."""
    source, target = urlsplit(url), urlsplit(urljoin(url, location))
    path = target.path.removesuffix("/").removesuffix(source.path.removesuffix("/"))
    return url_without_user(f"{target.scheme}://{target.netloc}{path}")


def _record_name(schema: str) -> str:
    """Return the full name of a schema's record; empty if it is not a record."""
    record = as_record(schema) or {}
    name = str(record.get("name", ""))
    # According to Avro's specification, a name with dots is a full name.
    return name if "." in name else ".".join(filter(None, (str(record.get("namespace") or ""), name)))


def plain_reason(error: Exception) -> str:
    """Return the reason in an error of the registry's client, on one line."""
    if not isinstance(error, SchemaRegistryError):
        # Python puts its own number of the system's error in front.
        return re.sub(r"\[Errno -?\d+\] ", "", " ".join(str(error).split())) or type(error).__name__
    text = _text(error)
    return f"{text} ({_code(error)})" if text else _code(error)


def _code(error: SchemaRegistryError) -> str:
    code = f", error code {error.error_code}" if (error.error_code or 0) > 0 else ""
    return f"HTTP {error.http_status_code}{code}"


def _text(error: SchemaRegistryError) -> str:
    text = str(error.error_message or "")
    if error.error_code == -1 and text.startswith(_NOT_JSON):
        text = ast.literal_eval(text.removeprefix(_NOT_JSON)).decode(errors="replace")
    return " ".join(text.split())


def _refused(subject: str, error: SchemaRegistryError) -> SchemaRefused:
    reason = " ".join(str(error.error_message).split())
    status = error.http_status_code
    return SchemaRefused(
        f"the schema registry rejects {subject} (HTTP {status}): {reason}",
        f"check the schemas of subject {subject} in the registry",
        status,
    )


def url_without_user(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


# Schema ids without a registry, for recordings made without one; a replay maps them to a registry's ids.

_LARGEST_ID = (1 << 31) - 1


class LocalRegistry:
    """Gives every schema an id that depends only on its text, so that later runs assign the same."""

    url_without_user = ""

    def __init__(self) -> None:
        #: sha256 of the schema that has each id.
        self._digests: dict[int, bytes] = {}

    def check(self) -> None:
        """Do nothing: there is no service that could be down."""

    def register(self, subject: str, schema: str) -> RegisteredSchema:
        """Return the id of ``schema`` (JSON text), whatever the subject."""
        digest = hashlib.sha256(schema.encode()).digest()
        number = int.from_bytes(digest[:4], "big") & _LARGEST_ID
        while not number or self._digests.setdefault(number, digest) != digest:
            number = (number + 1) & _LARGEST_ID
        return RegisteredSchema(subject, number, None, schema)

    def close(self) -> None:
        """Do nothing: nothing is open."""

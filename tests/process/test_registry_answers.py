"""Answers of a schema registry: a rejected schema, or an unavailable service."""

import json
import socket
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from types import MappingProxyType

import pytest

from bwtui.encode.registry import SchemaRefused, SchemaRegistry
from bwtui.errors import ConnectionFailed

HTML = b"<html><body>default backend - 404</body></html>"
SCHEMA = '"string"'


class Answering(ThreadingHTTPServer):
    """A server that gives every request the same answer."""

    status = 200
    body = b""
    #: Location of a redirect.
    location = ""
    #: Answers to single paths, including their query strings.
    paths: Mapping[str, object] = MappingProxyType({})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        server = self.server
        assert isinstance(server, Answering)
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        known = self.path in server.paths
        body = json.dumps(server.paths[self.path]).encode() if known else server.body
        self.send_response(200 if known else server.status)
        self.send_header("Content-Length", str(len(body)))
        if server.location and not known:
            self.send_header("Location", server.location)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *args: object) -> None:
        """Do nothing."""


@pytest.fixture
def server() -> Iterator[Answering]:
    with Answering(("127.0.0.1", 0), _Handler) as found:
        thread = Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def told(code: int | None, message: str = "because") -> bytes:
    """Return the body of a registry's error; a gateway's has no code."""
    return json.dumps({"message": message} | ({"error_code": code} if code is not None else {})).encode()


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (401, HTML, "rejects the client"),
        (403, told(40301), "rejects the client"),
        (404, HTML, "is not a schema registry"),
        (404, told(404, "HTTP 404 Not Found"), "does not respond like a registry"),
        (404, told(None, "no Route matched"), "does not respond like a registry"),
        (405, HTML, "is not a schema registry"),
        (409, HTML, "is not a schema registry"),
        (413, HTML, "is not a schema registry"),
        (422, HTML, "is not a schema registry"),
        (422, told(42205, "Subject t-value is in read-only mode"), "is not accepting schemas"),
        (429, HTML, r"limits the rate of requests \(HTTP 429\)"),
        (404, HTML, r"the path does not exist there \(HTTP 404\)"),
        (404, b"", "does not respond like a registry: HTTP 404"),
        (500, told(50001), "answers HTTP 500, error code 50001: because$"),
        (500, b"boom", r"the schema registry at http://\S+ answers HTTP 500: boom$"),
        (503, HTML, "answers HTTP 503: a web page$"),
        (503, b"", "answers HTTP 503$"),
        (200, HTML, "is not a schema registry"),
        (200, b'{"status": "ok"}', "can't reach"),
    ],
)
def test_what_is_no_word_on_the_schema_is_waited_for(
    server: Answering, status: int, body: bytes, words: str
) -> None:
    server.status, server.body = status, body
    registry = SchemaRegistry(server.url)
    with pytest.raises(ConnectionFailed, match=words) as refused:
        registry.register("t-value", SCHEMA)
    assert refused.value.hint
    registry.close()


@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("body", [b"", HTML])
def test_a_redirect_names_its_target(server: Answering, status: int, body: bytes) -> None:
    server.status, server.body = status, body
    server.location = "https://me:secret@registry.example/base/subjects/?token=1"
    registry = SchemaRegistry(server.url)
    with pytest.raises(ConnectionFailed) as refused:
        registry.check()
    says = f"redirects to https://registry.example/base (HTTP {status}), but bwtui does not follow redirects"
    assert says in refused.value.message
    assert refused.value.hint == "set the registry's own address, such as -r https://registry.example/base"
    server.location = "/login"
    with pytest.raises(ConnectionFailed, match=f"redirects to {server.url}/login"):
        registry.register("t-value", SCHEMA)
    registry.close()


@pytest.mark.parametrize(
    ("status", "code"), [(409, 409), (422, 42201), (422, 42208), (422, 42209), (422, 42210)]
)
def test_what_a_registry_says_of_the_schema_is_a_refusal(server: Answering, status: int, code: int) -> None:
    server.status, server.body = status, told(code)
    registry = SchemaRegistry(server.url)
    with pytest.raises(SchemaRefused, match="because") as refused:
        registry.register("t-value", SCHEMA)
    assert refused.value.status == status
    registry.close()


def test_a_proxys_404_does_not_mean_that_a_schema_is_unknown(server: Answering) -> None:
    server.status, server.body = 404, HTML
    registry = SchemaRegistry(server.url)
    for ask in (
        lambda: registry.schema_text(7),
        lambda: registry.schema_id("t-value", SCHEMA),
        lambda: registry.verdict("t-value", SCHEMA),
    ):
        with pytest.raises(ConnectionFailed, match="is not a schema registry"):
            ask()
    registry.close()


def test_a_registrys_own_404_does(server: Answering) -> None:
    server.status, server.body = 404, told(40403, "Schema 7 not found")
    registry = SchemaRegistry(server.url)
    assert registry.schema_text(7) is None
    assert registry.schema_id("t-value", SCHEMA) is None
    registry.close()


@pytest.mark.parametrize("body", [HTML, b"{}", b'"up"', b"", b"null"])
def test_what_answers_without_a_list_of_subjects_is_no_registry(server: Answering, body: bytes) -> None:
    server.status, server.body = 200, body
    registry = SchemaRegistry(server.url)
    with pytest.raises(ConnectionFailed, match="is not a schema registry") as refused:
        registry.check()
    assert "Expecting value" not in refused.value.message
    registry.close()


@pytest.mark.parametrize(
    "answers",
    [
        # Apicurio returns NONE for a subject without its own rule, unless asked for the effective rule.
        {"/config/t-value": "NONE", "/config/t-value?defaultToGlobal=true": "FULL"},
        # A registry without this endpoint has no rules for subjects.
        {"/config": "FULL"},
    ],
)
def test_the_rule_is_the_one_that_holds(server: Answering, answers: dict[str, str]) -> None:
    record = {"type": "record", "name": "t", "fields": [{"name": "a", "type": "int"}]}
    server.status, server.body = 404, told(40401)
    paths: dict[str, object] = {path: {"compatibilityLevel": level} for path, level in answers.items()}
    paths["/subjects/t-value/versions/latest"] = {
        "subject": "t-value",
        "id": 1,
        "version": 1,
        "schema": json.dumps(record),
    }
    ask = "/compatibility/subjects/t-value/versions/latest?normalize=False&verbose=True"
    server.paths = {**paths, ask: {"is_compatible": False}}
    registry = SchemaRegistry(server.url)
    found = registry.verdict("t-value", json.dumps(record).replace("int", "string"))
    assert found.rule == "FULL"
    assert found.reasons == ('field "a" changed from int to string',)
    registry.close()


def test_an_answer_that_comes_byte_by_byte_is_not_waited_for_without_end() -> None:
    """Each byte arrives within the client's timeout, which applies to each read."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = Event()

    def drip() -> None:
        connection, _ = listener.accept()
        with connection:
            for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b" " * 1_000:
                if over.wait(0.05):
                    return
                connection.sendall(bytes([byte]))

    thread = Thread(target=drip)
    thread.start()
    registry = SchemaRegistry(f"http://127.0.0.1:{listener.getsockname()[1]}", (("timeout", "0.2"),))
    try:
        with pytest.raises(ConnectionFailed, match="the response was incomplete after"):
            registry.check()
    finally:
        over.set()
        thread.join()
        listener.close()
        registry.close()


RECORD = json.dumps({"type": "record", "namespace": "com.acme", "name": "OrdersKey", "fields": []})


@pytest.mark.parametrize(
    "held", ['"string"', '["null", "string"]', 'syntax = "proto3"; message Orders {}', "7"]
)
def test_a_subject_that_holds_no_record_is_refused(server: Answering, held: str) -> None:
    """Other producers write keys as strings or in Protobuf; a relay that meets them must not crash."""
    stored = {"subject": "t-key", "version": 1, "id": 1, "schema": held}
    server.status, server.body = 409, told(409)
    server.paths = {
        "/subjects/t-key?normalize=False&deleted=False": {"subject": "t-key"},
        "/subjects/t-key/versions/latest": stored,
        "/config/t-key?defaultToGlobal=true": {"compatibilityLevel": "BACKWARD"},
    }
    registry = SchemaRegistry(server.url)
    for ask in (registry.register, registry.refuse_renamed):
        with pytest.raises(SchemaRefused) as refused:
            ask("t-key", RECORD)
        assert "not a record" in refused.value.message
    registry.close()


@pytest.mark.parametrize(
    "names", [{"name": "com.acme.OrdersKey"}, {"namespace": "other", "name": "com.acme.OrdersKey"}]
)
def test_a_name_with_dots_is_the_whole_name(server: Answering, names: dict[str, str]) -> None:
    """Avro's specification says so; a registry returns what another producer wrote."""
    held = json.dumps({"type": "record", **names, "fields": []})
    stored = {"subject": "t-key", "version": 1, "id": 1, "schema": held}
    server.paths = {"/subjects/t-key/versions/latest": stored}
    registry = SchemaRegistry(server.url)
    registry.refuse_renamed("t-key", RECORD)
    registry.close()

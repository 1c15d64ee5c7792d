"""Kafka and a schema registry as companies run them: over TLS, and with a password."""

import base64
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import trustme
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from bwtui.packages.artifacts import ArtifactStore
from bwtui.packages.java import java_binary
from bwtui.sandbox.kafka import GROUP, JVM, SETTINGS
from bwtui.sandbox.ports import LOOPBACK, choose
from tests.waiting import eventually

USER, PASSWORD = "relay", "tricky=pass;word"
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class Authority:
    """A test's own certificate authority, which issues certificates for the loopback address."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        issued = authority.issue_cert(LOOPBACK)
        self.file = folder / "ca.pem"
        authority.cert_pem.write_to_path(self.file)
        self.key_file, self.certificate_file = folder / "key.pem", folder / "certificate.pem"
        # Kafka reads PKCS #8 only.
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        self.key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        self.key_file.chmod(0o600)
        self.certificate_file.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    def for_servers(self) -> ssl.SSLContext:
        """Return the TLS context for a Python server."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate_file, self.key_file)
        return context


@contextmanager
def secure_kafka(authority: Authority) -> Iterator[dict[str, str]]:
    """Run a broker that accepts only SASL_SSL, and yield the settings of an authenticated client."""
    folder = Path(tempfile.mkdtemp(prefix="bwtui-test-"))
    ports = choose(["kafka", "kafka_inner", "kafka_controller"], {})
    store = folder / "store.pem"
    store.write_bytes(authority.key_file.read_bytes() + authority.certificate_file.read_bytes())
    listeners = {"SECURE": ports["kafka"], "INNER": ports["kafka_inner"]}
    named = ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in listeners.items())
    properties = SETTINGS | {
        "listeners": f"{named},CONTROLLER://{LOOPBACK}:{ports['kafka_controller']}",
        "advertised.listeners": named,
        "listener.security.protocol.map": "SECURE:SASL_SSL,INNER:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INNER",
        "controller.quorum.voters": f"1@{LOOPBACK}:{ports['kafka_controller']}",
        "log.dirs": str(folder / "log"),
        "sasl.enabled.mechanisms": "PLAIN",
        # Everything is allowed, except for the rules of a test.
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
        "listener.name.secure.plain.sasl.jaas.config": f'{_PLAIN} required user_{USER}="{PASSWORD}";',
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
    }
    file = folder / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    jars = os.pathsep.join(map(str, ArtifactStore().jars(GROUP)))
    java = [str(java_binary()), *JVM, "-XX:TieredStopAtLevel=1", "-cp", jars]
    client = {
        "bootstrap.servers": f"{LOOPBACK}:{ports['kafka']}",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(authority.file),
    }
    try:
        format_it = [
            *java,
            "kafka.tools.StorageTool",
            "format",
            "-t",
            "AAAAAAAAAAAAAAAAAAAAAQ",
            "-c",
            str(file),
        ]
        subprocess.run(format_it, check=True, capture_output=True, timeout=120)
        with _running([*java, "kafka.Kafka", str(file)], folder / "log.txt"):
            eventually("the secure broker lets us in", lambda: _lets_in(client), 90)
            yield client
    finally:
        shutil.rmtree(folder)


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGKILL)


def _lets_in(client: dict[str, str]) -> bool:
    try:
        AdminClient({**client, "log_level": "0"}).list_topics(timeout=2)
    except KafkaException:
        return False
    return True


@contextmanager
def secure_registry(authority: Authority, plain_url: str) -> Iterator[str]:
    """Put TLS and a password before the registry at ``plain_url``, and yield the new URL."""

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._pass_on()

        def do_POST(self) -> None:
            self._pass_on()

        def log_message(self, *_: object) -> None:
            """Do nothing."""

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            expected = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            if self.headers.get("Authorization") != f"Basic {expected}":
                self._answer(401, b'{"error_code": 401, "message": "Unauthorized"}')
                return
            kept = {name: self.headers[name] for name in ("Content-Type", "Accept") if name in self.headers}
            request = urllib.request.Request(plain_url + self.path, body or None, kept, method=self.command)
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    self._answer(answer.status, answer.read())
            except urllib.error.HTTPError as error:
                with error:
                    self._answer(error.code, error.read())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer((LOOPBACK, 0), Door) as server:
        server.socket = authority.for_servers().wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"https://{LOOPBACK}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()

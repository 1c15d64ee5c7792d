"""Downloads match the lock file, whatever the mirror; these tests run without a network."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from bwtui.errors import ConnectionFailed, RefusedError, UsageError
from bwtui.packages import artifacts, ivy, java, lockfile
from bwtui.packages.artifacts import ArtifactStore
from bwtui.packages.lockfile import Artifact
from bwtui.packages.setup_progress import SetupProgress

CONTENT = b"the file that was locked"
THING = Artifact("org.example", "thing", "1.0", "jar", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


class Seen(SetupProgress):
    """Records its calls."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.sizes: list[tuple[int, int]] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def fetched(self, done: int, total: int) -> None:
        self.sizes.append((done, total))


@pytest.fixture(autouse=True)
def quick_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let short-lived Java processes compile and collect as little as possible."""
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ArtifactStore:
    """A store with an empty cache, and a lock file with one entry."""
    monkeypatch.setattr(lockfile, "load", lambda: {"things": (THING,)})
    monkeypatch.setattr(artifacts, "TRIES", 1)
    return ArtifactStore(tmp_path / "cache")


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The location of that file on a mirror in the file system; it does not exist yet."""
    place = tmp_path / "mirror" / "org" / "example" / "thing" / "1.0" / "thing-1.0.jar"
    place.parent.mkdir(parents=True)
    use_mirror(tmp_path, monkeypatch, (tmp_path / "mirror").as_uri() + "/")
    return place


def use_mirror(folder: Path, monkeypatch: pytest.MonkeyPatch, root: str) -> None:
    """Write settings with a mirror, and make bwtui use them."""
    settings = folder / "ivysettings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="mirror"/><resolvers><ibiblio name="mirror" '
        f'm2compatible="true" usepoms="false" root="{root}"/></resolvers></ivysettings>'
    )
    monkeypatch.setenv("BWTUI_IVY_SETTINGS", str(settings))


def test_fetches_from_the_mirror_of_the_settings(store: ArtifactStore, mirror: Path) -> None:
    """What an interrupted fetch left is not taken, and a file that changes in the cache is refused."""
    mirror.write_bytes(CONTENT)
    left = store.cache / "incoming" / "thing-1.0.jar"
    left.parent.mkdir(parents=True)
    left.write_bytes(CONTENT[:5])
    seen = Seen()
    store.fetch(["things"], seen)
    (path,) = store.jars("things")
    assert path.read_bytes() == CONTENT
    assert seen.sizes[-1] == (len(CONTENT), len(CONTENT))
    assert sorted(path.name for path in store.cache.iterdir()) == ["files", "lock"]
    path.write_bytes(CONTENT[::-1])
    with pytest.raises(RefusedError, match="differs from the locked one"):
        store.jars("things")
    assert not path.exists()
    with pytest.raises(RefusedError):
        path.write_bytes(CONTENT[::-1])
        store.unpacked("things")


def test_what_is_here_is_not_fetched_again(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> None:
    (store.files).mkdir(parents=True)
    (store.files / "thing-1.0.jar").write_bytes(CONTENT)
    monkeypatch.setattr(ivy, "retrieve", lambda *_: pytest.fail("nothing had to be fetched"))
    store.fetch(["things"], SetupProgress())


def test_a_wrong_file_of_the_mirror_is_refused_and_removed(store: ArtifactStore, mirror: Path) -> None:
    for wrong in (CONTENT[:-1] + b"!", CONTENT + b"!"):
        mirror.write_bytes(wrong)
        with pytest.raises(RefusedError, match=r"the sha256 of org\.example:thing:1\.0 differs"):
            store.fetch(["things"], SetupProgress())
        assert not [path for path in store.cache.rglob("*") if path.is_file() and path.read_bytes() == wrong]
    mirror.write_bytes(CONTENT)
    store.fetch(["things"], SetupProgress())
    assert store.jars("things")


def test_an_unreachable_registry_is_one_sentence_with_a_way_out(
    store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_mirror(tmp_path, monkeypatch, "http://127.0.0.1:1/")
    with pytest.raises(ConnectionFailed) as caught:
        store.fetch(["things"], SetupProgress())
    assert caught.value.message == "no package registry can be reached (Connection refused)"
    assert caught.value.exit_code == 4
    for way in (
        "BWTUI_IVY_SETTINGS",
        "BWTUI_POSTGRES",
        "BWTUI_BROKER",
        "BWTUI_SCHEMA_REGISTRY",
        "-d, -b and -r",
    ):
        assert way in (caught.value.hint or "")


def test_a_failed_download_is_tried_again(
    store: ArtifactStore, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(artifacts, "TRIES", 2)
    seen = Seen()
    with pytest.raises(ConnectionFailed, match=r"does not have org\.example#thing;1\.0"):
        store.fetch(["things"], seen)
    assert len([note for note in seen.notes if note.endswith("; trying again")]) == 1


def test_settings_that_are_not_there_are_refused(
    store: ArtifactStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWTUI_IVY_SETTINGS", "/nowhere/ivysettings.xml")
    with pytest.raises(UsageError, match=r"BWTUI_IVY_SETTINGS names /nowhere/ivysettings\.xml"):
        store.fetch(["things"], SetupProgress())


@pytest.mark.parametrize("major", lockfile.MAJORS)
@pytest.mark.parametrize(("machine", "platform"), [("x86_64", "linux"), ("x86_64", "darwin")])
def test_every_major_version_is_locked(
    major: int, machine: str, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("sys.platform", platform)
    assert lockfile.postgres_group(major) == f"postgres-{major}-{platform}-amd64"


def test_a_platform_without_postgres_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "s390x")
    monkeypatch.setattr("sys.platform", "linux")
    with pytest.raises(RefusedError, match="no PostgreSQL 18 for linux on s390x"):
        lockfile.postgres_group(18)


def test_the_lock_names_every_file_once_and_with_a_sha256() -> None:
    raw = json.loads(Path(lockfile.__file__).with_name(lockfile.LOCK_NAME).read_text())
    names = [artifact.file_name for group in lockfile.load().values() for artifact in group]
    assert len(names) == len(set(names)) == sum(map(len, raw.values()))
    for group in lockfile.load().values():
        for artifact in group:
            assert len(bytes.fromhex(artifact.sha256)) == 32
            assert artifact.size > 0


def test_the_java_for_spark_drops_the_module_that_it_lacks(tmp_path: Path) -> None:
    binary = java.spark_java_home(tmp_path) / "bin" / "java"
    words = ["--add-modules=jdk.incubator.vector", "-Dspaces=a b", "--version"]
    shown = subprocess.run([binary, *words], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("openjdk 21")


def test_java_takes_the_proxies_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "localhost,.example")
    options = java.download_options(tmp_path)
    assert "-Dhttps.proxyHost=proxy.example" in options
    assert "-Dhttps.proxyPort=3128" in options
    assert "-Dhttp.nonProxyHosts=localhost|*.example" in options


def test_javas_trust_store_comes_from_java_home_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "lib" / "security" / "cacerts"
    store.parent.mkdir(parents=True)
    store.touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java.trust_store(tmp_path / "cache") == store


def test_without_a_java_trust_store_pythons_certificates_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java, "SYSTEM_TRUST_STORES", ())
    certificate = tmp_path / "ca.pem"
    certificate.write_bytes(_self_signed() * 2)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    store = java.trust_store(tmp_path / "cache")
    assert store is not None
    listing = subprocess.run(
        [java.java_binary().with_name("keytool"), "-list", "-keystore", store, "-storepass", ""],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "trustedCertEntry" in listing
    assert "1 entry" in listing


def _self_signed() -> bytes:
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "bwtui test")])
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(start).not_valid_after(start.replace(year=2036))
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

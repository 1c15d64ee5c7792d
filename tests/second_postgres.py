"""A test's own PostgreSQL, with settings that the shared sandbox must not have."""

import atexit
import functools
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import closing
from pathlib import Path

import psycopg2

from bwtui.packages.artifacts import ArtifactStore
from bwtui.packages.lockfile import postgres_group
from bwtui.packages.setup_progress import SetupProgress
from bwtui.sandbox.layout import ServerUser, reachable_by_others
from bwtui.sandbox.ports import LOOPBACK, choose
from tests.fix_sandbox import MAJOR
from tests.waiting import eventually


@functools.cache
def _programs(major: int) -> Path:
    """Return the folder of the programs, unpacked once per test process if others can't read the cache."""
    store, group = ArtifactStore(), postgres_group(major)
    store.fetch([group], SetupProgress())
    if ServerUser.needed() is None or reachable_by_others(store.cache):
        return store.unpacked(group) / "bin"
    place = Path(tempfile.mkdtemp(prefix="bwtui-test-programs-"))
    place.chmod(0o755)
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return store.unpacked(group, place) / "bin"


class SecondPostgres:
    """A cluster that can be restarted with different settings; it trusts every client."""

    def __init__(self, major: int = MAJOR, *options: str) -> None:
        """``options`` are additional options of initdb."""
        self._user = ServerUser.needed()
        # This is not one of pytest's folders: the server's own user needs access to it.
        self._folder = Path(tempfile.mkdtemp(prefix="bwtui-test-"))
        self._programs = _programs(major)
        self._process: subprocess.Popen[bytes] | None = None
        self._port = choose(["postgres"], {})["postgres"]
        self.dsn = f"postgresql://postgres@{LOOPBACK}:{self._port}/postgres"
        if self._user:
            os.chown(self._folder, self._user.uid, self._user.gid)
        given = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._run("initdb", "--pgdata", str(self._folder / "data"), *given, *options).wait(120)

    def start(self, **settings: str) -> None:
        """Start it with ``settings``; it must not be running."""
        chosen = {"listen_addresses": LOOPBACK, "port": str(self._port), "fsync": "off"}
        chosen |= {"unix_socket_directories": ""} | settings
        given = [part for name, value in chosen.items() for part in ("-c", f"{name}={value}")]
        self._process = self._run("postgres", "-D", str(self._folder / "data"), *given)
        eventually("the second PostgreSQL answers", self._answers, 60)

    def keep_copy(self) -> None:
        """Keep a copy of its current files; it must not be running."""
        shutil.rmtree(self._folder / "copy", ignore_errors=True)
        subprocess.run(["cp", "-a", str(self._folder / "data"), str(self._folder / "copy")], check=True)

    def put_copy_back(self) -> None:
        """Restore the kept copy, at the same address; it must not be running."""
        shutil.rmtree(self._folder / "data")
        (self._folder / "copy").rename(self._folder / "data")

    def start_promoted(self, **settings: str) -> None:
        """Start it as a standby and promote it, so that it begins a new timeline."""
        (self._folder / "data" / "standby.signal").touch()
        self.start(**settings)
        with closing(psycopg2.connect(self.dsn)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            cursor.execute("select pg_promote()")
            assert cursor.fetchone() == (True,)

    def given(self, source: Path) -> str:
        """Return the path of a copy of ``source`` that the server can read."""
        copy = self._folder / source.name
        shutil.copy(source, copy)
        copy.chmod(0o600)
        if self._user:
            os.chown(copy, self._user.uid, self._user.gid)
        return str(copy)

    @property
    def data(self) -> Path:
        """The data directory."""
        return self._folder / "data"

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop it if it runs, with a clean shutdown or a different signal."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None

    def remove(self) -> None:
        """Stop it and remove its files."""
        self.stop()
        shutil.rmtree(self._folder)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "the second PostgreSQL did not start"
        try:
            psycopg2.connect(self.dsn, connect_timeout=2).close()
        except psycopg2.OperationalError:
            return False
        return True

    def _run(self, program: str, *args: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [str(self._programs / program), *args],
            user=self._user.uid if self._user else None,
            group=self._user.gid if self._user else None,
            extra_groups=[] if self._user else None,
            env={"LC_ALL": "C", "TZ": "UTC", "PATH": os.environ["PATH"]},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

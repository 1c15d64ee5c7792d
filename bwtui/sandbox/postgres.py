"""PostgreSQL, ready for logical decoding, with a generated password, on loopback."""

import os
import shutil
import signal
from pathlib import Path

import psycopg2

from bwtui.packages.artifacts import ArtifactStore
from bwtui.packages.lockfile import postgres_group
from bwtui.sandbox.layout import SandboxLayout, SandboxState, ServerUser, reachable_by_others
from bwtui.sandbox.ports import LOOPBACK
from bwtui.sandbox.service import Command, ServiceProcess

NAME = "postgres"
PORTS = ("postgres",)

SETTINGS = {
    "listen_addresses": LOOPBACK,
    # A Unix socket in a folder with a long path would fail; TCP is enough.
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "log_min_messages": "warning",
}


def dsn(memory: SandboxState) -> str:
    """Return the connection URI of the superuser, including the password."""
    return f"postgresql://postgres:{memory.password}@{LOOPBACK}:{memory.ports['postgres']}/postgres"


def service(layout: SandboxLayout, memory: SandboxState, store: ArtifactStore, major: int) -> ServiceProcess:
    """Unpack PostgreSQL if necessary, and return the service; every major version has its own data."""
    user = ServerUser.needed()
    place = layout.postgres_place(memory, user)
    binaries = programs(layout, memory, store, major)
    data = place / f"postgres-{major}"
    password = data.with_name(f"{data.name}.password")
    before: tuple[Command, ...] = ()
    # The supervisor removes the password file after a successful initdb: if it still exists, initdb has
    # failed.
    if password.exists() or not data.exists():
        before = (_initdb(binaries, data, password, memory, user),)
    settings = {**SETTINGS, "port": str(memory.ports["postgres"])}
    return ServiceProcess(
        name=NAME,
        title=f"PostgreSQL {major}",
        before=before,
        passing=(password,),
        command=(
            str(binaries / "bin" / "postgres"),
            *("-D", str(data)),
            *(part for key, value in settings.items() for part in ("-c", f"{key}={value}")),
        ),
        log=layout.logs / "postgres.log",
        folder=data,
        ready=lambda: answers(dsn(memory)),
        environment={"LC_ALL": "C", "TZ": "UTC"},
        user=user.uid if user else None,
        group=user.gid if user else None,
        # SIGINT: roll back, disconnect all clients, write a checkpoint. SIGQUIT: only the WAL is safe.
        stop_signal=signal.SIGINT,
        kill_signal=signal.SIGQUIT,
    )


def programs(layout: SandboxLayout, memory: SandboxState, store: ArtifactStore, major: int) -> Path:
    """Unpack PostgreSQL if necessary, and return its folder.

    It is in the cache, unless PostgreSQL has to run as a user who can't access that.
    """
    group, user = postgres_group(major), ServerUser.needed()
    if user is None or reachable_by_others(store.cache):
        return store.unpacked(group)
    return store.unpacked(group, layout.postgres_place(memory, user) / "programs")


def _initdb(
    binaries: Path, data: Path, password: Path, memory: SandboxState, user: ServerUser | None
) -> Command:
    password.touch(mode=0o600)
    password.write_text(memory.password)
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(mode=0o700)
    if user:
        os.chown(data, user.uid, user.gid)
        os.chown(password, user.uid, user.gid)
    return (
        str(binaries / "bin" / "initdb"),
        *("--pgdata", str(data), "--username=postgres", f"--pwfile={password}"),
        # Syncing a fresh, empty cluster would take longer than everything else; the server itself does sync.
        *("--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"),
    )


def answers(conninfo: str) -> bool:
    """Return True if PostgreSQL answers; raises psycopg2.Error if not."""
    psycopg2.connect(conninfo, connect_timeout=2).close()
    return True

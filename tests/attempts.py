"""Run ``bwtui connect --headless`` as a user does, until it ends, and check what it leaves behind."""

import contextlib
import gc
import json
import os
import secrets
import subprocess
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from click.testing import CliRunner

from bwtui.cli.main import cli
from bwtui.relay.process.lock import is_held
from bwtui.sandbox.sandbox import ServiceAddresses
from tests import forked
from tests.database import session
from tests.waiting import eventually

#: Every refusal comes sooner than this, even with the 10 s wait for an active slot or for a silent broker,
#: and on a busy machine.
QUICK_SECONDS = 60.0
#: Show only what the stream sends, without a later comparison.
_ALONE = ("--on-gap", "report")


def has_caught_up(code: int, errors: str) -> bool:
    """Return whether a run with ``--on-gap report`` sent everything; an open gap makes it exit with 3."""
    return code == 0 or (code == 3 and "has caught up, but" in errors and "not proven since" in errors)


@dataclass(frozen=True, slots=True)
class Ended:
    """Outcome of a command."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def status(self) -> dict[str, Any]:
        """The last status object."""
        found: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return found


class Attempts:
    """Runs of the relay with one slot, one topic prefix and one state folder."""

    def __init__(self, services: ServiceAddresses, folder: Path) -> None:
        self.services = services
        self.name = f"attempt_{secrets.token_hex(5)}"
        self.state = folder / "state"
        self._folder = folder
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith(("BWTUI_", "PG"))}
        self._given = {"BWTUI_STATE_HOME": str(self.state), "XDG_CONFIG_HOME": str(folder)}
        self._environment |= self._given
        self.environment = self._environment

    def run(self, dsn: str, *args: str) -> Ended:
        """Run ``bwtui connect`` on ``dsn`` until it has caught up or ends on an error."""
        full = ["connect", "--headless", "--json", "--until-caught-up", "-s", self.name, "-p", self.name]
        full += ["-d", dsn, "-b", self.services.broker, "-r", self.services.schema_registry, *_ALONE]
        return self.command(*full, *args)

    def start(self, dsn: str, *args: str) -> "subprocess.Popen[str]":
        """Start ``bwtui connect`` without an end; the caller ends it."""
        full = ["connect", "--headless", "--json", "-s", self.name, "-p", self.name]
        full += ["-d", dsn, "-b", self.services.broker, "-r", self.services.schema_registry, *_ALONE, *args]
        return forked.begin(full, self._environment, **self._given_to())

    def begin(self, *args: str) -> "subprocess.Popen[str]":
        """Start a command of ``bwtui`` in an interpreter of its own; the caller ends it."""
        return forked.fresh(args, self._environment, **self._given_to())

    def command(self, *args: str) -> Ended:
        """Run a command of ``bwtui``."""
        start = time.monotonic()
        with forked.begin(args, self._environment, **self._given_to()) as process:
            try:
                output, errors = process.communicate(timeout=120)
            finally:
                process.kill()
        return Ended(process.returncode, output, errors, time.monotonic() - start)

    def _given_to(self) -> dict[str, Any]:
        return {
            "cwd": self._folder,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
        }

    def command_here(self, *args: str) -> Ended:
        """Run a command of ``bwtui`` in this process, with the given settings only."""
        start = time.monotonic()
        without = {name: None for name in os.environ if name.startswith(("BWTUI_", "PG"))}
        with contextlib.chdir(self._folder), warnings.catch_warnings():
            # In a process of its own, the end of the process would close what is still open.
            warnings.simplefilter("ignore", ResourceWarning)
            umask = os.umask(0o077)
            try:
                ran = CliRunner().invoke(cli, args, prog_name="bwtui", env={**without, **self._given})
            finally:
                # A relay sets its own umask, and this process continues.
                os.umask(umask)
            gc.collect()
        return Ended(ran.exit_code, ran.stdout, ran.stderr, time.monotonic() - start)

    def succeed(self, dsn: str, *args: str) -> Ended:
        """Run the relay and check that it succeeds; on return, the server has released its slots."""
        ended = self.run(dsn, *args)
        assert has_caught_up(ended.code, ended.stderr), ended.stderr
        assert ended.code or ended.stderr == ""
        held = "select count(*) from pg_replication_slots where active and (temporary or slot_name ^@ %s)"
        with session(dsn) as opened:
            eventually("its slots are released", lambda: opened.value(held, self.name) == 0)
        return ended

    def fail(self, dsn: str, code: int, *args: str, server: str | None = None) -> tuple[str, str]:
        """Run the relay, check that it is refused cleanly, and return the error and its hint.

        ``server``: database to check for leftovers, if not ``dsn``; empty for none.
        """
        look_at = dsn if server is None else server
        before = left(look_at)
        ended = self.run(dsn, *args)
        told = self.refused(ended, code, dsn)
        # The slot of a snapshot is dropped once the server notices that its session has ended.
        eventually("nothing more is there than before", lambda: left(look_at) == before)
        return told

    def refused(self, ended: Ended, code: int, dsn: str) -> tuple[str, str]:
        """Check that a run on ``dsn`` was refused cleanly, and return the error and its hint."""
        lines = ended.stderr.splitlines()
        assert [line.partition(": ")[0] for line in lines] == ["bwtui", "hint"], ended.stderr
        assert lines[0].startswith("bwtui: error: ")
        assert ended.code == code, ended.stderr
        assert "Traceback" not in ended.stderr
        assert "unexpected" not in ended.stderr
        assert ended.seconds < QUICK_SECONDS
        self._check_folder(ended, dsn)
        return lines[0].removeprefix("bwtui: error: "), lines[1].removeprefix("hint: ")

    def _check_folder(self, ended: Ended, dsn: str) -> None:
        """Check that no socket and no lock are left, and that no file and no output contains the password."""
        os.environ["BWTUI_STATE_HOME"] = str(self.state)
        try:
            assert not is_held(self.name)
        finally:
            del os.environ["BWTUI_STATE_HOME"]
        assert not list(self.state.rglob("*.sock"))
        texts = [
            ended.stdout,
            ended.stderr,
            *(p.read_text(errors="replace") for p in self.state.rglob("*") if p.is_file()),
        ]
        secret = password(dsn)
        assert not secret or not any(secret in text for text in texts)


def password(dsn: str) -> str:
    """Return the password of a connection URI, or an empty string."""
    try:
        return urlsplit(dsn).password or ""
    except ValueError:
        return ""


def left(dsn: str) -> tuple[list[str], list[str]]:
    """Return the slots and publications of a database; none for an empty ``dsn``."""
    if not dsn:
        return [], []
    with session(dsn) as opened:
        return opened.slots(), opened.publications()

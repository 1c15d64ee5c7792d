"""The supervisor's description of a service; postgres.py, kafka.py and registry.py create them."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bwtui.packages.class_archive import ClassArchive

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ServiceFailure:
    """Why a service died, and what to do; neither contains a secret."""

    reason: str
    #: A sentence, or empty if only the log has more information.
    hint: str = ""


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """A process to run, the commands to run before it, and the check that it is ready."""

    name: str
    #: Its name for display: "PostgreSQL 18".
    title: str
    #: Commands to complete, one after the other, before the service starts, such as initdb.
    before: tuple[Command, ...]
    command: Command
    log: Path
    #: Its data and working directory. It is not started while a different process, such as a child of a
    #: killed predecessor, still works there.
    folder: Path
    #: Returns True once the service answers in its own protocol; may raise anything until then.
    ready: Callable[[], bool]
    #: Returns why it died, from its log since the start; None if the log does not show it.
    explain: Callable[[str], ServiceFailure | None] = lambda log: None
    #: Added to the supervisor's own environment.
    environment: dict[str, str] = field(default_factory=dict)
    #: The user and group id to run under, or None for the supervisor's own.
    user: int | None = None
    group: int | None = None
    #: Files with secrets for the commands before it; removed after these have succeeded.
    passing: tuple[Path, ...] = ()
    #: Signal for a clean stop, even while clients are connected.
    stop_signal: signal.Signals = signal.SIGTERM
    #: Timeout in seconds for a clean stop.
    stop_seconds: float = 15.0
    #: Signal after that timeout, and when the supervisor itself dies.
    kill_signal: signal.Signals = signal.SIGKILL
    #: Class archive of a Java program, whose command begins with the path of java.
    classes: ClassArchive | None = None

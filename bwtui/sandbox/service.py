"""What the supervisor must know of one service; postgres.py, kafka.py and registry.py fill it in."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bwtui.packages.class_archive import ClassArchive

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Death:
    """Why a service ended by itself, and what helps; neither holds a secret."""

    reason: str
    #: A sentence, or empty: then the log says more.
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Service:
    """One process to run, what has to run before it, and how to see that it is ready."""

    name: str
    #: How a person reads it: "PostgreSQL 18".
    title: str
    #: Commands to be run to their end before the service, one after the other, such as initdb.
    before: tuple[Command, ...]
    command: Command
    log: Path
    #: Where it keeps its data, and its working directory. It is not started while another process,
    #: such as a child of a killed predecessor, still works there.
    folder: Path
    #: Returns True when the service answers in its own protocol; may raise anything until then.
    ready: Callable[[], bool]
    #: Says why it died, of what its log has had since it was started; None where it can't tell.
    explain: Callable[[str], Death | None] = lambda log: None
    #: Added to the supervisor's own environment.
    environment: dict[str, str] = field(default_factory=dict)
    #: The user and group id to run under, or None for the supervisor's own.
    user: int | None = None
    group: int | None = None
    #: Files with secrets for the commands before; removed when those ended well.
    passing: tuple[Path, ...] = ()
    #: Asks for a clean end, while clients may be connected.
    stop_signal: signal.Signals = signal.SIGTERM
    #: Seconds for that.
    stop_seconds: float = 15.0
    #: Sent when a clean end takes too long, and when the supervisor itself dies.
    kill_signal: signal.Signals = signal.SIGKILL
    #: Of a Java program: the command's first word is Java, which takes the options behind it.
    classes: ClassArchive | None = None

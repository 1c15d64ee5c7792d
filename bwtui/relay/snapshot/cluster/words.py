"""What a task of Spark is told, and what the engine and the process that has Spark say to each other."""

from dataclasses import dataclass

from bwtui.relay.snapshot.workers.words import Fault


@dataclass(frozen=True, slots=True)
class Call:
    """All that goes through Spark: where the relay's door is, how it is known, and what it opens to once."""

    host: str
    port: int
    #: The SHA-256 of the door's certificate.
    fingerprint: bytes
    token: bytes

    def __repr__(self) -> str:
        return "Call()"


@dataclass(frozen=True, slots=True)
class Job:
    """The engine wants one task run."""

    number: int
    call: Call


@dataclass(frozen=True, slots=True)
class Opened:
    """Spark is there: executors reach this machine at ``host``; 0: any ``port`` is open to them."""

    host: str
    port: int
    parallelism: int


@dataclass(frozen=True, slots=True)
class Unopened:
    """There will be no Spark."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class Over:
    """Spark says that a job's task has ended, or that it has lost it: a machine that is cut off may go on."""

    number: int
    fault: Fault | None

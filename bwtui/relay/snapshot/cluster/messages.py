"""Messages to a Spark task, and between the engine and the process that runs Spark."""

from dataclasses import dataclass

from bwtui.relay.snapshot.workers.messages import SerializedError


@dataclass(frozen=True, slots=True)
class ConnectionTicket:
    """All that goes through Spark: the relay's address, its fingerprint, and a single-use token."""

    host: str
    port: int
    #: The SHA-256 digest of the listener's certificate.
    fingerprint: bytes
    token: bytes

    def __repr__(self) -> str:
        return "Call()"


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """The engine requests one task."""

    number: int
    call: ConnectionTicket


@dataclass(frozen=True, slots=True)
class SparkReady:
    """Spark is ready: executors reach this machine at ``host``; any ``port`` is open to them if it is 0."""

    host: str
    port: int
    parallelism: int


@dataclass(frozen=True, slots=True)
class SparkFailed:
    """Spark can't be started."""

    fault: SerializedError


@dataclass(frozen=True, slots=True)
class TaskEnded:
    """Spark reports that a job's task has ended or is lost; a machine that is cut off may still run it."""

    number: int
    fault: SerializedError | None

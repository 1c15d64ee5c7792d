"""Every error that ends a command, with the exit code that scripts rely on.

::

    BwtuiError                  2  usage or any other error
    ├── UsageError              2  an option or a setting is invalid
    ├── RefusedError            2  a prerequisite is not met (wal_level, unkeyed table, …)
    │   └── ServiceRefused      4  a service answers, but lacks a right or a setting that every row needs
    ├── RowError                2  one row can't be relayed, and --on-error is exit
    ├── StateFailed             2  one of the relay's own files can't be read or written
    ├── DifferencesFound        1  a comparison found differences
    ├── Indeterminate           3  a comparison could not be decided
    ├── ConnectionFailed        4  a server can't be reached, or authentication failed
    │   ├── AuthenticationFailed            4  the server answers, and authentication failed
    │   └── PositionHidden      4  another relay's open Kafka transaction hides the position
    ├── SlotLost                5  the slot is missing, was moved by another client, lost its WAL, or its
    │                              server's history lacks what was relayed
    ├── DamagedRecording        6  a recording does not match its checksums
    └── Interrupted           130  Ctrl-C

The message is one plain sentence without a full stop. The hint is a sentence that tells the operator what to
do; every error has one, and a type checker finds an error without. Neither ever contains a row value or a
password.
"""


class BwtuiError(Exception):
    """An error that is shown as one line with a hint, and sets the exit code."""

    exit_code = 2

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(BwtuiError):
    """An option or a setting is invalid."""


def mutually_exclusive(first: str, second: str, hint: str = "give only one of them") -> UsageError:
    """Return the error for two options, arguments or settings that can't be given together."""
    return UsageError(f"{first} and {second} are mutually exclusive", hint)


class RefusedError(BwtuiError):
    """A prerequisite is not met, so nothing was started."""


class ServiceRefused(RefusedError):
    """A service answers, but lacks a right or a setting that every row needs: no row is dropped for it."""

    exit_code = 4


class RowError(BwtuiError):
    """One row can't be relayed; --on-error decides how to continue."""


class StateFailed(BwtuiError):
    """One of the relay's own files can't be read or written."""


class DifferencesFound(BwtuiError):
    """A comparison found differences."""

    exit_code = 1


class Indeterminate(BwtuiError):
    """A comparison could not be decided."""

    exit_code = 3


class ConnectionFailed(BwtuiError):
    """A server can't be reached, or authentication failed."""

    exit_code = 4


class AuthenticationFailed(ConnectionFailed):
    """A server answers, but rejects user, password, certificate or rights: no start waits for that."""


class PositionHidden(ConnectionFailed):
    """Another relay's open Kafka transaction hides the position; the relay waits for its end."""


class SlotLost(BwtuiError):
    """The replication slot is missing, was moved, or lost its WAL, or its server lacks what was relayed."""

    exit_code = 5
    #: True if the stream itself reported the loss, which the slot's later state does not undo.
    in_stream = False


class DamagedRecording(BwtuiError):
    """A recording does not match its checksums."""

    exit_code = 6


class Interrupted(BwtuiError):
    """The user interrupted the command, which needs no hint unless something continues to run."""

    exit_code = 130

    def __init__(self, message: str = "interrupted", hint: str = "") -> None:
        super().__init__(message, hint)

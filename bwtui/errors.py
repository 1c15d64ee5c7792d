"""Every error that ends a command, with the exit code that scripts rely on.

::

    BwtuiError                  2  usage or any other error
    ├── UsageError              2  an option or a setting is wrong
    ├── RefusedError            2  a precondition does not hold (wal_level, unkeyed table, …)
    │   └── ServiceRefused      4  a service answers, and lacks a right or a setting that every row needs
    ├── RowError                2  one row can't be relayed, and --on-error is exit
    ├── StateFailed              2  one of the relay's own files can't be read or written
    ├── DifferencesFound        1  a comparison found differences
    ├── Indeterminate           3  a comparison could not be decided
    ├── ConnectionFailed        4  a server can't be reached, or does not let us in
    │   ├── NotLetIn            4  it answers, and does not let us in
    │   └── PositionHidden      4  another relay's open Kafka transaction hides the position
    ├── SlotLost                5  the slot is gone, was moved by somebody else, lost its WAL, or its server's
    │                              history lacks what was relayed
    ├── DamagedRecording        6  a recording does not match its checksums
    └── Interrupted           130  Ctrl-C

The message is one plain sentence without a full stop; the hint is a sentence for the operator that says
what to do in that case, and every error has one: a type checker finds the one that has none. Neither ever
holds a row value or a password.
"""


class BwtuiError(Exception):
    """An error that is shown as one line, with a hint, and sets the exit code."""

    exit_code = 2

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(BwtuiError):
    """An option or a setting is wrong."""


class RefusedError(BwtuiError):
    """A precondition does not hold, so nothing was started."""


class ServiceRefused(RefusedError):
    """A service answers, and lacks a right or a setting that every row needs: no row is dropped for it."""

    exit_code = 4


class RowError(BwtuiError):
    """One row can't be relayed: what --on-error decides about."""


class StateFailed(BwtuiError):
    """One of the relay's own files can't be read or written."""


class DifferencesFound(BwtuiError):
    """A comparison found differences."""

    exit_code = 1


class Indeterminate(BwtuiError):
    """A comparison could not be decided."""

    exit_code = 3


class ConnectionFailed(BwtuiError):
    """A server can't be reached, or does not let us in."""

    exit_code = 4


class NotLetIn(ConnectionFailed):
    """A server answers, and refuses user, password, certificate or rights: no start waits for that."""


class PositionHidden(ConnectionFailed):
    """Another relay's open Kafka transaction hides the position; its end is waited for."""


class SlotLost(BwtuiError):
    """The replication slot is gone, was moved, or lost its WAL, or its server lacks what was relayed."""

    exit_code = 5
    #: Whether the stream itself said so, which is true whatever the slot looks like afterwards.
    in_stream = False


class DamagedRecording(BwtuiError):
    """A recording does not match its checksums."""

    exit_code = 6


class Interrupted(BwtuiError):
    """The user interrupted the command: what he has ended himself needs no hint, unless something goes on."""

    exit_code = 130

    def __init__(self, message: str = "interrupted", hint: str = "") -> None:
        super().__init__(message, hint)

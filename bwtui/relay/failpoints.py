"""Failpoints: in a test, a relay exits, stops or fails right before or after one of its effects.

``BWTUI_FAILPOINT=before-send:3:kill`` ends the process with SIGKILL when it is about to hand messages to
Kafka for the third time. The relay's code does not know about it: if the variable is set, the function that
has the effect is replaced when the process starts; otherwise this module only reads the variable.
"""

import functools
import importlib
import itertools
import logging
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

from bwtui.errors import ConnectionFailed, UsageError
from bwtui.model.events import event

_log = logging.getLogger(__name__)

VARIABLE = "BWTUI_FAILPOINT"
ACTIONS = ("kill", "stop", "raise")

#: The relay's effects on services and on its own disk, and the function that has each.
EFFECTS: Mapping[str, str] = {
    "publication": "bwtui.source.publication:create",
    "topic": "bwtui.sink.kafka:KafkaService.ensure_topics",
    "schema": "bwtui.encode.registry:SchemaRegistry.register",
    "copy": "bwtui.relay.snapshot.snapshot_copier:SnapshotCopier._flush",
    "slot": "bwtui.source.slot:make_permanent",
    "send": "bwtui.sink.kafka:KafkaSink._hand_over",
    "acknowledge": "bwtui.relay.state.ack:Acknowledgements.advance",
    "state": "bwtui.relay.history.slot_checkpoint:SlotCheckpointStore._write",
    "confirm": "bwtui.source.raw_stream:ReplicationStream.send_status",
    "record": "bwtui.recording.journal:Journal._append",
    "sync": "bwtui.recording.journal:SegmentWriter.sync",
    "finish": "bwtui.recording.journal:SegmentWriter.finish",
    "progress": "bwtui.relay.history.backfill_store:BackfillStore._write",
    "heal": "bwtui.relay.healing.heal:HealStateStore._write",
    "fence": "bwtui.sink.transactions:TransactionalSink.connect",
    "commit": "bwtui.sink.transactions:PendingCommit._commit",
}
#: For functions that are called constantly: whether a call has an effect.
_HAS_EFFECT: Mapping[str, Callable[[Any], bool]] = {
    "acknowledge": lambda acks: bool(acks._spans) and acks._spans[0].sealed and not acks._spans[0].pending,
}
NAMES = tuple(f"{side}-{effect}" for effect in EFFECTS for side in ("before", "after"))


def arm(text: str | None) -> None:
    """Arm the failpoint that ``text`` names, if any: NAME[:NTH]:ACTION. Raises UsageError."""
    if not text:
        return
    name, _, rest = text.partition(":")
    nth, _, action = rest.rpartition(":")
    nth = nth or "1"
    if name not in NAMES or action not in ACTIONS or not nth.isdecimal():
        raise UsageError(
            f"{VARIABLE} is {text!r}, which is not a failpoint", f"unset {VARIABLE}: it is for tests only"
        )
    side, effect = name.split("-")
    module, _, path = EFFECTS[effect].partition(":")
    owner: Any = importlib.import_module(module)
    *classes, function = path.split(".")
    for one in classes:
        owner = getattr(owner, one)
    _log.warning("%s is armed: %s", VARIABLE, text, extra=event("failpoint"))
    hit = _Failpoint(name, int(nth), action)
    setattr(owner, function, _around(getattr(owner, function), hit, side, _HAS_EFFECT.get(effect)))


def _around(
    original: Callable[..., Any], hit: "_Failpoint", side: str, has_effect: Callable[[Any], bool] | None
) -> Callable[..., Any]:
    @functools.wraps(original)
    def instead(*args: Any, **keywords: Any) -> Any:
        counts = has_effect is None or has_effect(args[0])
        if counts and side == "before":
            hit()
        result = original(*args, **keywords)
        if counts and side == "after":
            hit()
        return result

    return instead


class _Failpoint:
    """Counts how often the point was passed, and acts once."""

    def __init__(self, name: str, nth: int, action: str) -> None:
        self._name, self._nth, self._action = name, nth, action
        # The threads of commits and of fsync also pass here.
        self._passed = itertools.count(1)

    def __call__(self) -> None:
        if next(self._passed) != self._nth:
            return
        if self._action == "raise":
            raise _error(self._name)
        os.kill(os.getpid(), signal.SIGKILL if self._action == "kill" else signal.SIGSTOP)


def _error(name: str) -> Exception:
    if name.split("-")[1] in ("record", "sync", "finish"):
        return OSError(28, f"failpoint {name}")
    return ConnectionFailed(f"failpoint {name}", f"unset {VARIABLE}: it is for tests only")

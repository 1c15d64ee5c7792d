"""The objects of a run that all of its processes have: the relay's own, and those of its snapshot workers."""

from collections.abc import Callable
from dataclasses import dataclass, field

from bwtui.relay.rows.policy import RowPolicy
from bwtui.relay.rows.recorder import NullRecorder, Recorder
from bwtui.relay.rows.samples import Samples
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings
from bwtui.sink.destination import Sink, SinkService


@dataclass(slots=True)
class RunContext:
    """One run: its settings, its state, and whether it was asked to stop."""

    settings: RelaySettings
    report: RunState
    #: Identifies this run in the headers of its messages.
    session: bytes
    #: A snapshot worker never stops on request: the engine ends it.
    stop_requested: Callable[[], bool] = bool


@dataclass(slots=True)
class RowOutput:
    """Where rows go: to the sink, the recording and the samples, or to the policy for refused rows."""

    sink: Sink
    service: SinkService
    policy: RowPolicy
    samples: Samples
    recorder: Recorder = field(default_factory=NullRecorder)

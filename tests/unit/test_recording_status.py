"""An idle recording does not grow by what is always the same."""

import dataclasses
import time

import pytest

from bwtui.model.status import Status
from bwtui.relay.recording.as_json import StatusTeller


def test_a_status_is_due_when_it_has_changed_or_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    status = Status("streaming", "shop", "shop")
    teller = StatusTeller()
    assert teller.due() is None
    teller.source = lambda: dataclasses.replace(status, time=now, cpu_seconds=now)
    written = []
    for second in range(121):
        now = 1000.0 + second
        if second == 30:
            status = dataclasses.replace(status, confirmed_lsn=5)
        if teller.due() is not None:
            written.append(second)
    assert written == [0, 30, 90]
    teller.forget()
    now += 1
    assert teller.due() is not None

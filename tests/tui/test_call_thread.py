"""A thread for blocking calls, which lives as long as it is needed."""

import asyncio
import threading

import pytest

from bwtui.tui.audit.records import CallThread
from tests.waiting import eventually


async def test_after_its_end_it_runs_no_call_and_starts_no_thread() -> None:
    asking = CallThread("test of asking")
    assert await asking.make(lambda: 7) == 7
    asking.close()
    calls: list[int] = []
    with pytest.raises(asyncio.CancelledError):
        await asking.make(lambda: calls.append(1))
    assert not calls
    eventually(
        "the thread has ended",
        lambda: all(thread.name != "test of asking" for thread in threading.enumerate()),
    )

"""Textual's behaviour from Python 3.12 on is undone, whichever Python runs the tests."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from textual.pilot import Pilot

from tests.tui.doubles import Stage


async def test_tasks_begin_at_the_loops_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a widget is mounted before its screen is on the stack, which ended the app."""

    def eager(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **more: Any) -> Any:
        return asyncio.Task(coro, loop=loop, **more)

    monkeypatch.setattr(asyncio, "eager_task_factory", eager, raising=False)
    found: list[object] = []

    async def look(pilot: Pilot[Any]) -> None:
        found.append(asyncio.get_running_loop().get_task_factory())
        pilot.app.exit()

    before = asyncio.get_running_loop().get_task_factory()
    try:
        await Stage().app.run_async(headless=True, auto_pilot=look)
    finally:
        asyncio.get_running_loop().set_task_factory(before)
    assert found == [None]

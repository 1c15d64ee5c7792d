"""Make Textual's pilot poll 200 times a second for the end of its app's work.

A pause of the pilot ends when the process did next to nothing between two polls. With Textual's interval of
20 ms, the screens' tests spent more than half of their time in several pauses per key. Also, a process
without CPU time between two polls looks idle although messages are still on their way from widget to widget.
So a pause lasts until no task is ready to run, with a timeout for tasks that never finish.

All apps of a process share the rules that Textual has parsed from their CSS. Otherwise every app parses the
same texts again, which took 38 % of a start (0.17 of 0.45 s of CPU), and as much again for each theme.
"""

import asyncio
import time
from typing import Any

from textual import _wait, app, pilot
from textual.css.stylesheet import Stylesheet

_wait.SLEEP_GRANULARITY = 0.005
_wait_for_idle = _wait.wait_for_idle
_BUSY_SECONDS = 10.0


async def _wait_until_all_has_run(min_sleep: float = 0, max_sleep: float = 1) -> None:
    await _wait_for_idle(min_sleep, max_sleep)
    loop: Any = asyncio.get_running_loop()
    until = time.monotonic() + _BUSY_SECONDS
    while loop._ready and time.monotonic() < until:
        await asyncio.sleep(0)


for module in (_wait, app, pilot):
    module.wait_for_idle = _wait_until_all_has_run  # type: ignore[attr-defined]


_parse_rules = Stylesheet._parse_rules
_parsed: dict[Any, Any] = {}


def _parse_rules_once(stylesheet: Stylesheet, css: str, **more: Any) -> Any:
    # The result also depends on the values of the theme's variables.
    key = (css, *more.values(), frozenset(stylesheet._variables.items()))
    if key not in _parsed:
        _parsed[key] = _parse_rules(stylesheet, css, **more)
    return _parsed[key]


Stylesheet._parse_rules = _parse_rules_once  # type: ignore[method-assign,assignment]

"""How often Python looks for cycles among its objects: rarely, where millions of small ones have none.

After every 700 new objects Python looks through the young ones, and ever so often through all. A relay, a
task that reads Kafka or an audit makes its objects by the thousand, keeps them for a moment, and links none
of them back: looking costs a relay 5 to 10 % of its CPU, and a task that reads Kafka a quarter.
"""

import contextlib
import gc
from collections.abc import Iterator

_RARELY = (100_000, 20, 100)


def look_rarely() -> None:
    """Look rarely from now on."""
    gc.set_threshold(*_RARELY)


@contextlib.contextmanager
def looked_for_rarely() -> Iterator[None]:
    """Look rarely during the block."""
    before = gc.get_threshold()
    look_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*before)


def pass_over_what_is_there() -> None:
    """Never again look through the objects of this moment, such as modules, which end with the process.

    PySpark looks through everything behind every task.
    """
    gc.freeze()

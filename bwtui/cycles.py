"""Run Python's cyclic garbage collector rarely, for programs with millions of small objects without cycles.

After every 700 new objects Python examines the young ones, and from time to time all of them. A relay, a task
that reads Kafka or an audit creates objects by the thousand, keeps them for a moment, and links none of them
back. Collections cost a relay 5 to 10 % of its CPU, and a task that reads Kafka a quarter.
"""

import gc


def collect_rarely() -> None:
    """Collect rarely from now on, in the whole process."""
    gc.set_threshold(100_000, 20, 100)


def collect_rarely_in_worker() -> None:
    """Collect rarely, and never examine the objects that a Spark worker has when its first task begins.

    These are mostly modules, and PySpark collects everything after every task.
    """
    collect_rarely()
    # Only once: frozen objects are never freed, and a later call would freeze the garbage of an earlier task.
    if not gc.get_freeze_count():
        gc.freeze()

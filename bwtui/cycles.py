"""How often Python looks for cycles among its objects: rarely, where millions of small ones have none.

After every 700 new objects Python looks through the young ones, and ever so often through all. A relay, a
task that reads Kafka or an audit makes its objects by the thousand, keeps them for a moment, and links none
of them back: looking costs a relay 5 to 10 % of its CPU, and a task that reads Kafka a quarter.
"""

import gc


def look_rarely() -> None:
    """Look rarely from now on, in the whole process."""
    gc.set_threshold(100_000, 20, 100)


def look_rarely_in_a_worker() -> None:
    """Look rarely, and never through what a worker of Spark has when its first task begins.

    That is modules above all, and PySpark looks through everything behind every task.
    """
    look_rarely()
    # Just once: what is frozen is never freed, and a later task may find the garbage of an earlier one.
    if not gc.get_freeze_count():
        gc.freeze()

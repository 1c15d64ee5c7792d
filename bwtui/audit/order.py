"""Find the records of a key that came too late: those outside a longest increasing subsequence."""

from bisect import bisect_left
from collections.abc import Sequence


def late(numbers: Sequence[int]) -> list[int]:
    """Return the indexes of ``numbers`` outside a longest increasing subsequence.

    ``numbers`` are distinct. Of several longest ones, it takes the one that keeps the earliest elements, so
    of two that changed places the later one is late.
    """
    ending = _longest_ending(numbers)
    # Reversed and negated, the sequence increases again.
    starting = _longest_ending([-number for number in reversed(numbers)])[::-1]
    longest = max(ending, default=0)
    outside = []
    level, last = 1, None
    for index, number in enumerate(numbers):
        is_on = ending[index] == level and ending[index] + starting[index] == longest + 1
        if is_on and (last is None or number > last):
            level, last = level + 1, number
        else:
            outside.append(index)
    return outside


def _longest_ending(numbers: Sequence[int]) -> list[int]:
    """Return the length of the longest increasing subsequence that ends with each number."""
    tails: list[int] = []
    lengths = []
    for number in numbers:
        at = bisect_left(tails, number)
        if at == len(tails):
            tails.append(number)
        else:
            tails[at] = number
        lengths.append(at + 1)
    return lengths

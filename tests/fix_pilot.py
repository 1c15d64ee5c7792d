"""Textual's pilot looks for the end of its app's work 200 times a second, not 50 times.

A pause of the pilot ends when the process did next to nothing between two looks. At 20 ms each the screens'
tests spent more than half of their time so, several pauses a key.
"""

from textual import _wait

_wait.SLEEP_GRANULARITY = 0.005

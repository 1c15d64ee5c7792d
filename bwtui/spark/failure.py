"""What is said when a Spark job fails: one plain sentence, taken out of pages of stack traces.

An error of ours that is raised in a task goes through Java as text. `in_task` puts it into a form that
`plain` finds again in whatever Spark makes of it, with its kind, and so with its exit code.
"""

import contextlib
import functools
import json
import re
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import TaskContext
from pyspark.errors import PySparkException

from bwtui import errors
from bwtui.cycles import look_rarely_in_a_worker
from bwtui.errors import BwtuiError

#: What Spark raises; whatever else comes out of a job is our own.
SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError)

_BEGIN, _END = "bwtui-error:", ":rorre-iutwb"
_MARKED = re.compile(re.escape(_BEGIN) + r"(\{.*?\})" + re.escape(_END), re.DOTALL)
_CAUSE = re.compile(
    r"^(?:Caused by: |: )?((?:[a-z_0-9]+\.)+[A-Z]\w*(?:Error|Exception)\w*)(?:: (.*))?$", re.MULTILINE
)
_PYTHON_PLACE = re.compile(r'File "[^"]*?(bwtui/[^"]+)", line (\d+)')
_PYTHON_KIND = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt))\b", re.MULTILINE)
_MEMORY = "give Spark more memory, or let it work on fewer partitions at a time"

P = ParamSpec("P")
R = TypeVar("R")


class TaskFailed(Exception):
    """An error of ours on its way from a task to the driver."""

    def __init__(self, error: BwtuiError) -> None:
        message = json.dumps([type(error).__name__, error.message, error.hint])
        super().__init__(f'{_BEGIN}{{"error": {message}}}{_END}')


def in_task(function: Callable[P, Iterator[R]]) -> Callable[P, Iterator[R]]:
    """Let errors of ours out of a task's generator in a form that survives Java; look rarely for cycles."""

    @functools.wraps(function)
    def carried(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        try:
            if TaskContext.get() is not None:
                look_rarely_in_a_worker()
            yield from function(*args, **kwargs)
        except BwtuiError as error:
            raise TaskFailed(error) from None

    return carried


@contextlib.contextmanager
def plain_errors(ended: Callable[[], int | None] = lambda: None) -> Iterator[None]:
    """Turn what Spark raises in the block into one of our errors; see `plain`."""
    try:
        yield
    except SPARK_ERRORS as error:
        if _is_interrupted(error):
            # What PySpark calls on its way out of an interrupted job fails, and would hide the interrupt.
            raise KeyboardInterrupt from error
        raise plain(error, ended()) from error


def _is_interrupted(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def plain(error: BaseException, ended: int | None = None) -> BwtuiError:
    """Return what to tell of an exception that came out of Spark.

    ``ended`` is how its Java process ended, if it did. No text of an unexpected Python exception is told:
    it may hold a row's value.
    """
    text = str(error)
    marked = _MARKED.search(text)
    if marked:
        return _unmarked(marked[1])
    if "OutOfMemoryError" in text:
        return BwtuiError("Spark ran out of memory", _MEMORY)
    if ended is not None or isinstance(error, (Py4JNetworkError, ConnectionError)):
        how = f" by signal {-ended}" if ended is not None and ended < 0 else ""
        return BwtuiError(f"Spark's Java process was ended{how} in the middle of its work", _MEMORY)
    return BwtuiError(f"Spark failed: {_reason(text)}", _help_for(text))


def _help_for(text: str) -> str:
    if "No space left on device" in text:
        return "free some space where Spark works: the folder of TMPDIR, or /tmp"
    if "Traceback (most recent call last)" in text:
        return "this is a bug in bwtui; please report it with these two lines"
    return "run it again; if it repeats, with another --spark-master, where the executors' logs say more"


def _unmarked(text: str) -> BwtuiError:
    kind, message, hint = json.loads(text)["error"]
    made = getattr(errors, kind, BwtuiError)
    assert issubclass(made, BwtuiError)
    error: BwtuiError = made(message, hint)
    return error


def _reason(text: str) -> str:
    if "Traceback (most recent call last)" in text:
        return _python_reason(text)
    causes = _CAUSE.findall(text)
    if causes:
        kind, message = map(str, causes[-1])
        return (message or kind.rpartition(".")[2]).strip()
    first = next((line.strip() for line in text.splitlines() if line.strip()), "it gave no reason")
    return re.sub(r"^\[[A-Z_.]+\] | SQLSTATE: \w+$", "", first)


def _python_reason(text: str) -> str:
    kinds, places = _PYTHON_KIND.findall(text), _PYTHON_PLACE.findall(text)
    place = ":".join(places[-1]) if places else "an unknown place"
    return f"unexpected {kinds[-1] if kinds else 'exception'} at {place}"

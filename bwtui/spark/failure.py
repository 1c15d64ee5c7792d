"""Errors of a failed Spark job: one plain sentence, extracted from pages of stack traces.

Java passes on a bwtui error raised in a task as text. `in_task` encodes it so that `plain` finds it in any of
Spark's errors, with its class and thus its exit code.
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
from bwtui.cycles import collect_rarely_in_worker
from bwtui.errors import BwtuiError

#: Spark's exceptions; all other exceptions from a job are bwtui's own.
SPARK_ERRORS = (PySparkException, Py4JError, ConnectionError)

_BEGIN, _END = "bwtui-error:", ":rorre-iutwb"
_MARKED = re.compile(re.escape(_BEGIN) + r"(\{.*?\})" + re.escape(_END), re.DOTALL)
_CAUSE = re.compile(
    r"^(?:Caused by: |: )?((?:[a-z_0-9]+\.)+[A-Z]\w*(?:Error|Exception)\w*)(?:: (.*))?$", re.MULTILINE
)
_PYTHON_PLACE = re.compile(r'File "[^"]*?(bwtui/[^"]+)", line (\d+)')
_PYTHON_KIND = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt))\b", re.MULTILINE)
_MEMORY = "give Spark more memory, or fewer cores with --spark-master 'local[N]'"

P = ParamSpec("P")
R = TypeVar("R")


class TaskFailed(Exception):
    """A bwtui error on its way from a task to the driver."""

    def __init__(self, error: BwtuiError) -> None:
        message = json.dumps([type(error).__name__, error.message, error.hint])
        super().__init__(f'{_BEGIN}{{"error": {message}}}{_END}')


def in_task(function: Callable[P, Iterator[R]]) -> Callable[P, Iterator[R]]:
    """Raise bwtui errors from a task's generator in a form that survives Java; collect cycles rarely."""

    @functools.wraps(function)
    def carried(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        try:
            if TaskContext.get() is not None:
                collect_rarely_in_worker()
            yield from function(*args, **kwargs)
        except BwtuiError as error:
            raise TaskFailed(error) from None

    return carried


@contextlib.contextmanager
def plain_errors(ended: Callable[[], int | None] = lambda: None) -> Iterator[None]:
    """Convert Spark's exceptions in the block to bwtui errors (see `plain`)."""
    try:
        yield
    except SPARK_ERRORS as error:
        if _is_interrupted(error):
            # After an interrupt, PySpark's own cleanup fails, and its error would hide the interrupt.
            raise KeyboardInterrupt from error
        raise plain(error, ended()) from error


def _is_interrupted(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def plain(error: BaseException, ended: int | None = None) -> BwtuiError:
    """Return the bwtui error for an exception from Spark.

    ``ended`` is the exit status of its Java process, if it has ended. The text of an unexpected Python
    exception is never included: it may contain a row's value.
    """
    text = str(error)
    marked = _MARKED.search(text)
    if marked:
        return _unmarked(marked[1])
    if "OutOfMemoryError" in text:
        return BwtuiError("Spark ran out of memory", _MEMORY)
    if ended is not None or isinstance(error, (Py4JNetworkError, ConnectionError)):
        how = f" by signal {-ended}" if ended is not None and ended < 0 else ""
        return BwtuiError(f"Spark's Java process was terminated{how} during a job", _MEMORY)
    return BwtuiError(f"Spark failed: {_reason(text)}", _help_for(text))


def _help_for(text: str) -> str:
    if "No space left on device" in text:
        return "free space in Spark's temporary folder: TMPDIR, or /tmp"
    if "Traceback (most recent call last)" in text:
        return "this is a bug in bwtui; please report it with these two lines"
    return "run it again; if it fails again, the logs of Spark's executors have more details"


def _unmarked(text: str) -> BwtuiError:
    kind, message, hint = json.loads(text)["error"]
    error_class = getattr(errors, kind, BwtuiError)
    assert issubclass(error_class, BwtuiError)
    error: BwtuiError = error_class(message, hint)
    return error


def _reason(text: str) -> str:
    if "Traceback (most recent call last)" in text:
        return _python_reason(text)
    causes = _CAUSE.findall(text)
    if causes:
        kind, message = map(str, causes[-1])
        return (message or kind.rpartition(".")[2]).strip()
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    return re.sub(r"^\[[A-Z_.]+\] | SQLSTATE: \w+$", "", first)


def _python_reason(text: str) -> str:
    kinds, places = _PYTHON_KIND.findall(text), _PYTHON_PLACE.findall(text)
    place = ":".join(places[-1]) if places else "an unknown place"
    return f"unexpected {kinds[-1] if kinds else 'exception'} at {place}"

"""What is said of an exception that nobody foresaw.

Its text may hold anything, a row value or a password too, so only its kind and its place are told.
"""

import traceback
from pathlib import Path

from bwtui.errors import BwtuiError
from bwtui.file_errors import unexplained

_PACKAGE = Path(__file__).parent


def crash(error: BaseException) -> BwtuiError:
    """Return what to tell of an exception that nobody explained.

    That is the system's word on a file of the user's, or else the exception's kind and place, and no more.
    """
    return unexplained(error) or BwtuiError(
        f"unexpected {type(error).__name__} at {_place(error)}",
        "this is a bug in bwtui; please report it with these two lines",
    )


def frames(error: BaseException) -> str:
    """Return the traceback without any exception's text, for a log."""
    return "".join(traceback.format_list(traceback.extract_tb(error.__traceback__))) + type(error).__name__


def _place(error: BaseException) -> str:
    ours = [f for f in traceback.extract_tb(error.__traceback__) if _PACKAGE in Path(f.filename).parents]
    if not ours:
        return "an unknown place"
    return f"{Path(ours[-1].filename).relative_to(_PACKAGE.parent)}:{ours[-1].lineno}"

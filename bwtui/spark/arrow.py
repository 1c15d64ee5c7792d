"""pyarrow without pandas, which it would import for nothing."""

import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa


def leave_pandas_out() -> None:
    """Have pyarrow find no pandas in this process, for which it looks at the first array that it makes.

    It asks whether the values are a series, which to know costs it 0.35 s of CPU. What does need pandas, in
    pyarrow, too, imports it as before.
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
    """Asked before all others; finds nothing, and ends the search for pandas."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not looked for", name=fullname)

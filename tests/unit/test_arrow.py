"""pyarrow runs without pandas where requested, and has it where it is needed."""

import subprocess
import sys

_SCRIPT = """
import sys
import pyarrow as pa
from bwtui.spark.arrow import leave_pandas_out

finders = list(sys.meta_path)
leave_pandas_out()
assert sys.meta_path == finders
table = pa.table({"number": [1, 2], "text": pa.array(["a", None], pa.string())})
table["number"].to_numpy(), table.to_pylist()
print("pandas" in sys.modules)
print(list(table.to_pandas()["number"]), "pandas" in sys.modules)
"""


def test_pandas_is_imported_where_it_is_needed_only() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _SCRIPT], check=False, capture_output=True, text=True, timeout=60
    )
    assert (ended.stdout.splitlines(), ended.stderr) == (["False", "[1, 2] True"], "")

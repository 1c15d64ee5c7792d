"""Build the C extension of packaging/compiled for the tests, from the same source as its installation."""

import fcntl
import functools
import hashlib
import importlib.util
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

_ROOT = Path(__file__).parents[1]
SOURCE = _ROOT / "packaging" / "compiled" / "bwtui_compiled.c"
#: The compiler that Python was built with, or cc; empty if there is none, since it is optional.
COMPILER = next(
    (
        command
        for command in (shlex.split(sysconfig.get_config_var("CC") or ""), ["cc"])
        if command
        and shutil.which(command[0])
        and (Path(sysconfig.get_path("include")) / "Python.h").exists()
    ),
    [],
)


_OPTIONS = (
    *("-O2", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers", "-shared", "-fPIC"),
    f"-I{sysconfig.get_path('include')}",
)


@functools.cache
def built() -> ModuleType:
    """Return the package; compiler warnings are errors."""
    spec = importlib.util.spec_from_file_location("bwtui_compiled", _compiled())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compiled() -> Path:
    """Compile the source, once for all processes of a run and until it changes."""
    folder = _ROOT / ".pytest_cache" / "compiled"
    folder.mkdir(parents=True, exist_ok=True)
    made_of = repr((SOURCE.read_bytes(), COMPILER, _OPTIONS, sys.version))
    file = folder / f"{hashlib.sha256(made_of.encode()).hexdigest()}.so"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            unfinished = folder / "unfinished.so"
            subprocess.run([*COMPILER, *_OPTIONS, str(SOURCE), "-o", str(unfinished)], check=True)
            unfinished.replace(file)
    return file

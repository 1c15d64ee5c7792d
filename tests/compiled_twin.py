"""The package of packaging/compiled, built for the tests from its one source, as its installation does."""

import functools
import importlib.util
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType

SOURCE = Path(__file__).parents[1] / "packaging" / "compiled" / "bwtui_compiled.c"
#: What Python itself was built with, or what is called cc; empty where there is none, and nobody needs any.
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


@functools.cache
def built() -> ModuleType:
    """Return the package; every warning of the compiler is an error."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "bwtui_compiled.so"
        options = [
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-missing-field-initializers",
            "-shared",
            "-fPIC",
        ]
        include = f"-I{sysconfig.get_path('include')}"
        subprocess.run([*COMPILER, *options, include, str(SOURCE), "-o", str(file)], check=True)
        spec = importlib.util.spec_from_file_location("bwtui_compiled", file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

"""Fetch artifacts by their coordinates with Apache Ivy, which is part of pyspark.

Spark itself uses Ivy for `spark.jars.packages`, so a company's mirror is configured in the same way: in
`~/.ivy2/ivysettings.xml`, or in the file that BWTUI_IVY_SETTINGS names. Without either, Ivy's public registry
is used, without reading POMs: the lock already lists every file.
"""

import importlib.util
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from xml.sax.saxutils import quoteattr

from bwtui.crash import packages_needed
from bwtui.errors import BwtuiError, ConnectionFailed, UsageError
from bwtui.packages import java

#: Seconds without a new byte after which a download counts as stuck.
STALL_SECONDS = 60.0
POLL_SECONDS = 0.2

OWN_SERVICES_HINT = (
    "Configure a mirror in ~/.ivy2/ivysettings.xml or BWTUI_IVY_SETTINGS, or use services of "
    "your own with -d, -b and -r, or BWTUI_POSTGRES, BWTUI_BROKER and BWTUI_SCHEMA_REGISTRY."
)

# No host name: "ibiblio" is Ivy's own name for the public Maven registry.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="public"/>
  <resolvers>
    <ibiblio name="public" m2compatible="true" {extra}/>
  </resolvers>
</ivysettings>
"""
_WITHOUT_POMS = 'usepoms="false" useMavenMetadata="false"'


def retrieve(
    ivy_xml: str, pattern: str, cache: Path, fetched: Callable[[int], None], poms: bool = False
) -> None:
    """Run Ivy on a module description, copying its artifacts to `pattern` (in Ivy's notation).

    `cache` is bwtui's cache folder. `fetched` is called a few times a second with the number of bytes
    received. Raises ConnectionFailed when no registry answers or it lacks a file, UsageError when the
    settings file is missing.
    """
    work = cache / "ivy"
    work.mkdir(parents=True, exist_ok=True)
    (work / "ivy.xml").write_text(ivy_xml)
    log = work / "ivy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            _command(work, cache, pattern, poms), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            _watch(process, work, fetched)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if process.returncode != 0:
        raise _failure(log)


def _command(work: Path, cache: Path, pattern: str, poms: bool) -> list[str]:
    settings = _user_settings()
    if settings is None:
        settings = work / "ivysettings.xml"
        settings.write_text(_SETTINGS.format(extra="" if poms else _WITHOUT_POMS))
    return [
        str(java.java_binary()),
        *java.download_options(cache),
        # Otherwise, a network that drops packets delays each of the files for minutes.
        "-Dsun.net.client.defaultConnectTimeout=10000",
        "-jar",
        str(_ivy_jar()),
        *("-settings", str(settings)),
        *("-cache", str(work / "cache")),
        *("-ivy", str(work / "ivy.xml")),
        *("-retrieve", pattern),
    ]


def _user_settings() -> Path | None:
    named = os.environ.get("BWTUI_IVY_SETTINGS")
    if named:
        path = Path(named).expanduser()
        if not path.is_file():
            raise UsageError(
                f"BWTUI_IVY_SETTINGS names {path}, which is not a file",
                "set it to the path of an ivysettings.xml, or unset it",
            )
        return path
    usual = Path("~/.ivy2/ivysettings.xml").expanduser()
    return usual if usual.is_file() else None


def _ivy_jar() -> Path:
    # find_spec does not import pyspark, which would take most of a second.
    with packages_needed():
        spec = importlib.util.find_spec("pyspark")
        if spec is None:
            raise ModuleNotFoundError("pyspark", name="pyspark")
    folders = spec.submodule_search_locations or []
    for folder in folders:
        for jar in sorted(Path(folder).glob("jars/ivy-*.jar")):
            return jar
    raise BwtuiError("pyspark's Ivy is missing", "Install bwtui again, with its dependencies.")


def _watch(process: subprocess.Popen[bytes], work: Path, fetched: Callable[[int], None]) -> None:
    last, since = -1, time.monotonic()
    while process.poll() is None:
        size = sum(_sizes(work / "cache"))
        if size != last:
            last, since = size, time.monotonic()
            fetched(size)
        elif time.monotonic() - since > STALL_SECONDS:
            raise ConnectionFailed(
                f"the package registry sent nothing for {STALL_SECONDS:.0f} seconds", OWN_SERVICES_HINT
            )
        try:
            process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue


def _sizes(folder: Path) -> Iterator[int]:
    for path in folder.glob("*/*/*s/*"):
        try:
            yield path.stat().st_size
        except FileNotFoundError:
            # Ivy has just renamed it from its .part name; the next poll includes it.
            continue


def _failure(log: Path) -> BwtuiError:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    refused = next(_causes(lines), None)
    if refused is not None:
        return ConnectionFailed(f"no package registry can be reached ({refused})", OWN_SERVICES_HINT)
    missing = [
        line.removeprefix(":: ").removesuffix(": not found") for line in lines if line.endswith(": not found")
    ]
    if missing:
        return ConnectionFailed(f"the package registry does not have {missing[0]}", OWN_SERVICES_HINT)
    return ConnectionFailed(f"the package registry can't be used: see {log}", OWN_SERVICES_HINT)


def _causes(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if "Server access error" in line and "(" in line:
            # "…at url https://… (java.net.ConnectException: Connection refused)"
            yield line.rpartition(" (")[2].rstrip(")").rpartition("Exception: ")[2]


def module(configurations: Iterable[str], dependencies: Iterable[str]) -> str:
    """Return the text of an ivy.xml."""
    confs = "".join(f"<conf name={quoteattr(conf)}/>" for conf in configurations)
    return (
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        f'<info organisation="bwtui" module="sandbox"/><configurations>{confs}</configurations>'
        f"<dependencies>{''.join(dependencies)}</dependencies></ivy-module>"
    )


def dependency(org: str, name: str, rev: str, conf: str, ext: str = "jar", classifier: str = "") -> str:
    """Return one <dependency> of an ivy.xml, without transitive dependencies."""
    return (
        f"<dependency org={quoteattr(org)} name={quoteattr(name)} rev={quoteattr(rev)} "
        f'conf={quoteattr(conf + "->default")} transitive="false">'
        f"<artifact name={quoteattr(name)} type={quoteattr(ext)} ext={quoteattr(ext)}"
        + (f" m:classifier={quoteattr(classifier)}" if classifier else "")
        + "/></dependency>"
    )

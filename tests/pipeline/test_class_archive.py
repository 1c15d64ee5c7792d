"""The archive of Spark's classes is made once, used then, and never in the way."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bwtui.packages.java import java_binary
from bwtui.spark.class_archive import ClassArchive
from bwtui.spark.java import spark_java


@pytest.mark.parametrize("find", [spark_java, java_binary])
def test_it_is_made_once_and_used_then(
    find: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWTUI_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("BWTUI_SPARK_ARCHIVE", raising=False)
    java = find()
    making, beside = ClassArchive(java), ClassArchive(java)
    options = making.options()
    assert any("ArchiveClassesAtExit" in option for option in options)
    assert beside.options() == [], "one session makes it, the others do without"
    _run(java, *options)
    making.keep()
    using = ClassArchive(java).options()
    assert len(using) == 1 and using[0].startswith("-XX:SharedArchiveFile=")
    # Shared classes are demanded, so Java would not start if it could not use the archive.
    _run(java, *using, "-Xshare:on")
    assert list(tmp_path.rglob("*.partial")) == []


def test_a_session_that_failed_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BWTUI_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("BWTUI_SPARK_ARCHIVE", raising=False)
    java = spark_java()
    failed = ClassArchive(java)
    (option,) = [one for one in failed.options() if "AtExit" in one]
    Path(option.partition("=")[2]).touch()
    failed.forget()
    again = ClassArchive(java)
    assert any("ArchiveClassesAtExit" in option for option in again.options())
    again.forget()
    assert list(tmp_path.rglob("*.jsa")) == list(tmp_path.rglob("java.jsa"))


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BWTUI_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("BWTUI_SPARK_ARCHIVE", "off")
    assert ClassArchive(spark_java()).options() == []
    monkeypatch.delenv("BWTUI_SPARK_ARCHIVE")
    monkeypatch.setenv("BWTUI_CACHE_HOME", "/proc/nowhere")
    assert ClassArchive(spark_java()).options() == []


def _run(java: Path, *options: str) -> None:
    subprocess.run([str(java), *options, "-XX:+IgnoreUnrecognizedVMOptions", "-version"], check=True)

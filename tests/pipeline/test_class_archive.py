"""The archive of a program's classes is created once, used afterwards, and never an obstacle."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from bwtui.packages.class_archive import ClassArchive
from bwtui.packages.java import java_binary
from bwtui.spark.session import class_archive, spark_java


@pytest.mark.parametrize("find", [spark_java, java_binary])
def test_it_is_made_once_and_used_then(
    find: Callable[[], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BWTUI_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("BWTUI_CLASS_ARCHIVE", raising=False)
    java = find()
    making, beside = class_archive(java), class_archive(java)
    options = making.options()
    assert any("ArchiveClassesAtExit" in option for option in options)
    assert beside.options() == [], "one session makes it, the others do without"
    _run(java, *options)
    making.keep(0)
    using = class_archive(java).options()
    assert len(using) == 1 and using[0].startswith("-XX:SharedArchiveFile=")
    # Shared classes are required, so Java would not start if it could not use the archive.
    _run(java, *using, "-Xshare:on")
    assert list(tmp_path.rglob("*.partial")) == []


def test_several_may_make_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BWTUI_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("BWTUI_CLASS_ARCHIVE", raising=False)
    java, jar = java_binary(), tmp_path / "some.jar"
    jar.touch()
    unused, used = tmp_path / "cache" / "some-classes-1", tmp_path / "cache" / "some-classes-2"
    for folder in (unused, used):
        folder.mkdir(parents=True)
    os.utime(unused, (1, 1))
    making = [ClassArchive(java, "some", [jar], by_one=False) for _ in range(3)]
    options = [one.options() for one in making]
    assert all(any("ArchiveClassesAtExit" in option for option in of_one) for of_one in options)
    _run(java, *options[0])
    _run(java, *options[1])
    for one in making:
        # The third was killed, and has left nothing.
        one.keep(143)
    assert making[2].exists and making[2].exit_seconds == 0.0
    _run(java, *ClassArchive(java, "some", [jar]).options(), "-Xshare:on")
    assert list(tmp_path.rglob("*.partial")) == []
    assert not unused.exists() and used.exists()
    os.utime(jar, ns=(1, 1))
    assert not ClassArchive(java, "some", [jar]).exists, "another program has another one"


def test_a_session_that_failed_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BWTUI_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("BWTUI_CLASS_ARCHIVE", raising=False)
    java = spark_java()
    failed = class_archive(java)
    for end in (failed.forget, lambda: failed.keep(-signal.SIGKILL)):
        (option,) = [one for one in failed.options() if "AtExit" in one]
        Path(option.partition("=")[2]).touch()
        end()
    again = class_archive(java)
    assert any("ArchiveClassesAtExit" in option for option in again.options())
    again.forget()
    assert list(tmp_path.rglob("*.jsa")) == list(tmp_path.rglob("java.jsa"))


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BWTUI_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("BWTUI_CLASS_ARCHIVE", "off")
    assert class_archive(spark_java()).options() == []
    monkeypatch.delenv("BWTUI_CLASS_ARCHIVE")
    monkeypatch.setenv("BWTUI_CACHE_HOME", "/proc/nowhere")
    assert class_archive(spark_java()).options() == []


def _run(java: Path, *options: str) -> None:
    subprocess.run([str(java), *options, "-XX:+IgnoreUnrecognizedVMOptions", "-version"], check=True)

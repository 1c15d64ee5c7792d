"""The versions of a subject, read step by step for the screens from a slow or unavailable registry."""

import json
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from bwtui.encode.registry import SchemaRegistry, StoredVersion
from bwtui.errors import ConnectionFailed
from bwtui.model.service_views import CHANGES, NEWEST, SubjectVersions
from bwtui.relay.serving import service_views
from bwtui.relay.serving.service_views import SubjectViews
from tests.waiting import eventually


def schema(*names: str) -> str:
    fields = [{"name": name, "type": ["null", "long"], "default": None} for name in names]
    return json.dumps({"type": "record", "name": "Value", "fields": fields})


class Registry:
    """Holds versions of one subject, and answers when the test allows it."""

    def __init__(self, *texts: str) -> None:
        self.texts = dict(enumerate(texts, 1))
        self.deleted: set[int] = set()
        self.hidden: set[int] = set()
        self.asked: list[int] = []
        self.answers = threading.Event()
        self.answers.set()
        self.failure: Exception | None = None
        self.opened = self.closed = 0

    def open(self) -> SchemaRegistry:
        self.opened += 1
        return cast(SchemaRegistry, self)

    def close(self) -> None:
        self.closed += 1

    def versions(self, subject: str) -> dict[int, bool]:
        assert self.answers.wait(60)
        if self.failure is not None:
            raise self.failure
        return {number: number in self.deleted for number in self.texts}

    def level(self, subject: str) -> str:
        return "BACKWARD"

    def version(self, subject: str, number: int) -> StoredVersion | None:
        self.asked.append(number)
        if number in self.hidden:
            return None
        return StoredVersion(100 + number, self.texts[number], 1e9 + number if number == 1 else None)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_views, "_PAUSE_SECONDS", 0.01)


@pytest.fixture
def registry() -> Registry:
    return Registry(schema("a"), schema("a", "b"), schema("b", "c"))


@pytest.fixture
def subjects(registry: Registry) -> Iterator[SubjectViews]:
    found = SubjectViews(registry.open)
    yield found
    found.stop()


def until(subjects: SubjectViews, condition: Any, *about: str) -> SubjectVersions:
    """Poll as a screen does, until the condition holds."""

    def ask() -> SubjectVersions | None:
        answer = subjects.latest(("s", *about))
        return answer if condition(answer) else None

    return eventually("the subject is as awaited", ask)


def test_the_newest_two_come_with_their_texts_and_all_with_what_they_changed(
    subjects: SubjectViews, registry: Registry
) -> None:
    assert subjects.latest(("s", CHANGES, NEWEST)) == SubjectVersions(name="s")
    seen = until(
        subjects,
        lambda it: it.versions and all(one.id is not None for one in it.versions),
        CHANGES,
        NEWEST,
    )
    assert (seen.level, seen.failure, seen.notes) == ("BACKWARD", "", ())
    assert [one.version for one in seen.versions] == [1, 2, 3]
    assert [(one.added, one.removed, one.changed) for one in seen.versions[1:]] == [(1, 0, 0), (1, 1, 0)]
    first = seen.versions[0]
    assert (first.id, first.registered, first.fields, first.added) == (101, 1e9 + 1, 1, None)
    assert {text.version: text.schema for text in seen.texts} == {2: registry.texts[2], 3: registry.texts[3]}
    # Nothing is read twice.
    assert sorted(registry.asked) == [1, 2, 3]
    seen = until(subjects, lambda it: len(it.texts) == 1 and it.texts[0].version == 1, CHANGES, "1")
    assert registry.asked.count(1) <= 2


def test_without_need_only_the_level_and_the_numbers_are_asked(
    subjects: SubjectViews, registry: Registry
) -> None:
    seen = until(subjects, lambda it: it.time)
    assert [one.version for one in seen.versions] == [1, 2, 3]
    assert (seen.texts, registry.asked) == ((), [])


def test_deleted_versions_are_no_newest_ones(subjects: SubjectViews, registry: Registry) -> None:
    registry.deleted = {3}
    seen = until(subjects, lambda it: len(it.texts) == 2, NEWEST)
    assert [one.is_deleted for one in seen.versions] == [False, False, True]
    assert [text.version for text in seen.texts] == [1, 2]


def test_a_version_that_is_not_given_is_named_and_asked_for_once(
    subjects: SubjectViews, registry: Registry
) -> None:
    registry.hidden = {2}
    seen = until(subjects, lambda it: it.notes and it.versions[0].id, CHANGES, "2", "3")
    assert len(seen.notes) == 1 and "version 2 " in seen.notes[0]
    assert [text.version for text in seen.texts] == [3]
    assert registry.asked.count(2) == 1


def test_a_registry_that_hangs_holds_nobody_up_and_its_failure_is_told(
    subjects: SubjectViews, registry: Registry
) -> None:
    until(subjects, lambda it: it.time, NEWEST)
    registry.answers.clear()
    # The last answer is returned immediately.
    assert subjects.latest(("s", NEWEST)).level == "BACKWARD"
    registry.failure = ConnectionFailed("can't reach the schema registry at r: timed out", "check it")
    registry.answers.set()
    seen = until(subjects, lambda it: it.failure, NEWEST)
    assert seen.failure == "can't reach the schema registry at r: timed out"
    assert [one.version for one in seen.versions] == [1, 2, 3]
    registry.failure = None
    until(subjects, lambda it: not it.failure, NEWEST)


def test_a_subject_that_is_not_there_says_so(subjects: SubjectViews, registry: Registry) -> None:
    registry.texts = {}
    seen = until(subjects, lambda it: it.failure, NEWEST)
    assert seen.failure.endswith("no version of s")


def test_who_asks_no_registry_says_so() -> None:
    subjects = SubjectViews(lambda: None)
    try:
        seen = until(subjects, lambda it: it.failure, NEWEST)
        assert seen.failure == "this relay uses no schema registry"
        assert subjects.latest(()) == SubjectVersions()
    finally:
        subjects.stop()


def test_nobody_looks_and_nothing_stays_open(
    subjects: SubjectViews, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_views, "ATTENTION_SECONDS", 0.1)
    monkeypatch.setattr("bwtui.relay.serving.service_views.ATTENTION_SECONDS", 0.1)
    until(subjects, lambda it: it.time, NEWEST)
    eventually("it hangs up", lambda: registry.closed == registry.opened == 1)
    # The next answer does not show the outdated data.
    assert subjects.latest(("s", NEWEST)) == SubjectVersions(name="s")


def test_two_hundred_versions_of_wide_tables_show_the_newest_first() -> None:
    wide = [f"column_{number}" for number in range(600)]
    registry = Registry(*(schema(*wide[: 400 + number]) for number in range(200)))
    subjects = SubjectViews(registry.open)
    try:
        seen = until(subjects, lambda it: len(it.texts) == 2, CHANGES, NEWEST)
        assert [text.version for text in seen.texts] == [199, 200]
        assert len(registry.asked) < 20
        seen = until(subjects, lambda it: it.versions[150].added is not None, CHANGES, NEWEST)
        assert (seen.versions[199].fields, seen.versions[199].added) == (599, 1)
        assert seen.versions[0].id is None
    finally:
        subjects.stop()


def test_more_versions_than_anybody_reads_are_cut_and_that_is_said() -> None:
    registry = Registry(*(schema(f"a{number}") for number in range(320)))
    subjects = SubjectViews(registry.open)
    try:
        seen = until(subjects, lambda it: it.time)
        assert [seen.versions[0].version, len(seen.versions)] == [21, 300]
        assert len(seen.notes) == 1 and "300 of 320 versions" in seen.notes[0]
    finally:
        subjects.stop()


@pytest.mark.parametrize("text", ["{", '{"type": "enum", "name": "e", "symbols": []}', "[]", '{"fields": 5}'])
def test_what_is_no_record_has_no_changes(text: str) -> None:
    registry = Registry(schema("a"), text)
    subjects = SubjectViews(registry.open)
    try:
        seen = until(subjects, lambda it: it.versions and all(one.id for one in it.versions), CHANGES, NEWEST)
        assert seen.versions[1].added is None
        assert seen.failure == ""
    finally:
        subjects.stop()

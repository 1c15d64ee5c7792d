"""The versions of requested subjects, read from the schema registry step by step.

First the list of versions and the compatibility level, then the requested texts, then the remaining texts, to
find what each version changed. A version is cached while a client requests its subject: it never changes.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from bwtui.encode.registry import SchemaRegistry
from bwtui.encode.schema_differences import differences
from bwtui.errors import BwtuiError
from bwtui.model.service_views import CHANGES, NEWEST, SubjectVersions, VersionEntry, VersionText
from bwtui.relay.process.on_demand_poller import ATTENTION_SECONDS, OnDemandPoller

#: Maximum number of versions per subject, newest first; few subjects have as many.
_MOST = 300
#: Maximum number of unreadable versions that a note lists.
_NOTES = 3
#: Maximum number of texts kept from comparisons, in addition to the requested ones.
_TEXTS_KEPT = 4
#: After comparing large schemas, pause for this many times as long as it took, to leave the CPU to the relay.
_REST = 4.0
#: Maximum seconds between two polls, so that no answer gets old enough to be marked as old.
_MOST_REST = 5.0


class SubjectViews:
    """Any thread may request a subject; one thread polls while there are requests."""

    def __init__(self, open_registry: Callable[[], SchemaRegistry | None]) -> None:
        """``open_registry`` opens a connection for each polling period; None if there is no registry."""
        self._open = open_registry
        self._registry: SchemaRegistry | None = None
        self._lock = threading.Lock()
        #: By subject: when it was last requested, by ``time.monotonic``, and the versions with requested
        #: texts.
        self._requests: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._subjects: dict[str, _CachedSubject] = {}
        self._watch = OnDemandPoller(self._look, self._hang_up, self._failed, "subjects", _MOST_REST)

    def latest(self, about: Sequence[str]) -> SubjectVersions:
        """Return what is cached of a subject, and schedule a poll; ``about``: its name, and versions.

        The texts of those versions are read; `NEWEST` means the newest two. With `CHANGES` the result
        includes what each version changed.
        """
        name, versions = (about[0] if about else ""), tuple(about[1:])
        if not name:
            return SubjectVersions()
        with self._lock:
            is_new = self._requests.get(name, (0.0, None))[1] != versions
            self._requests[name] = (time.monotonic(), versions)
        if is_new:
            self._watch.hurry()
        return self._watch.latest().get(name) or SubjectVersions(name=name)

    def stop(self) -> None:
        self._watch.stop()

    # In the watch's thread.

    def _requested(self) -> dict[str, tuple[str, ...]]:
        """Return the subjects with recent requests, and forget the others."""
        now = time.monotonic()
        with self._lock:
            self._requests = {
                name: request
                for name, request in self._requests.items()
                if now - request[0] < ATTENTION_SECONDS
            }
            return {name: versions for name, (_, versions) in self._requests.items()}

    def _look(self) -> Mapping[str, SubjectVersions]:
        requested = self._requested()
        self._subjects = {name: self._subjects.get(name) or _CachedSubject(name) for name in requested}
        answers: dict[str, SubjectVersions] = {}
        for name, subject in self._subjects.items():
            try:
                for _ in self._steps(subject, requested[name]):
                    answers[name] = subject.subject(requested[name])
                    self._watch.show({**self._watch.shown, **answers})
                    if self._requested().get(name) != requested[name]:
                        break
            except BwtuiError as error:
                answers[name] = replace(subject.subject(()), time=time.time(), failure=error.message)
        return answers

    def _steps(self, subject: "_CachedSubject", requested: tuple[str, ...]) -> Iterator[None]:
        """Read a subject; after each step, the caller may show the results so far, or stop."""
        if self._registry is None:
            self._registry = self._open()
        registry = self._registry
        if registry is None:
            subject.failure = "this relay uses no schema registry"
            yield
            return
        subject.take_numbers(registry.versions(subject.name), registry.level(subject.name))
        yield
        for number in subject.numbers(requested):
            subject.keep(number, registry)
            yield
        begun = time.thread_time()
        for _ in subject.compare(registry) if CHANGES in requested else ():
            self._watch.pause(_REST * (time.thread_time() - begun))
            begun = time.thread_time()
            yield

    def _hang_up(self) -> None:
        if self._registry is not None:
            self._registry.close()
        self._registry = None
        self._subjects = {}
        # A later request must not get results that old.
        self._watch.show({})

    def _failed(self, moment: float, why: str) -> Mapping[str, SubjectVersions]:
        return {name: SubjectVersions(moment, why, name=name) for name in self._requested()} if why else {}


class _CachedSubject:
    """The cached versions of one subject."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failure = ""
        self._time = 0.0
        self._level = ""
        self._left_out = 0
        self._entries: dict[int, VersionEntry] = {}
        self._texts: dict[int, str] = {}
        self._passed: dict[int, str] = {}
        #: Versions that the registry lists but does not return, and those that were or can't be compared.
        self._missing: set[int] = set()
        self._compared: set[int] = set()

    def take_numbers(self, versions: Mapping[int, bool], level: str) -> None:
        """Store which versions exist, and which of them are softly deleted."""
        shown = list(versions)[-_MOST:]
        self._left_out = len(versions) - len(shown)
        old = self._entries
        self._entries = {
            number: replace(old.get(number) or VersionEntry(number), is_deleted=versions[number])
            for number in shown
        }
        self._time, self._level = time.time(), level
        self.failure = "" if versions else f"the schema registry has no version of {self.name}"

    def numbers(self, requested: Iterable[str]) -> list[int]:
        """Return the requested versions that exist."""
        existing: list[int] = []
        for version in requested:
            if version == NEWEST:
                existing += [number for number, entry in self._entries.items() if not entry.is_deleted][-2:]
            elif version.isdecimal() and int(version) in self._entries:
                existing.append(int(version))
        return existing

    def keep(self, number: int, registry: SchemaRegistry) -> None:
        """Read a version's text, and keep it."""
        text = self._text(number, registry)
        if text is not None:
            self._texts[number] = text
        while len(self._texts) > _TEXTS_KEPT:
            del self._texts[next(iter(self._texts))]

    def compare(self, registry: SchemaRegistry) -> Iterator[None]:
        """Compare each version with its predecessor, step by step, newest first."""
        numbers = list(self._entries)
        for older, newer in reversed(list(pairwise(numbers))):
            if newer not in self._compared:
                self._compare(older, newer, registry)
                yield
        if numbers and self._entries[numbers[0]].id is None:
            self._text(numbers[0], registry)
            yield

    def subject(self, requested: Iterable[str]) -> SubjectVersions:
        """Return the cached versions, with the requested texts."""
        notes = [
            f"the schema registry lists version {version} but does not return it"
            for version in sorted(self._missing)
        ]
        if self._left_out:
            notes.append(f"only the newest {_MOST} of {self._left_out + _MOST:,} versions are shown")
        texts = {number: self._texts.get(number) for number in self.numbers(requested)}
        return SubjectVersions(
            self._time,
            self.failure,
            tuple(notes[:_NOTES]),
            self.name,
            self._level,
            tuple(self._entries.values()),
            tuple(VersionText(number, text) for number, text in texts.items() if text is not None),
        )

    def _compare(self, older: int, newer: int, registry: SchemaRegistry) -> None:
        before, after = self._text(older, registry), self._text(newer, registry)
        self._compared.add(newer)
        if before is None or after is None:
            return
        try:
            changes = differences(before, after)
        except ValueError:
            return
        kinds = [change.kind for change in changes if change.field]
        changed = {
            change.field for change in changes if change.field and change.kind not in ("added", "removed")
        }
        self._entries[newer] = replace(
            self._entries[newer],
            added=kinds.count("added"),
            removed=kinds.count("removed"),
            changed=len(changed),
        )

    def _text(self, number: int, registry: SchemaRegistry) -> str | None:
        """Return a version's text, and store its other attributes. Raises what `version` raises."""
        cached = self._texts.get(number) or self._passed.get(number)
        if cached is not None or number in self._missing:
            return cached
        version = registry.version(self.name, number)
        if version is None:
            self._missing.add(number)
            return None
        self._time = time.time()
        self._entries[number] = replace(
            self._entries[number],
            id=version.id,
            registered=version.registered,
            fields=_fields(version.schema),
        )
        self._passed[number] = version.schema
        while len(self._passed) > _TEXTS_KEPT:
            del self._passed[next(iter(self._passed))]
        return version.schema


def _fields(schema: str) -> int | None:
    """Return the number of fields of a record; None for other schemas."""
    try:
        return len(json.loads(schema)["fields"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None

"""Service views on request of the screens: each is polled in a thread while somebody looks at it."""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Generic, TypeVar

from bwtui.command_log import COMMANDS
from bwtui.config import listed
from bwtui.crash import crash
from bwtui.encode.registry import SchemaRegistry
from bwtui.encode.schema_differences import differences
from bwtui.errors import BwtuiError
from bwtui.kafka.client import client_config
from bwtui.kafka.dead_letter_topic import DeadLetterTopicReader
from bwtui.model.service_views import (
    CHANGES,
    NEWEST,
    Configuration,
    Consumers,
    DeadLetterTopic,
    Look,
    LookName,
    Slots,
    SubjectVersions,
    VersionEntry,
    VersionText,
)
from bwtui.relay.rows.samples import Samples
from bwtui.relay.state.run_state import RunState
from bwtui.settings import RelaySettings, server_option
from bwtui.sink.destination import ConsumerFinder
from bwtui.source.connection import Connection
from bwtui.source.lag import read_slots

T = TypeVar("T")

#: A client counts as watching for this many seconds after its last request.
ATTENTION_SECONDS = 5.0
#: Minimum and maximum seconds between two polls; in between, four times as long as the poll took.
_PAUSE_SECONDS, _MOST_SECONDS = 1.0, 10.0
_REST = 4.0
#: A glance counts for the first number of seconds; with glances only, polls are the second number apart.
GLANCE_SECONDS, GLANCE_PAUSE_SECONDS = 15.0, 5.0


class PollDemand:
    """The times of the last request and of the last glance, by the monotonic clock."""

    def __init__(self) -> None:
        self._polled_at = self._glanced = float("-inf")

    def pay(self, *, glance: bool) -> None:
        if glance:
            self._glanced = time.monotonic()
        else:
            self._polled_at = time.monotonic()

    def is_due(self, last: float, pause: float) -> bool:
        """Return whether to poll again, at least ``pause`` seconds after the ``last`` time."""
        since = time.monotonic() - last
        return (self._is_watched() and since >= pause) or (
            self._is_glanced_at() and since >= max(pause, GLANCE_PAUSE_SECONDS)
        )

    def is_paid(self) -> bool:
        """Return whether there are recent requests or glances."""
        return self._is_watched() or self._is_glanced_at()

    def _is_watched(self) -> bool:
        return time.monotonic() - self._polled_at < ATTENTION_SECONDS

    def _is_glanced_at(self) -> bool:
        return time.monotonic() - self._glanced < GLANCE_SECONDS


class OnDemandPoller(Generic[T]):
    """Polls while there are requests; each request returns the last result at once."""

    def __init__(
        self,
        poll: Callable[[], T],
        close: Callable[[], None],
        failed: Callable[[float, str], T],
        name: str,
        most: float = _MOST_SECONDS,
    ) -> None:
        """``poll`` and ``close`` are called only in the thread, which is called ``name``.

        ``failed`` makes a result of a time and the reason for the failure; both are empty before the first
        poll. Two polls are at most ``most`` seconds apart.
        """
        self.shown = failed(0.0, "")
        self._poll_service, self._close, self._failed, self._name = poll, close, failed, name
        self._demand = PollDemand()
        #: When the last poll ended, how long to rest after it, and the maximum rest.
        self._polled_at, self._rest, self._most = float("-inf"), 0.0, most
        self._stop, self._hurry = threading.Event(), threading.Event()
        self._lock = threading.Lock()
        self._runs = False

    def latest(self, *, glance: bool = False) -> T:
        """Return the last result, and schedule another poll."""
        with self._lock:
            self._demand.pay(glance=glance)
            if not self._runs and not self._stop.is_set():
                self._runs = True
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return self.shown

    def hurry(self) -> None:
        """Poll at once, because something else is requested."""
        self._hurry.set()

    def stop(self) -> None:
        """Stop polling; a poll that is in progress ends on its own."""
        self._stop.set()
        self._hurry.set()

    def show(self, view: T) -> None:
        """Return partial results of the poll in progress from now on."""
        self.shown = view

    def pause(self, seconds: float) -> None:
        """Pause within a poll."""
        self._stop.wait(min(seconds, _PAUSE_SECONDS))

    def _work(self) -> None:
        while self._continues():
            if self._hurry.is_set() or self._demand.is_due(self._polled_at, self._rest):
                self._hurry.clear()
                self._poll()
            self._hurry.wait(_PAUSE_SECONDS)

    def _poll(self) -> None:
        begun = time.monotonic()
        try:
            self.shown = self._poll_service()
        except Exception as error:
            self.shown = self._failed(time.time(), crash(error).message)
        self._polled_at = time.monotonic()
        self._rest = max(_PAUSE_SECONDS, min(_REST * (self._polled_at - begun), self._most))

    def _disconnect(self) -> None:
        try:
            self._close()
        except Exception as error:
            # The next request needs a new thread, so this one has to end normally.
            self.shown = self._failed(time.time(), crash(error).message)

    def _is_in_demand(self) -> bool:
        return not self._stop.is_set() and self._demand.is_paid()

    def _continues(self) -> bool:
        """Return whether to continue; if not, disconnect, unless there was a request meanwhile."""
        if not self._is_in_demand():
            self._disconnect()
        with self._lock:
            self._runs = self._is_in_demand()
            return self._runs


#: Maximum number of versions per subject, newest first; few subjects have as many.
_MOST = 300
#: Maximum number of unreadable versions that a note lists.
_NOTES = 3
#: Maximum number of texts kept from comparisons, in addition to the requested ones.
_TEXTS_KEPT = 4
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
        self._watch = OnDemandPoller(self._poll, self._hang_up, self._failed, "subjects", _MOST_REST)

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

    def _poll(self) -> Mapping[str, SubjectVersions]:
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
        self._skipped = 0
        self._entries: dict[int, VersionEntry] = {}
        self._texts: dict[int, str] = {}
        self._passed: dict[int, str] = {}
        #: Versions that the registry lists but does not return, and those that were or can't be compared.
        self._missing: set[int] = set()
        self._compared: set[int] = set()

    def take_numbers(self, versions: Mapping[int, bool], level: str) -> None:
        """Store which versions exist, and which of them are softly deleted."""
        shown = list(versions)[-_MOST:]
        self._skipped = len(versions) - len(shown)
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
        if self._skipped:
            notes.append(f"only the newest {_MOST} of {self._skipped + _MOST:,} versions are shown")
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


class ServiceViews:
    """All service views of one engine; any thread may request one."""

    def __init__(
        self, settings: RelaySettings, readers: ConsumerFinder, report: RunState, samples: Samples
    ) -> None:
        """``report`` has the relay's topics at the time of a poll."""
        self._samples = samples
        self._report = report
        self._configuration = Configuration(time=time.time(), settings=listed(settings))
        self._consumers = OnDemandPoller(
            lambda: readers.poll(_topics(settings, report)), readers.close, Consumers, "consumers"
        )
        self._subjects = SubjectViews(lambda: _registry(settings))
        topic = "" if settings.record_only else settings.dead_letter_topic
        self._letter_reader = DeadLetterTopicReader(client_config(settings), topic)
        self._letters = OnDemandPoller(
            self._letter_reader.poll, self._letter_reader.close, DeadLetterTopic, "letters"
        )
        self._slots = Slots()
        self._postgres = server_option(settings.postgres, dict(settings.origins).get("postgres", ""))
        self._slots_attention, self._slots_read_at = PollDemand(), float("-inf")

    def view(self, name: LookName, about: Sequence[str] = (), *, glance: bool = False) -> Look:
        """Return the last view of that name, at once; ``about`` selects the objects, if there are several."""
        if name == "slots":
            self._slots_attention.pay(glance=glance)
            return self._slots
        if name == "consumers":
            return self._consumers.latest(glance=glance)
        if name == "commands":
            return COMMANDS.snapshot()
        if name == "stages":
            return self._samples.stages()
        if name == "subject":
            return self._subjects.latest(about)
        if name == "letters":
            return self._view_letters(about)
        if name == "transactions":
            report = self._report
            return report.transaction_log.view(report.confirmed_lsn, report.transactions)
        return self._configuration

    def tick(self, connection: Connection) -> None:
        """Poll the slots, if requested, over the session that samples the relay's own slot every second.

        Raises psycopg2.Error if the server does not answer.
        """
        if self._slots_attention.is_due(self._slots_read_at, 0.0):
            self._slots_read_at = time.monotonic()
            self._slots = replace(read_slots(connection), postgres=self._postgres)

    def _view_letters(self, about: Sequence[str]) -> DeadLetterTopic:
        view, reader = self._letters.latest(), self._letter_reader
        if view.topic and not view.failure and not reader.has_read:
            # The cached letters were discarded: no letter may be reported as missing before the next poll.
            return DeadLetterTopic()
        return replace(view, places=reader.places(about))

    def close(self) -> None:
        self._consumers.stop()
        self._subjects.stop()
        self._letters.stop()


def _topics(settings: RelaySettings, report: RunState) -> set[str]:
    apart = set(settings.side_topics.values())
    return {counters.topic for counters in report.tables.values()} | apart


def _registry(settings: RelaySettings) -> SchemaRegistry | None:
    """Return a connection separate from the relay's, which views must not delay; None without a registry."""
    if settings.record_only or settings.output_format != "avro":
        return None
    return SchemaRegistry(settings.schema_registry, settings.registry_config)

"""Select dead letters: by relay, by source, and by the options."""

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bwtui.cli.inputs import relay_options
from bwtui.cli.inputs.relay_options import relay_option, running_or_stopped, status_of
from bwtui.console import say
from bwtui.errors import ConnectionFailed, RefusedError, StateFailed, UsageError, mutually_exclusive
from bwtui.option_checks import check_regex
from bwtui.options import refused_at

if TYPE_CHECKING:
    from pathlib import Path

    from bwtui.model.backfill import BackfillStatus
    from bwtui.recording.query_language import ChangeSelection
    from bwtui.relay.dead_letters.letters import DeadLetterAction, DeadLetterState
    from bwtui.settings import RelaySettings
    from bwtui.sink.dead_letters import DeadLetter, DeadLetterFile

F = TypeVar("F", bound=Callable[..., Any])

#: An ID, or a prefix of one.
_ID = re.compile(r"[0-9a-f]{4,12}")
_OF_TOPIC = ("broker", "kafka-config", "dead-letter-topic")
_OPTIONS = (
    relay_option("The relay that dropped the rows, running or not; required if several relays exist."),
    click.option("--table", metavar="REGEX", help="Only tables whose full schema.table matches REGEX."),
    click.option(
        "--since", metavar="TIME", help="Only rows dropped at or after TIME: 2026-01-31T10:00, -5m."
    ),
    click.option("--reason", metavar="REGEX", help="Only dead letters whose reason matches REGEX."),
    click.option(
        "--from-topic",
        is_flag=True,
        help="Read dead letters from the topic --dead-letter-topic (default: the running relay's) "
        "instead of the relay's file.",
    ),
    relay_options.takes(*_OF_TOPIC),
    click.option("--show-values", is_flag=True, help="Show keys and rows, which are masked by default."),
)


def letter_options(command: F) -> F:
    """Add the options that select dead letters to a command; `opened` reads them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def choice_options(command: F) -> F:
    """Add IDs, --all, and the options that select dead letters; `check_choice` checks them."""
    command = click.option("--all", "takes_all", is_flag=True, help="Select all open dead letters.")(command)
    return click.argument("ids", nargs=-1, metavar="[ID]...")(letter_options(command))


@dataclass(frozen=True, slots=True)
class SelectedLetters:
    """The letters that were read, oldest first, and their states."""

    #: "" if they belong to no local relay.
    relay: str
    #: The file or topic that was read, for messages.
    place: str
    file: "DeadLetterFile"
    letters: "Sequence[DeadLetter]"
    states: "Mapping[str, DeadLetterState]"
    #: All letters, whatever the options select.
    all: "Sequence[DeadLetter]"

    def of_ids(self, ids: Sequence[str]) -> "list[DeadLetter]":
        """Return the letters with these IDs. Raises UsageError and RefusedError."""
        letters_by_place = {}
        for id in ids:
            for letter in self._named(id):
                letters_by_place[letter.place] = letter
        return list(letters_by_place.values())

    def open(self) -> "list[DeadLetter]":
        """Return the letters that still need action."""
        return [letter for letter in self.letters if self.states[letter.id].is_open]

    def _named(self, id: str) -> "list[DeadLetter]":
        if not _ID.fullmatch(id):
            raise UsageError(
                f"{id!r} is not the id of a dead letter",
                "give at least four hex digits of an id that 'bwtui dead-letters list' shows",
            )
        matching = [letter for letter in self.all if letter.id.startswith(id)]
        if not matching:
            raise RefusedError(
                f"dead letter {id} does not exist in {self.place}",
                "'bwtui dead-letters list --all' lists all of them",
            )
        if len({letter.id for letter in matching}) > 1:
            raise UsageError(
                f"several dead letters have an id that begins with {id}", "give more digits of the id"
            )
        return matching


@contextlib.contextmanager
def opened(options: dict[str, Any], *, needs_relay: bool = False) -> Iterator[SelectedLetters]:
    """Yield the letters that the options select. Raises BwtuiError."""
    filters = _Filters.of(options)
    typed = [text for name, text in relay_options.typed_options().items() if name in _OF_TOPIC]
    if typed and not options["from_topic"]:
        raise UsageError(f"{typed[0]} requires --from-topic", "add --from-topic, or omit this option")
    relay = _relay(options["relay"], or_none=options["from_topic"] and not needs_relay)
    with _path(options, relay, typed) as (path, place):
        yield _read(relay, path, place, filters)


def open_letters(relay: str) -> "list[DeadLetter]":
    """Return the letters of a relay whose rows are still to be sent. Raises BwtuiError."""
    from bwtui.sink.dead_letters import DeadLetterWriter
    from bwtui.state_folder import state_folder

    path = DeadLetterWriter(state_folder(relay)).path
    if not path.exists():
        return []
    selected = _read(relay, path, str(path), lambda _: True)
    return [one for one in selected.letters if selected.states[one.id].state in ("open", "asked")]


def _read(relay: str, path: "Path", place: str, filters: "Callable[[DeadLetter], bool]") -> SelectedLetters:
    from bwtui.relay.dead_letters.letters import dead_letter_state
    from bwtui.relay.dead_letters.retry import tasks_of
    from bwtui.sink.dead_letters import DeadLetterWriter
    from bwtui.state_folder import state_folder

    columns = _key_columns(relay)
    # Before the letters: those of a task's rows are written before it is over.
    tasks = tasks_of(relay) if relay else {}
    file = _letters(path, columns)
    _warn(file, place)
    notes: Mapping[str, Sequence[DeadLetterAction]] = {}
    if relay:
        own_file = DeadLetterWriter(state_folder(relay)).path
        notes = _notes(
            relay, file.letters, tasks or {}, file if path == own_file else _letters(own_file, columns)
        )
    # A row that was read again has its letter in a topic twice, maybe once without the row.
    each = {letter.id: letter for letter in sorted(file.letters, key=lambda letter: letter.size)}
    # Only each partition on its own is in order.
    letters = sorted(each.values(), key=lambda letter: (letter.time, letter.place))
    states = {letter.id: dead_letter_state(notes.get(letter.id, ()), tasks) for letter in letters}
    return SelectedLetters(relay, place, file, [one for one in letters if filters(one)], states, letters)


def _letters(path: "Path", columns: Mapping[str, tuple[str, ...]]) -> "DeadLetterFile":
    from bwtui.file_errors import file_failed
    from bwtui.sink.dead_letters import DeadLetterFile

    file = DeadLetterFile(path, lambda table: columns.get(table, ()))
    try:
        file.read()
    except OSError as error:
        raise file_failed(f"dead letters {path} can't be read", error, RefusedError) from error
    return file


def _notes(
    relay: str,
    letters: "Sequence[DeadLetter]",
    tasks: "Mapping[str, BackfillStatus]",
    own_file: "DeadLetterFile",
) -> "Mapping[str, Sequence[DeadLetterAction]]":
    """Return the actions taken on letters, after recording the tasks that have ended."""
    from bwtui.relay.dead_letters.letters import DeadLetterActionLog, settled, with_settled

    handled = DeadLetterActionLog(relay)
    notes = handled.read()
    if ended := settled(letters, notes, tasks, own_file):
        with contextlib.suppress(StateFailed):
            # If this can't be written, the next reader finds it again.
            handled.add(ended)
    return with_settled(notes, ended)


def _warn(file: "DeadLetterFile", place: str) -> None:
    for count, problem in (
        (file.unreadable, "lines are not dead letters and were skipped"),
        (file.cut, "older dead letters were skipped"),
        (file.skipped, "bytes of older dead letters were skipped"),
    ):
        if count:
            say(f"bwtui: {place}: {count:,} {problem}", err=True)


def _relay(requested: str | None, *, or_none: bool) -> str:
    """Return the selected relay, running or not; with ``or_none``, "" if there is none with letters."""
    from bwtui.state_folder import relay_names

    if requested is not None:
        if requested not in relay_names():
            status_of(requested)
        return requested
    return running_or_stopped(_has_letters, or_none=or_none)


def _has_letters(name: str) -> bool:
    from bwtui.sink.dead_letters import DeadLetterWriter
    from bwtui.state_folder import state_folder

    return DeadLetterWriter(state_folder(name)).path.exists()


def _key_columns(relay: str) -> dict[str, tuple[str, ...]]:
    from bwtui.model.status import Status
    from bwtui.relay.process.control import request

    try:
        status = Status.from_json(request(relay, {"request": "status"})) if relay else None
    except ConnectionFailed:
        return {}
    return {name: table.key_columns for name, table in status.tables.items()} if status else {}


@contextlib.contextmanager
def _path(options: dict[str, Any], relay: str, typed: Sequence[str]) -> "Iterator[tuple[Path, str]]":
    """Yield the file with the letters, and where they come from."""
    from bwtui.sink.dead_letters import DeadLetterWriter
    from bwtui.state_folder import state_folder

    if not options["from_topic"]:
        path = DeadLetterWriter(state_folder(relay)).path
        yield path, str(path)
        return
    from bwtui.kafka.client import client_config
    from bwtui.relay.dead_letters.topic import spooled

    settings = _settings(options, relay, typed)
    with spooled(client_config(settings), settings.dead_letter_topic) as (path, _):
        yield path, f"topic {settings.dead_letter_topic}"


def _settings(options: dict[str, Any], relay: str, typed: Sequence[str]) -> "RelaySettings":
    """Return the settings for the topic: the given ones, or otherwise the running relay's."""
    from bwtui.relay.process.control import settings_of

    names = ("profile", "broker", "kafka_config", "dead_letter_topic")
    loaded = relay_options.load({name: options[name] for name in names})
    settings = loaded.settings()
    relay_options.check_properties(settings, loaded.property_place)
    if settings.dead_letter_topic:
        return settings
    hint = "give the topic: --from-topic --dead-letter-topic T -b HOST:PORT"
    if typed:
        raise UsageError(f"{typed[0]} was given, but no dead-letter topic", hint)
    if not relay:
        raise UsageError("no dead-letter topic was given, and no running relay has one", hint)
    try:
        settings = settings_of(relay)
    except ConnectionFailed as error:
        raise ConnectionFailed(error.message, hint) from error
    if not settings.dead_letter_topic:
        raise UsageError(
            f"relay {relay} has no dead-letter topic", "omit --from-topic to read the relay's file"
        )
    return settings


@dataclass(frozen=True, slots=True)
class _Filters:
    """The filters of the options."""

    tables: "ChangeSelection"
    reason: re.Pattern[str] | None
    #: Unix seconds.
    since: float

    @classmethod
    def of(cls, options: dict[str, Any]) -> "_Filters":
        """Return the given filters. Raises UsageError."""
        from bwtui.recording.query_language import ChangeSelection
        from bwtui.recording.query_syntax import as_time

        since, table = 0.0, options["table"]
        if table is not None:
            with refused_at("--table"):
                check_regex(table)
        if options["since"] is not None:
            with refused_at("--since"):
                since = as_time(options["since"], time.time_ns() // 1000) / 1_000_000
        tables = ChangeSelection(table=None if table is None else re.compile(table))
        return cls(tables, _reason(options["reason"]), since)

    def __call__(self, letter: "DeadLetter") -> bool:
        texts = (letter.error, letter.reason)
        return (
            letter.time >= self.since
            and self.tables.takes_table(letter.table)
            and (self.reason is None or any(map(self.reason.search, texts)))
        )


def _reason(text: str | None) -> re.Pattern[str] | None:
    if text is None:
        return None
    try:
        return re.compile(text)
    except re.error as error:
        raise UsageError(
            f"--reason: {text!r} is not a regular expression: {error}",
            "'bwtui dead-letters list' shows the reasons",
        ) from error


def check_choice(ids: Sequence[str], options: dict[str, Any], *, all: bool) -> None:
    """Raise UsageError if a command that changes something does not say which letters."""
    filters = [f"--{name}" for name in ("table", "since", "reason") if options[name] is not None]
    if ids and (all or filters):
        option = "--all" if all else filters[0]
        raise mutually_exclusive("ids", option, "give ids, or select dead letters with options")
    if not ids and not all and not filters:
        raise UsageError(
            "no dead letter was selected",
            "give ids, or select dead letters with --table, --since, --reason or --all",
        )

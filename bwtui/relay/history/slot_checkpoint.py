"""The slot checkpoint: what the relay stores about its slot between runs, to detect that the slot was moved.

It is one small JSON file in the relay's state folder. It is written, and fsynced, *before* the LSN is sent to
the server: PostgreSQL's confirmed LSN can then never be past the checkpoint's, unless another consumer moved
the slot or the slot was dropped and recreated. Both leave a gap that no later run can fill.
"""

import contextlib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

from bwtui.durable_files import private_parent, write_durably
from bwtui.errors import BwtuiError, ConnectionFailed, RefusedError, SlotLost, StateFailed
from bwtui.file_errors import file_failed, remove
from bwtui.model.lsn import NO_COMMIT, SentCommit, format_lsn
from bwtui.model.position import Position
from bwtui.relay.process.lock import is_held
from bwtui.settings import drop_command
from bwtui.sink.destination import Offsets
from bwtui.source.connection import Connection
from bwtui.source.raw_stream import ENDLESS, Forks, ServerIdentity
from bwtui.source.slot import HEAL, SlotInUse, SlotState, server_and_database
from bwtui.state_folder import STATE_HOME_HINT, relay_names, state_folder


@dataclass(frozen=True, slots=True)
class SlotCheckpoint:
    """The contents of a slot checkpoint; ``confirmed_lsn`` is the highest LSN ever sent for the slot."""

    system_identifier: str
    database: str
    slot: str
    confirmed_lsn: int
    #: A snapshot for this slot began and has not finished: topics may hold some of its rows.
    snapshot_unfinished: bool = False
    #: The end of each topic partition before the first unfinished snapshot sent anything.
    marks: dict[str, Offsets] = field(default_factory=dict)
    #: The unfinished runs' ids (hexadecimal), as in the header bwtui.session of their messages.
    sessions: list[str] = field(default_factory=list)
    #: Everything up to the confirmed LSN is in a recording, and not all of it was sent to Kafka.
    without_kafka: bool = False
    #: The newest LSN up to which rows were sent; it may be beyond the confirmed LSN, or long before it.
    sent_lsn: int | None = None
    #: The server's timeline (0: unknown) and its ancestors, each with the LSN at which it was left.
    timeline: int = 0
    forks: Forks = ()
    #: The publications that the slot was read with.
    publications: tuple[str, ...] = ()
    #: True if the server was a standby.
    on_standby: bool = False
    #: The snapshot is one Kafka transaction: the slot's existence does not prove that it was committed.
    in_transaction: bool = False
    #: The run (hexadecimal) that wrote the position in Kafka from which this run continues; "" if unknown.
    written_by: str = ""
    #: True if a coverage ledger is kept for the slot. Older versions kept none.
    has_ledger: bool = False
    #: The newest transaction with rows that were sent. Older versions stored none.
    sent_commit: SentCommit = NO_COMMIT

    def sent(self) -> int:
        """Return the LSN up to which rows were sent, as far as is known."""
        return self.confirmed_lsn if self.sent_lsn is None else self.sent_lsn


def _unexplained_position(slot: str) -> str:
    return f"slot {slot} was created or moved elsewhere; the relay resumes from the slot's position"


def forgetting(drop: str) -> str:
    """Return a hint, with --exactly-once, for a lost slot or for sent changes that the server lacks.

    ``drop`` is the command that drops the slot.
    """
    return (
        f"run '{drop}' on this host and start again for a new snapshot; --heal and "
        "--accept-divergence can't be combined with --exactly-once"
    )


class SlotCheckpointStore:
    """Reads and writes the slot checkpoint of one relay."""

    def __init__(
        self,
        folder: Path,
        system_identifier: str,
        database: str,
        slot: str,
        *,
        without_kafka: bool = False,
        drop: str = "",
    ) -> None:
        """Open the checkpoint of ``slot``; a file about another server, database or slot counts as missing.

        ``without_kafka``: changes confirmed from now on go only to a recording. ``drop``: the command that
        drops the slot, for hints.
        Raises BwtuiError if the file can't be read.
        """
        self._without_kafka = without_kafka
        self._drop = drop or drop_command(slot)
        self.path = folder / f"slot-{slot}.json"
        self._identity = (system_identifier, database, slot)
        #: True if a snapshot is a Kafka transaction, so that Kafka says which of its rows are committed.
        self.in_transactions = False
        self.last = self._load()
        #: True if there was no checkpoint of the slot when this run began.
        self.was_empty = self.last is None
        #: True if a coverage ledger is, or was, kept for the slot.
        self.has_ledger = self.last is not None and self.last.has_ledger
        self._timeline, self._forks = (self.last.timeline, self.last.forks) if self.last else (0, ())
        self._written_by = self.last.written_by if self.last is not None else ""
        #: True if nothing explains the slot's position.
        self._is_unexplained = False
        #: True if the slot is, or was, on a standby.
        self.on_standby = self.last is not None and self.last.on_standby

    def remember(
        self,
        confirmed_lsn: int,
        *,
        changed: bool = True,
        sent_lsn: int = 0,
        sent_commit: SentCommit = NO_COMMIT,
    ) -> None:
        """Store, durably, that ``confirmed_lsn`` is about to be confirmed.

        ``sent_lsn``: the LSN up to which rows were sent; ``sent_commit``: the newest transaction with sent
        rows; both and the LSN only increase. ``changed``: whether a transaction was read since the last
        checkpoint; the LSN also advances without one. A slot of an older copy is confirmed again up to the
        position of the former slot, so the LSN never goes back.
        """
        without_kafka = self._without_kafka
        last = self.last if self.last is not None and not self.last.snapshot_unfinished else None
        if (
            without_kafka
            and self.last is not None
            and (confirmed_lsn <= self.last.confirmed_lsn or not changed)
        ):
            # Nothing is confirmed that was not confirmed before.
            without_kafka = self.last.without_kafka
        if last is not None:
            confirmed_lsn = max(confirmed_lsn, last.confirmed_lsn)
            sent_lsn = max(sent_lsn, last.sent())
            sent_commit = max(sent_commit, last.sent_commit)
        publications = self.last.publications if self.last is not None else ()
        now = SlotCheckpoint(
            *self._identity,
            confirmed_lsn,
            without_kafka=without_kafka,
            sent_lsn=max(sent_lsn, sent_commit.end),
            publications=publications,
            sent_commit=sent_commit,
        )
        self._write(self._with_server(now))

    def remember_sent(self, sent_lsn: int, sent_commit: SentCommit = NO_COMMIT) -> None:
        """Store, durably, that rows up to ``sent_lsn`` were sent, whether they arrived or not."""
        last = self.last
        if last is not None and (sent_lsn > last.sent() or sent_commit > last.sent_commit):
            sent_commit = max(sent_commit, last.sent_commit)
            self._write(replace(last, sent_lsn=max(sent_lsn, last.sent()), sent_commit=sent_commit))

    def commit_to_come(self, start_lsn: int) -> SentCommit:
        """Return the sent transaction that a stream from ``start_lsn`` repeats; its ``end`` is 0 if none."""
        sent = self.last.sent_commit if self.last is not None else NO_COMMIT
        # PostgreSQL sends each transaction whose commit record begins at or after the start.
        return sent if sent.end > start_lsn else NO_COMMIT

    def forget_commit(self) -> None:
        """Forget the newest sent transaction, because the server lacks it."""
        if self.last is not None:
            self._write(replace(self.last, sent_commit=NO_COMMIT))

    def recall(self, position: Position, slot: SlotState | None) -> None:
        """Adopt the position in Kafka if there is no checkpoint, or if another run has continued since."""
        last = self.last
        if last is not None and last.snapshot_unfinished and not last.in_transaction:
            return
        if last is not None and not last.in_transaction and last.written_by == position.session:
            self.remember_sent(position.lsn + 1)
            return
        slot_lsn = slot.confirmed_lsn if slot is not None else 0
        checkpoint_lsn = last.confirmed_lsn if last is not None else 0
        self._is_unexplained = slot_lsn > max(position.passed, checkpoint_lsn)
        self._timeline, self._forks = position.timeline, position.forks
        self._written_by = position.session
        now = SlotCheckpoint(
            *self._identity,
            max(position.passed, slot_lsn),
            sent_lsn=position.lsn + 1,
            publications=last.publications if last is not None else (),
        )
        self._write(self._with_server(now))

    def record_writer(self, session: str) -> None:
        """Store, durably, that run ``session`` (hexadecimal) wrote the position in Kafka."""
        self._written_by = session
        if self.last is not None:
            self._write(replace(self.last, written_by=session))

    def remember_publications(self, names: tuple[str, ...]) -> None:
        """Store, durably, the publications that the slot is read with."""
        if (last := self.last) is not None:
            # PostgreSQL does not send a transaction again that is empty for other publications.
            is_same = set(names) == set(last.publications)
            sent_commit = last.sent_commit if is_same else NO_COMMIT
            self._write(replace(last, publications=names, sent_commit=sent_commit))

    def renew(self, consistent_point: int, publications: tuple[str, ...]) -> None:
        """Store, durably, that the slot was recreated at ``consistent_point``, whatever was stored before.

        The former slot's confirmed LSN and history say nothing about the new slot.
        """
        self._timeline, self._forks = 0, ()
        now = SlotCheckpoint(
            *self._identity, consistent_point, sent_lsn=consistent_point, publications=publications
        )
        self._write(self._with_server(now))

    def remember_snapshot(self, consistent_point: int, marks: dict[str, Offsets], session: bytes) -> None:
        """Store that run ``session`` begins a snapshot at ``consistent_point``.

        ``marks`` are the ends of its topics before the first unfinished snapshot.
        """
        former = self._unfinished.sessions if self._unfinished else ()
        sessions = list(dict.fromkeys([*former, session.hex()]))
        without_kafka = self._without_kafka
        now = SlotCheckpoint(*self._identity, consistent_point, True, marks, sessions, without_kafka)
        self._write(replace(now, in_transaction=self.in_transactions, written_by=self._written_by))

    def unfinished_marks(self) -> dict[str, Offsets]:
        """Return the marks of the unfinished snapshot; empty if there is none."""
        return self._unfinished.marks if self._unfinished else {}

    def unfinished_sessions(self) -> list[bytes]:
        """Return the ids of the runs whose snapshots did not finish."""
        return [bytes.fromhex(session) for session in self._unfinished.sessions] if self._unfinished else []

    @property
    def _unfinished(self) -> SlotCheckpoint | None:
        return self.last if self.last is not None and self.last.snapshot_unfinished else None

    def _write(self, last: SlotCheckpoint) -> None:
        last = replace(last, has_ledger=self.has_ledger)
        if last == self.last:
            return
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_durably(self.path, json.dumps(asdict(last)))
        except OSError as error:
            # Nothing may be confirmed that is not stored, so the relay ends here.
            raise StateFailed(
                f"slot checkpoint {self.path} can't be written: {error.strerror}",
                f"free disk space or {STATE_HOME_HINT}, then start again",
            ) from error
        self.last = last

    def forget(self) -> None:
        """Remove the checkpoint: the next run resumes from the slot's position, whatever it is.

        Raises StateFailed.
        """
        remove(self.path)
        self.last = None

    def check(self, slot: SlotState | None) -> str | None:
        """Refuse a gap between the checkpoint and ``slot``; return a note on a slot without a checkpoint.

        Raises SlotLost if the slot is missing or was advanced.
        """
        last = self.last
        if last is None or (slot is None and last.snapshot_unfinished):
            if slot is None:
                return None
            return _unexplained_position(slot.name)
        name, confirmed = last.slot, format_lsn(last.confirmed_lsn)
        if last.in_transaction and not self.in_transactions:
            raise RefusedError(
                f"slot {name} exists, but the Kafka transaction of its snapshot may not have been committed",
                f"start with --exactly-once, which checks this; or run '{self._drop}' and "
                "start again for a new snapshot",
            )
        hint = f"changes may be missing: {HEAL}; or run '{self._drop}' and start again for a new snapshot"
        if self.in_transactions:
            hint = f"changes may be missing: {forgetting(self._drop)}"
        if slot is None:
            raise SlotLost(f"slot {name} is missing; this relay had confirmed it up to {confirmed}", hint)
        if slot.confirmed_lsn > last.confirmed_lsn:
            moved = format_lsn(slot.confirmed_lsn)
            raise SlotLost(
                f"another consumer moved slot {name} to {moved}; this relay had confirmed it up to "
                f"{confirmed}",
                f"if this relay ran on another host, copy that host's state folder; otherwise {hint}",
            )
        return _unexplained_position(name) if self._is_unexplained else None

    def check_cluster(self, server: ServerIdentity) -> None:
        """Refuse a server of another cluster: the state of its slots says nothing about this relay's slot."""
        if server.system_identifier != self._identity[0]:
            raise RefusedError(
                f"a different server answered: its system identifier is {server.system_identifier}, not "
                f"{self._identity[0]}",
                "the relay read nothing from it; start again if this server is the one to relay",
            )

    def common_end(self, server: ServerIdentity, *, accept: bool) -> int:
        """Return the LSN up to which ``server`` has the former server's WAL; `ENDLESS`: all that matters.

        Raises SlotLost if it lacks changes that were sent, unless ``accept``; RefusedError for another
        cluster; ConnectionFailed for a standby, which may still replay what it lacks.
        """
        self.check_cluster(server)
        last = self.last
        if last is None:
            return ENDLESS
        fork = server.common_end(last.timeline, last.forks) if last.timeline else ENDLESS
        if fork is None:
            fork = 0
        if server.in_recovery:
            end = fork
            if fork >= last.sent() > server.wal_end:
                raise ConnectionFailed(
                    f"the standby has replayed up to {format_lsn(server.wal_end)}, but changes up to "
                    f"{format_lsn(last.sent())} were already relayed",
                    "the relay continues once the standby has replayed them",
                )
        else:
            end = min(fork, server.wal_end)
        if last.sent() > end and not accept:
            hint = (
                f"{HEAL}; or run '{self._drop}' and start again for a new snapshot; or "
                "continue from the slot's position with --accept-divergence: topics then keep what the "
                "server lacks"
            )
            if self.in_transactions:
                hint = forgetting(self._drop)
            raise SlotLost(self._describe_missing(server, last, fork, end), hint)
        return end if last.confirmed_lsn > end or last.sent() > end else ENDLESS

    @property
    def is_unread(self) -> bool:
        """Return whether bwtui created the slot and no session has read it yet."""
        return self.last is not None and not self.last.timeline

    def is_promoted(self, server: ServerIdentity) -> bool:
        """Return whether ``server`` is a promoted standby of the former server: they share WAL up to a fork.

        Whether a slot was synchronized does not prove it: that flag stays set forever, in older copies as
        well.
        """
        last = self.last
        if last is None or server.in_recovery or not 0 < last.timeline < server.timeline:
            return False
        fork = server.common_end(last.timeline, last.forks) or 0
        return 0 < fork <= server.wal_end

    def start_lsn(self, server: ServerIdentity, slot: SlotState) -> int:
        """Return the LSN to resume from; call this before `take_over`.

        It is the position of ``slot``, except for a slot synchronized from another server: its position may
        be older than the LSN confirmed there. WAL before a fork that is in both histories is the same on both
        servers, so changes confirmed up to there need not be read again. For other WAL, this is not known.
        """
        last = self.last
        if last is None or last.snapshot_unfinished or not last.timeline:
            return slot.confirmed_lsn
        if not slot.synced or server.forks is None:
            return slot.confirmed_lsn
        fork = server.common_end(last.timeline, last.forks) or 0
        if fork == ENDLESS:
            fork = server.forks[-1][1] if server.forks else 0
        return max(slot.confirmed_lsn, min(last.confirmed_lsn, fork))

    def take_over(self, server: ServerIdentity, slot: SlotState, common_end: int) -> str | None:
        """Store the identity of ``server``, after `common_end`; return a note on what the server lacks."""
        last, note = self.last, None
        self._timeline, self._forks = server.timeline, server.forks or ()
        self.on_standby = server.in_recovery
        if last is None:
            return None
        confirmed, sent = min(last.confirmed_lsn, common_end), min(last.sent(), common_end)
        if last.sent() > common_end:
            fork = server.common_end(last.timeline, last.forks) if last.timeline else ENDLESS
            note = self._describe_missing(server, last, fork, common_end)
            if slot.synced and self.is_promoted(server):
                note += "; the relay continues from the slot that was synchronized to it"
            else:
                note += "; the relay continues because of --accept-divergence"
                # Whatever the slot was confirmed to on this server, this relay did not confirm it.
                confirmed = slot.confirmed_lsn
        now = replace(last, confirmed_lsn=confirmed, sent_lsn=sent)
        if last.sent_commit.end > common_end:
            now = replace(now, sent_commit=NO_COMMIT)
        self._write(self._with_server(now))
        return note

    def _with_server(self, now: SlotCheckpoint) -> SlotCheckpoint:
        return replace(
            now,
            timeline=self._timeline,
            forks=self._forks,
            on_standby=self.on_standby,
            written_by=self._written_by,
        )

    def _describe_missing(
        self, server: ServerIdentity, last: SlotCheckpoint, fork: int | None, end: int
    ) -> str:
        since, until = format_lsn(end), format_lsn(last.sent())
        sent = "recorded" if last.without_kafka else "sent to Kafka"
        problem = f"this server's history lacks changes from {since} to {until} that were {sent}"
        if not fork:
            return f"{problem}: the history of its timeline {server.timeline} is unknown"
        if fork > end:
            return f"{problem}: its WAL ends at {since}, so it may be an older copy"
        return f"{problem}: its timeline {server.timeline} forked from timeline {last.timeline} at {since}"

    def check_kafka(self, newest: SlotCheckpoint | None, *, accept: bool) -> str | None:
        """Refuse to resume to Kafka after changes that only a recording has; if ``accept``, return a note.

        A recording alone does not take the changes of a slot that Kafka was sent, either. ``newest`` is the
        newest checkpoint of the slot by any relay, since the recording's may have another name.
        """
        if newest is None:
            return None
        if self.last is not None and self.last.confirmed_lsn >= newest.confirmed_lsn:
            newest = self.last
        if newest.without_kafka == self._without_kafka:
            return None
        if self._without_kafka:
            if accept:
                return None
            raise RefusedError(
                f"slot {newest.slot} belongs to a relay that sends its changes to Kafka: what 'bwtui record' "
                "confirms would be missing there",
                "record from a different slot with -s; or take the changes from Kafka with --skip-snapshot",
            )
        name, confirmed = newest.slot, format_lsn(newest.confirmed_lsn)
        if accept:
            return f"Kafka lacks changes up to {confirmed} of slot {name}, which were only recorded"
        raise RefusedError(
            f"'bwtui record' confirmed slot {name} up to {confirmed}: changes before that are in a "
            "recording and were not sent to Kafka",
            f"use a different slot; or run '{self._drop}' and start again for a new "
            "snapshot; or continue without these changes with --skip-snapshot",
        )

    def _load(self) -> SlotCheckpoint | None:
        try:
            data = json.loads(self.path.read_text())
            self._refuse_newer(data)
            remembered = SlotCheckpoint(**data)
            marks = {t: {int(p): o for p, o in ends.items()} for t, ends in remembered.marks.items()}
            forks = tuple((timeline, lsn) for timeline, lsn in remembered.forks)
            publications = tuple(remembered.publications)
            sent_commit = SentCommit(*remembered.sent_commit)
            remembered = replace(
                remembered, marks=marks, forks=forks, publications=publications, sent_commit=sent_commit
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise StateFailed(
                f"slot checkpoint {self.path} can't be read", "remove it to resume from the slot's position"
            ) from error
        identity = remembered.system_identifier, remembered.database, remembered.slot
        return remembered if identity == self._identity else None

    def _refuse_newer(self, data: dict[str, object]) -> None:
        """Raise StateFailed for a newer version's checkpoint, whose fields may change what others mean."""
        names = {field.name for field in fields(SlotCheckpoint)}
        if names <= data.keys() and (unknown := sorted(data.keys() - names)):
            raise StateFailed(
                f"slot checkpoint {self.path} is from a newer version of bwtui: it has {', '.join(unknown)}",
                "install that version again and keep the file, which records what was confirmed",
            )


def newest_checkpoint(system_identifier: str, database: str, slot: str) -> SlotCheckpoint | None:
    """Return the checkpoint of the relay that confirmed the slot last."""
    checkpoints = slot_checkpoints(system_identifier, database, slot).values()
    return max(checkpoints, key=lambda last: last.confirmed_lsn, default=None)


def slot_checkpoints(system_identifier: str, database: str, slot: str) -> dict[str, SlotCheckpoint]:
    """Return each local relay's checkpoint of the slot, by relay name; skip unreadable files."""
    checkpoints: dict[str, SlotCheckpoint] = {}
    for name in relay_names():
        with contextlib.suppress(BwtuiError):
            last = SlotCheckpointStore(state_folder(name), system_identifier, database, slot).last
            checkpoints |= {name: last} if last is not None else {}
    return checkpoints


def with_local_reader(error: SlotInUse, connection: Connection, own: str = "") -> SlotInUse:
    """Return ``error``, or one that names the relay on this machine, other than ``own``, with that slot."""
    checkpoints = slot_checkpoints(*server_and_database(connection), error.slot)
    reader = next((name for name in checkpoints if name != own and is_held(name)), "")
    if not reader:
        return error
    return SlotInUse(error.slot, f"relay {reader} on this machine", f"run 'bwtui stop {reader}' first")


# -- a position in Kafka that 'bwtui slots drop' discarded --------------------------------------------------
#
# Dropping a slot does not contact Kafka. Instead, a small file in the relay's state folder names the run that
# last wrote the position, according to the slot checkpoint. A position that a different run has written since
# stays valid, because that run continued elsewhere.


def _discarded(folder: Path, slot: str) -> Path:
    return folder / f"forgotten-{slot}.json"


def discard_position(folder: Path, last: SlotCheckpoint | None) -> None:
    """Record durably that the position that the checkpoint ``last`` resumes from is discarded.

    Raises StateFailed.
    """
    if last is None or not last.written_by:
        return
    path = _discarded(folder, last.slot)
    content = {"of": [last.system_identifier, last.database, last.slot], "written_by": last.written_by}
    try:
        private_parent(path)
        write_durably(path, json.dumps(content))
    except OSError as error:
        raise file_failed(f"the slot's discarded position can't be recorded in {path}", error) from error


def is_discarded(folder: Path, position: Position, drop: str) -> bool:
    """Return whether ``position`` was discarded; ``drop`` is the command that does it. Raises StateFailed."""
    path = _discarded(folder, position.slot)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        identity, written_by = tuple(data["of"]), data["written_by"]
    except FileNotFoundError:
        return False
    except OSError as error:
        raise file_failed(f"{path} can't be read", error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise StateFailed(
            f"{path} can't be read: it records a discarded position in Kafka",
            f"remove it, and run '{drop}' again",
        ) from error
    return identity == (position.system, position.database, position.slot) and written_by == position.session

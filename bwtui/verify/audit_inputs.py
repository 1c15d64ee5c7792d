"""The inputs of an audit: sealed files, the journal's facts, and the offsets of the topics."""

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from bwtui.errors import RefusedError, UsageError
from bwtui.kafka.client import Config
from bwtui.kafka.scan import PinnedTopics, partitions, pin
from bwtui.model.sql import exact
from bwtui.recording.blocks import SegmentPlace, damaged
from bwtui.recording.folder import segments
from bwtui.recording.sealed import SealedRecording, open_sealed, unsealed_bytes
from bwtui.signals.duckdb_session import session
from bwtui.verify.journal_facts import JournalFacts, read_facts


@dataclass(frozen=True, slots=True)
class OpenedRecording:
    """A recording when it was opened: its sealed part, None if there is none, and the journal's facts."""

    folder: Path
    sealed: SealedRecording | None
    facts: JournalFacts

    def whole(self) -> SealedRecording | None:
        """Return the sealed part if it has everything that is finished. Raises UsageError or StateFailed."""
        return self.sealed if self.sealed is not None and self.sealed.is_complete() else None

    def unsealed_bytes(self) -> int:
        """Return the size of the finished segments that are not sealed. Raises UsageError or StateFailed."""
        return unsealed_bytes(self.folder, self.sealed)


@dataclass(frozen=True, slots=True)
class AuditInputs:
    """A checked recording, and Kafka's offsets for it.

    The offsets are pinned last, so that they include all of its messages.
    """

    sealed: SealedRecording
    facts: JournalFacts
    #: Number of messages that each topic should have.
    sent: dict[str, int]
    #: Whether any message has headers; if so, the headers of all are compared.
    has_headers: bool
    pinned: PinnedTopics

    @property
    def rows(self) -> int:
        """Number of rows to read on both sides."""
        return self.sealed.manifest.rows + self.pinned.messages


def find_sealed(folder: Path) -> SealedRecording | None:
    """Open the sealed part of a recording, without its rows. Raises DamagedRecording or StateFailed."""
    with contextlib.suppress(UsageError):
        return open_sealed(folder, check_files=False)
    return None


def open_recorded(folder: Path) -> OpenedRecording:
    """Open a recording before its missing parts are sealed.

    The facts are those of the sealed segments, or of all finished ones if some must be sealed first, so that
    an error in them is reported at once. Raises UsageError, DamagedRecording or StateFailed.
    """
    recorded = OpenedRecording(folder, find_sealed(folder), JournalFacts())
    sealed = recorded.whole()
    return replace(recorded, facts=read_facts(folder) if sealed is None else facts_of(sealed))


def facts_of(sealed: SealedRecording) -> JournalFacts:
    """Return the facts of the sealed segments.

    Raises DamagedRecording, also for a sealed segment that is missing now, or StateFailed.
    """
    names = {segment.name for segment in sealed.manifest.segments}
    missing = names - {segment.path.name for segment in segments(sealed.folder)}
    if missing:
        # Without the LSNs that it reports as confirmed, lost messages would count as pending.
        raise damaged(SegmentPlace(min(missing), 0), "it was sealed, and is missing now")
    return read_facts(sealed.folder, names)


def check_cluster(facts: JournalFacts, config: Config) -> None:
    """Check that Kafka is the recording's cluster. Raises RefusedError if not, or ConnectionFailed."""
    # A recording without Kafka has no cluster; that nothing was sent is reported when its messages are
    # counted.
    if not facts.cluster:
        return
    cluster, _ = partitions(config)
    if cluster and facts.cluster != cluster:
        raise RefusedError(
            f"the brokers belong to Kafka cluster {cluster}, but the recording was made with {facts.cluster}",
            "name the recording's brokers with -b",
        )


def basis(sealed: SealedRecording, facts: JournalFacts, config: Config) -> AuditInputs:
    """Count the messages of a recording whose files were checked, and pin its topics.

    Raises RefusedError if nothing was sent or a topic is missing, and ConnectionFailed.
    """
    sent, has_headers = _sent(sealed)
    try:
        return AuditInputs(sealed, facts, sent, has_headers, pin(config, sent))
    except RefusedError as error:
        raise RefusedError(error.message, "the topic was deleted after the recording") from error


def _sent(sealed: SealedRecording) -> tuple[dict[str, int], bool]:
    paths = exact(sealed.paths("changes"))
    sql = """select topic, count(*), count(*) filter (where state = 'unsent'),
                    coalesce(bool_or(header_form <> 'none'), false)
               from read_parquet(?)
              where topic is not null group by topic"""
    # The query does not spill, and DuckDB would otherwise create a folder in the current one.
    with session(temp_directory="") as connection:
        rows = connection.execute(sql, [paths]).fetchall() if paths else []
    if all(messages == unsent for _, messages, unsent, _ in rows):
        raise RefusedError(
            f"{sealed.folder} was recorded without Kafka: nothing was sent, so there is nothing to verify",
            "record with 'bwtui connect --record', or compare two recordings: bwtui verify A B",
        )
    return {topic: messages for topic, messages, *_ in rows}, any(row[3] for row in rows)

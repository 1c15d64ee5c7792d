"""What an audit stands on: sealed files, the journal's facts, and where the topics begin and end."""

from dataclasses import dataclass
from pathlib import Path

import duckdb

from bwtui.errors import RefusedError, UsageError
from bwtui.kafka.client import Config
from bwtui.kafka.offsets import Pinned, partitions, pin
from bwtui.model.duckdb_text import exact
from bwtui.recording.sealed import Sealed, open_sealed
from bwtui.verify.facts import Facts, read_facts


@dataclass(frozen=True, slots=True)
class Basis:
    """The recording, and what Kafka has of it; offsets are pinned last, so that all of it may be there."""

    sealed: Sealed
    facts: Facts
    #: How many messages each topic is to have.
    sent: dict[str, int]
    #: Whether any message has headers; then those of all are compared.
    has_headers: bool
    pinned: Pinned


def check_cluster(folder: Path, config: Config) -> None:
    """Raise RefusedError for another cluster than the recording's, DamagedRecording, ConnectionFailed."""
    recorded = read_facts(folder).cluster
    # A recording without Kafka has none; that nothing was sent is told when its messages are counted.
    if not recorded:
        return
    cluster, _ = partitions(config)
    if cluster and recorded != cluster:
        raise RefusedError(
            f"this is another Kafka cluster ({cluster}) than the recording's ({recorded})",
            "name the recording's brokers with -b",
        )


def is_sealed(folder: Path) -> bool:
    """Say whether every finished segment is sealed. Raises DamagedRecording or StateFailed."""
    try:
        return not open_sealed(folder, check_files=False).behind
    except UsageError:
        return False


def basis(folder: Path, config: Config) -> Basis:
    """Check every byte of a sealed recording, and pin its topics.

    Raises RefusedError where nothing was sent, or for a topic that is gone, ConnectionFailed,
    DamagedRecording, StateFailed.
    """
    sealed = open_sealed(folder)
    facts = read_facts(folder, {segment.name for segment in sealed.manifest.segments})
    sent, has_headers = _sent(sealed)
    try:
        return Basis(sealed, facts, sent, has_headers, pin(config, sent))
    except RefusedError as error:
        raise RefusedError(error.message, "it was deleted since it was recorded") from error


def _sent(sealed: Sealed) -> tuple[dict[str, int], bool]:
    paths = exact(sealed.paths("changes"))
    sql = """select topic, count(*), count(*) filter (where state = 'unsent'),
                    coalesce(bool_or(header_form <> 'none'), false)
               from read_parquet(?)
              where topic is not null group by topic"""
    # It needs no room to spill, and would take it in the current folder.
    with duckdb.connect(config={"temp_directory": ""}) as connection:
        rows = connection.execute(sql, [paths]).fetchall() if paths else []
    if all(messages == unsent for _, messages, unsent, _ in rows):
        raise RefusedError(
            f"{sealed.folder} was recorded without Kafka: nothing was sent, so there is nothing to verify",
            "record with 'bwtui connect --record', or compare two recordings: bwtui verify A B",
        )
    return {topic: messages for topic, messages, *_ in rows}, any(row[3] for row in rows)

"""Determine what to compare with topics: the tables of a relay's settings, and their server."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from bwtui.cli.inputs.audit_sources import reconnecting
from bwtui.cli.inputs.selected_letters import open_letters
from bwtui.encode.names import topic_name
from bwtui.errors import BwtuiError, Indeterminate, RefusedError, UsageError
from bwtui.kafka.client import client_config, producer_config
from bwtui.model.number_format import plural
from bwtui.relay.backfill.chunk_snapshot import unfinished
from bwtui.relay.history.slot_checkpoint import newest_checkpoint, slot_checkpoints
from bwtui.settings import RelaySettings
from bwtui.sink.dead_letters import DeadLetter
from bwtui.sink.topics import TopicInspector
from bwtui.source.catalog import TableFilter, list_tables, load_relation
from bwtui.source.connection import connect
from bwtui.source.hosts import describe
from bwtui.source.publication import entries, existing, merged
from bwtui.source.publication_coverage import Shortfall, is_chosen, narrowed, shortfalls
from bwtui.source.raw_stream import primary_timeline
from bwtui.source.slot import server_and_database
from bwtui.verify.database import ComparedTable, ComparisonRequest


def source_of(settings: RelaySettings) -> dict[str, str]:
    """Return the server, database and slot of ``settings``, in the form of a report.

    Raises RefusedError for a former primary, which lacks rows that were relayed since.
    """
    with contextlib.closing(connect(settings.postgres)) as connection:
        identifier, database = server_and_database(connection)
        last, timeline = newest_checkpoint(identifier, database, settings.slot), primary_timeline(connection)
    if last is not None and timeline is not None and timeline < last.timeline:
        raise RefusedError(
            f"the server at {describe(settings.postgres)} is a former primary: it is on timeline "
            f"{timeline}, but slot {settings.slot} was last relayed from timeline {last.timeline}",
            "give the address of the new primary with -d/--postgres; nothing was compared, because "
            "this server lacks the rows written since",
        )
    return {"system_identifier": identifier, "database": database, "slot": settings.slot}


def request_of(
    settings: RelaySettings, narrower: RelaySettings, *, of_relay: bool = False, **how: Any
) -> ComparisonRequest:
    """Return what to compare: the tables of the relay's publication that both settings select.

    ``of_relay``: the settings are those of a relay, whose producer partitions keys by them. ``how`` has
    further fields of the request. Raises UsageError and ConnectionFailed, and Indeterminate while the first
    snapshot of one of the tables is incomplete.
    """
    tables, missing, notes = _tables(settings, narrower, of_relay=of_relay)
    source = source_of(settings)
    _refuse_unfinished(settings, source, {f"{table.namespace}.{table.name}" for table in tables})
    return ComparisonRequest(
        settings.postgres,
        settings.slot,
        tables,
        client_config(settings),
        partitioner=str(producer_config(settings)["partitioner"]) if of_relay else "",
        not_captured=missing,
        reconnecting=lambda database: reconnecting(settings.slot, database),
        notes=notes,
        open_letters=lambda: slot_letters(source),
        **how,
    )


def slot_letters(source: Mapping[str, Any]) -> dict[str, list[DeadLetter]]:
    """Return the open dead letters of each local relay that has the slot; skip unreadable ones."""
    letters_by_relay = {}
    for relay in slot_checkpoints(source["system_identifier"], source["database"], source["slot"]):
        with contextlib.suppress(BwtuiError):
            letters_by_relay[relay] = open_letters(relay)
    return letters_by_relay


def _refuse_unfinished(settings: RelaySettings, source: Mapping[str, str], tables: set[str]) -> None:
    """Raise Indeterminate if rows of ``tables`` are still to be sent for the first time."""
    identity = (source["system_identifier"], source["database"], settings.slot)
    for relay, unsent in unfinished(identity, settings.relay_name).items():
        if missing := sorted(tables.intersection(unsent)):
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise Indeterminate(
                f"the first snapshot of {missing[0]}{more} is incomplete: some rows have not been sent yet",
                f"wait until it is complete ('bwtui status {relay}' shows its progress), or select "
                "other tables with --table",
            )


def _tables(
    settings: RelaySettings, narrower: RelaySettings, *, of_relay: bool
) -> tuple[list[ComparedTable], dict[str, str], list[str]]:
    """Return the tables to compare, why others are not captured, and notes on rows and columns left out.

    The tables are those of the relay's publication that both settings select, with their topics.
    """
    filters = TableFilter(settings), TableFilter(narrower)
    with contextlib.closing(connect(settings.postgres)) as connection:
        publications = existing(connection, settings.publication_name)
        if not publications:
            raise UsageError(
                f"publication {settings.publication_name} does not exist",
                "give the relay's slot with -s, or its publication with --publication",
            )
        infos = {(one.namespace, one.name): one for one in list_tables(connection, partitions=True)}
        tables, notes = [], []
        published_tables = entries(connection, publications)
        narrow = narrowed(connection, publications, published_tables)
        for published in merged(published_tables):
            info = infos.get((published.namespace, published.name))
            if info is None or not all(takes(info) for takes in filters):
                continue
            relation = load_relation(connection, info, published.columns)
            notes += [f"{info.qualified_name} {note}" for note in narrow.get((info.namespace, info.name), ())]
            tables.append(
                ComparedTable(
                    published.namespace,
                    published.name,
                    topic_name(settings.topic_prefix, published.namespace, published.name),
                    tuple(column.name for column in relation.columns),
                    tuple(column.name for column in relation.columns if column.is_key and info.has_key),
                    published.row_filter,
                )
            )
        missing_tables = [
            one
            for one in shortfalls(connection, settings)
            if one.info and not one.captured and filters[1](one.info)
        ]
    tables_without_topic = set() if narrower.tables else _never_sent(settings, missing_tables)
    if count := len(tables_without_topic):
        notes.append(
            f"{plural(count, 'table')} outside publication {settings.publication_name} "
            f"{'has' if count == 1 else 'have'} no topic"
        )
    doctor = (
        f"'bwtui doctor --relay {settings.relay_name}'"
        if of_relay
        else "'bwtui doctor' with the same options"
    )
    missing = {
        one.table: f"{one.says}; run {doctor}: it says what captures it"
        for one in missing_tables
        if one.table and one.table not in tables_without_topic
    }
    return tables, missing, notes


def _never_sent(settings: RelaySettings, missing_tables: Sequence[Shortfall]) -> set[str]:
    """Return the tables that the user's own publication leaves out, and that have no topic either.

    A table that has left the publication has a topic, whose rows grow old.
    """
    topics = {
        topic_name(settings.topic_prefix, one.info.namespace, one.info.name): one.info.qualified_name
        for one in missing_tables
        if one.info and not is_chosen(settings, one)
    }
    present = TopicInspector(client_config(settings)).describe(topics, with_beginnings=False)
    return {table for topic, table in topics.items() if topic in present and present[topic] is None}

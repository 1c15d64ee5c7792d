"""Service views: polled only while clients request them, and returned without waiting for the services.

A request returns the last answer at once, and schedules another poll: of Kafka and of the schema registry in
separate threads, which disconnect and end soon after the last request; of PostgreSQL over the session of
`bwtui.source.lag`. A screen that shows a small part of a view among other things sends a glance: then the
services are polled only every few seconds.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from bwtui.command_log import COMMANDS
from bwtui.config import listed
from bwtui.encode.registry import SchemaRegistry
from bwtui.kafka.config import client_config
from bwtui.kafka.dead_letter_topic import DeadLetterTopicReader
from bwtui.model.service_views import Configuration, Consumers, DeadLetterTopic, Look, LookName, Slots
from bwtui.relay.process.on_demand_poller import OnDemandPoller, PollDemand
from bwtui.relay.process.subject_views import SubjectViews
from bwtui.relay.run_state import RunState
from bwtui.relay.samples import Samples
from bwtui.settings import RelaySettings
from bwtui.sink.destination import ConsumerFinder
from bwtui.source.connection import Connection
from bwtui.source.retention import read_slots


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
            lambda: readers.look(_topics(settings, report)), readers.close, Consumers, "consumers"
        )
        self._subjects = SubjectViews(lambda: _registry(settings))
        topic = "" if settings.record_only else settings.dead_letter_topic
        self._letter_reader = DeadLetterTopicReader(client_config(settings), topic)
        self._letters = OnDemandPoller(
            self._letter_reader.look, self._letter_reader.close, DeadLetterTopic, "letters"
        )
        self._slots = Slots()
        self._slots_attention, self._slots_looked = PollDemand(), float("-inf")

    def look(self, name: LookName, about: Sequence[str] = (), *, glance: bool = False) -> Look:
        """Return the last view of that name, at once; ``about`` selects the objects, if there are several."""
        if name == "slots":
            self._slots_attention.pay(glance=glance)
            return self._slots
        if name == "consumers":
            return self._consumers.latest(glance=glance)
        if name == "commands":
            return COMMANDS.picture()
        if name == "stages":
            return self._samples.stages()
        if name == "subject":
            return self._subjects.latest(about)
        if name == "letters":
            return self._look_at_letters(about)
        if name == "transactions":
            report = self._report
            return report.transaction_log.look(report.confirmed_lsn, report.transactions)
        return self._configuration

    def tick(self, connection: Connection) -> None:
        """Poll the slots, if requested, over the session that samples the relay's own slot every second.

        Raises psycopg2.Error if the server does not answer.
        """
        if self._slots_attention.is_due(self._slots_looked, 0.0):
            self._slots_looked = time.monotonic()
            self._slots = read_slots(connection)

    def _look_at_letters(self, about: Sequence[str]) -> DeadLetterTopic:
        look, reader = self._letters.latest(), self._letter_reader
        if look.topic and not look.failure and not reader.has_read:
            # The cached letters were discarded: no letter may be reported as missing before the next poll.
            return DeadLetterTopic()
        return replace(look, places=reader.places(about))

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

"""A repair without a relay, for topics that another relay writes: a separate producer alongside it.

Messages that the other relay sends at the same moment can't be held back. So nothing is sent for a key that
it has sent since the comparison. After sending a key, the repair checks whether the other relay's message
came in between, and if so reads and sends the row once more. In the end everything is compared again, until
the keys that were sent are equal.
"""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from bwtui.audit.canonical_values import Schemas
from bwtui.errors import Indeterminate, Interrupted, RefusedError
from bwtui.kafka.client import client_config, producer_config
from bwtui.kafka.scan import partitions
from bwtui.model.backfill import BackfillStatus
from bwtui.relay.backfill.outgoing_chunk import spelling_of, spelling_text
from bwtui.relay.history.backfill_store import Key, read_keys, write_keys
from bwtui.repair.concurrent_writes import ConcurrentWrites, sample_of
from bwtui.repair.hints import REPAIR_AGAIN
from bwtui.repair.plan import TablePlan
from bwtui.repair.producer import RowProducer
from bwtui.repair.repair import Repair, RepairOutcome, reporting_sent_rows
from bwtui.repair.strays import StrayList

CAVEAT = (
    "another relay writes these topics: a change that it sends while the repair reads and sends the row can "
    "precede the repair's older row in the topic, until the repair's next check or the final "
    "comparison finds it"
)
#: Keys that are read and sent together, maximum attempts for keys that the other relay has overtaken, and
#: maximum rounds of comparing and sending.
_KEYS, _TRIES, _ROUNDS = 2_000, 8, 3


@dataclass(slots=True)
class StandaloneRepair(Repair):
    """One repair alongside a relay that is not on this machine."""

    producer: RowProducer = field(kw_only=True)
    #: Tables with their topics.
    topics: Mapping[str, str] = field(kw_only=True)
    #: Raises RefusedError if one of the local relays sends to these topics.
    refuse_local_relays: Callable[[], None] = field(kw_only=True)
    #: For each table: the keys added to its topic since the comparison, and the encoding of its keys.
    _tails: dict[str, ConcurrentWrites] = field(init=False, default_factory=dict)
    _encodings: dict[str, str] = field(init=False, default_factory=dict)

    def _begin(self) -> str:
        self.refuse_local_relays()
        self._look_at_ends()
        return ""

    def _look_at_ends(self) -> None:
        """Record the topics' end offsets before the comparison; a missing topic is refused later."""
        reader, session = self.producer.reader, self.producer.session
        counts = partitions(client_config(self.settings))[1]
        self._tails = {
            table: ConcurrentWrites(reader, topic, reader.end_offsets(topic), session)
            for table, topic in self.topics.items()
            if topic in counts
        }

    def _spelling(self, table: str) -> str | None:
        try:
            return self._spelled(table)
        except RefusedError:
            # The error is raised again when rows of the table are to be sent.
            return None

    def _spelled(self, table: str) -> str:
        if table not in self._encodings:
            self._encodings[table] = spelling_of(self.producer.route(table))
        return self._encodings[table]

    def _prepare(self, outcome: RepairOutcome) -> None:
        outcome.caveat = CAVEAT
        outcome.chosen = [plan for plan in outcome.tables if plan.messages]
        for plan in outcome.chosen:
            self.producer.expect(plan.table, plan.key_columns)
            self._check_spelling(plan)

    def _check_spelling(self, plan: TablePlan) -> None:
        """Check that the topic's keys have the encoding that would be sent. Raises RefusedError if not."""
        sent_encoding = self._spelled(plan.table)
        schemas = Schemas({}, self.ask_registry)
        sample = sample_of(client_config(self.settings), plan.topic, schemas)
        topic_encoding = plan.spelling or sample.spelling
        if topic_encoding not in (None, sent_encoding):
            raise RefusedError(
                f"the keys of topic {plan.topic} are encoded differently from those that the "
                "repair would send: "
                f"as {spelling_text(topic_encoding or '')}, not as {spelling_text(sent_encoding)}",
                "give the -f/--output-format of the topic's relay; consumers would treat a "
                "differently encoded key "
                "as a different key",
            )
        partitioner = str(producer_config(self.settings)["partitioner"]).lower()
        if sample.is_misplaced and partitioner.startswith("murmur2"):
            raise RefusedError(
                f"the keys of topic {plan.topic} are in different partitions from those that the "
                "repair would send them to",
                "give the -C partitioner=… of the topic's relay, so that each key stays in one partition",
            )

    @property
    def _session(self) -> bytes:
        return self.producer.session

    def _check_again(self) -> None:
        self.refuse_local_relays()

    def _announce(self, lists: Sequence[StrayList]) -> None:
        """Do nothing: no local relay counts the records."""

    def _send(self, outcome: RepairOutcome, folder: Path) -> None:
        """Send the differences repeatedly until there are none, or the maximum number of rounds is
        reached.
        """
        plans: Sequence[TablePlan] = [plan for plan in outcome.chosen if plan.keys]
        for round in range(_ROUNDS):
            if round:
                self.watch.phase("sending keys that still differ")
            outcome.sent += self._send_all(plans)
            (round_folder := folder / str(round)).mkdir()
            # The comparison does not include anything that arrives from here on.
            self._look_at_ends()
            planner = self._planner(round_folder, "")
            with reporting_sent_rows(outcome):
                outcome.compared(self.compare(planner.take, self.watch.phase, self._spellings))
            plans = _of_both(planner.tables, outcome.chosen)
            if not plans:
                return
        remaining = sum(plan.messages for plan in plans)
        outcome.notes.append(
            f"{remaining:,} keys still differ after they were sent: their relay writes them at the "
            "same time, or writes "
            "wrong rows; check that relay, then run 'bwtui repair' again"
        )

    def _end(self, outcome: RepairOutcome) -> None:
        """Do nothing: no relay has to be notified."""

    def _send_all(self, plans: Sequence[TablePlan]) -> list[BackfillStatus]:
        total, done = sum(plan.messages for plan in plans), 0
        sent: list[BackfillStatus] = []
        try:
            for plan in plans:
                status = BackfillStatus("", plan.table, "repair", state="done", estimate=plan.messages)
                for keys in _chunks(plan):
                    status = self._send_keys(status, plan, keys)
                    done += len(keys)
                    self.watch.count(done, total)
                sent.append(status)
        except KeyboardInterrupt as error:
            raise Interrupted(
                f"interrupted: about {done:,} of {total:,} keys were sent",
                REPAIR_AGAIN,
            ) from error
        return sent

    def _send_keys(self, status: BackfillStatus, plan: TablePlan, keys: Sequence[Key]) -> BackfillStatus:
        remaining, tail, since = keys, self._tails[plan.table], 0
        for _ in range(_TRIES):
            result = self.producer.put(plan.table, remaining, tail, since)
            status = replace(
                status,
                rows=status.rows + result.rows,
                tombstones=status.tombstones + result.tombstones,
                left_out=status.left_out + result.left_out,
                again=status.again + bool(result.overtaken),
            )
            if not result.overtaken:
                return status
            remaining, since = result.overtaken, tail.looks
        raise Indeterminate(
            f"the other relay wrote {len(remaining):,} keys of {plan.table} during each of {_TRIES} "
            "attempts to send them: "
            f"whether topic {plan.topic} has their newest rows is unknown",
            "run 'bwtui repair' again when there are fewer writes; it starts with a new comparison",
        )


def _chunks(plan: TablePlan) -> Iterator[list[Key]]:
    assert plan.keys is not None
    keys = read_keys(plan.keys)
    while chunk := list(islice(keys, _KEYS)):
        yield chunk


def _of_both(compared: Sequence[TablePlan], chosen: Sequence[TablePlan]) -> list[TablePlan]:
    """Return plans for the keys that were found again after being chosen; others were never confirmed."""
    before = {plan.table: plan for plan in chosen}
    both = []
    for plan in compared:
        former = before.get(plan.table)
        if former is None or former.keys is None or plan.keys is None:
            continue
        path = plan.keys.with_suffix(".again")
        if count := write_keys(path, _keys_of_both(plan.keys, former.keys)):
            both.append(TablePlan(plan.table, plan.topic, rows=count, keys=path))
    return both


def _keys_of_both(compared: Path, chosen: Path) -> Iterator[Key]:
    """Yield the keys of both lists in the second's order; SQLite keeps long lists in a file."""
    with contextlib.closing(sqlite3.connect("", isolation_level=None)) as database:
        database.execute("create table found (key text primary key) without rowid")
        database.execute("begin")
        database.executemany(
            "insert or ignore into found values (?)", ((repr(key),) for key in read_keys(compared))
        )
        for key in read_keys(chosen):
            if database.execute("select 1 from found where key = ?", (repr(key),)).fetchone():
                yield key

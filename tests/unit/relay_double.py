"""A double of the engine that follows its mode, without PostgreSQL and Kafka."""

import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bwtui.errors import ConnectionFailed, RefusedError, SlotLost
from bwtui.model.backfill import BackfillCommand, BackfillRequest, BackfillState, BackfillStatus
from bwtui.model.history import ChartMark, RelayHistory, Second
from bwtui.model.service_views import LOOKS, Look, LookName
from bwtui.model.status import ChangeSample, FieldChange, SchemaEntry, State, Status, TableStatus
from bwtui.relay.state.activity_clock import MainThreadActivity
from bwtui.relay.state.measures import Measures
from bwtui.settings import RelaySettings

#: An error that contains a secret, as a careless library would raise it.
SECRET = "hunter2"
#: 20 MB in total: as much as a library prints in months.
LINE = "x" * 40_000
LINES = 500


class DoubleEngine:
    """Implements the part of the engine that relay/main.py and relay/serving/control_server.py use."""

    def __init__(self, settings: RelaySettings, mode: str = "stream") -> None:
        if mode == "refuse":
            raise ConnectionFailed("can't connect to PostgreSQL: no route", "check the network")
        self._settings = settings
        self.mode = mode
        self.state: State = "starting"
        self.stopped = threading.Event()
        self.verdicts: list[str] = []
        self.backfills: dict[str, BackfillStatus] = {}
        self.tables = {"public.orders": TableStatus(topic="orders", inserts=3)}

    def run(self) -> None:
        """Act according to the mode."""
        if self.mode == "starting":
            self.stopped.wait()
            return
        if self.mode == "lost, and slow to end":
            self.state = "failed"
            self.stopped.wait(1)
            raise SlotLost("slot lost is gone", "drop it")
        self.state = "streaming"
        if self.mode == "caught up":
            return
        if self.mode == "lost":
            raise SlotLost("slot lost is gone", "drop it")
        if self.mode == "crash":
            raise ValueError(f"row value {SECRET}")
        if self.mode == "talkative":
            for _ in range(LINES):
                logging.getLogger("librdkafka").warning(LINE)
        self.stopped.wait()
        while self.mode == "stuck":
            time.sleep(0.05)

    def stop(self) -> None:
        """Ask for a clean stop."""
        self.stopped.set()

    def status(self) -> Status:
        settings = self._settings
        return Status(
            state=self.state,
            name=settings.relay_name,
            slot=settings.slot,
            pid=os.getpid(),
            time=time.time(),
            confirmed_lsn=0x1_0000_0001,
            tables=self.tables,
            backfills=tuple(self.backfills.values()),
        )

    def measures(self) -> Measures:
        """Return the status without any measurements."""
        return Measures(self.status(), is_stopping=self.stopped.is_set())

    def turn(self) -> MainThreadActivity:
        """Return that the main thread is active."""
        return MainThreadActivity("read", 0.1)

    def settings(self) -> RelaySettings:
        return self._settings

    def view(self, name: LookName, about: Sequence[str] = (), *, glance: bool = False) -> Look:
        return LOOKS[name]()

    def changes(self, after: int) -> list[ChangeSample]:
        """Return the changes up to sequence 1000."""
        return [change(sequence) for sequence in range(after + 1, 1001)]

    def history(self, after: float) -> RelayHistory:
        """Return three seconds and the start, as far as they are later than ``after``."""
        seconds = tuple(
            Second(at, 10 * at, 9 * at, 100, 0.5, 1_000, 0.01, 0.02, 0.03) for at in (1.0, 2.0, 3.0)
        )
        marks = (ChartMark(1.0, "start", "the relay started"),)
        later = tuple(second for second in seconds if second.time > after)
        return RelayHistory(
            later,
            tuple(mark for mark in marks if mark.time > after),
            {"public.orders": (1.0, 2.0)},
            ((0.01, 0.02, 7),),
        )

    def sent_beside(self, topic: str, records: int) -> None:
        """Do nothing."""

    def healed(self, lsn: str) -> bool:
        return False

    def auditing(self) -> str:
        return ""

    def audited(
        self,
        verdict: str,
        clean: Sequence[str],
        began: str,
        servers: Sequence[Sequence[Any]],
        differing: Sequence[str] = (),
    ) -> None:
        """Record the verdict."""
        self.verdicts.append(verdict)

    def backfill(self, request: BackfillRequest) -> str:
        """Accept a request for an existing table, and leave it waiting."""
        if request.table not in self.tables:
            raise RefusedError(
                f"the relay does not capture table {request.table}", "did you mean public.orders?"
            )
        id = f"{len(self.backfills) + 1}-orders"
        self.backfills[id] = BackfillStatus(id, request.table, request.reason, request.where)
        return id

    def backfill_control(self, id: str, what: BackfillCommand) -> BackfillStatus:
        """Apply the command immediately."""
        states: dict[BackfillCommand, BackfillState] = {
            "pause": "paused",
            "resume": "waiting",
            "cancel": "cancelled",
        }
        if id not in self.backfills:
            raise RefusedError(
                f"there is no request {id}", "'bwtui snapshot --status' lists the existing ones"
            )
        self.backfills[id] = replace(self.backfills[id], state=states[what])
        return self.backfills[id]

    def schemas(self) -> list[SchemaEntry]:
        return [SchemaEntry("orders-value", 7, 1, "public.orders", "orders", "value", "{}", 1.0)]


def change(sequence: int) -> ChangeSample:
    fields = (FieldChange("id", None, "1"),)
    return ChangeSample(sequence, 1.0, 1.0, "0/1", 700, "insert", "public.orders", "orders", "1", fields)

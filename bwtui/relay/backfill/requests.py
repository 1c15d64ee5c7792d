"""Validate backfill requests before they are stored, as far as that needs no connection."""

from bwtui.errors import RefusedError
from bwtui.model.backfill import BackfillCommand, BackfillRequest, BackfillStatus
from bwtui.options import nearest
from bwtui.relay.backfill.store import BackfillStore
from bwtui.relay.run_state import RunState


class BackfillRequests:
    """Takes backfill requests of other threads."""

    def __init__(self, store: BackfillStore, report: RunState) -> None:
        self._store = store
        self._report = report

    def submit(self, request: BackfillRequest) -> str:
        """Store the request, and return its id. Raises RefusedError and StateFailed.

        Until the relay's tables are determined, any table is accepted: a request for a table that the relay
        does not carry fails in its turn.
        """
        _check(request)
        captured = self._report.tables.keys() - set(self._report.not_captured)
        if captured and request.table not in captured:
            raise _not_carried(request.table, captured, is_selected=request.table in self._report.tables)
        return self._store.submit(request)

    def control(self, id: str, command: BackfillCommand) -> BackfillStatus:
        """Pause, resume or cancel a task. Raises RefusedError and StateFailed."""
        return self._store.ask(id, command)


def _check(request: BackfillRequest) -> None:
    if request.reason == "first":
        raise RefusedError(
            "only the relay itself can request a first snapshot", "request the rows with 'bwtui snapshot'"
        )
    if request.where and request.keys:
        raise RefusedError("a condition and a list of keys exclude each other", "ask for one of them")
    if request.where and (not request.where.strip() or "\0" in request.where):
        raise RefusedError(
            "the condition is empty or contains a NUL byte",
            "give an SQL expression over the table's columns, or omit the condition",
        )


def _not_carried(table: str, captured: set[str], *, is_selected: bool) -> RefusedError:
    if is_selected:
        message = f"table {table} is not captured: no publication of the relay contains it"
        return RefusedError(message, "'bwtui doctor' with the relay's options says what to run")
    close = nearest(table, captured)
    return RefusedError(
        f"the relay does not capture table {table}",
        f"did you mean {close}?" if close else "'bwtui status' lists the captured tables",
    )

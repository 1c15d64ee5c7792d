"""Backfill requests: the progress of each, and the actions on the selected one."""

import asyncio
from collections.abc import Iterable
from typing import Any, ClassVar

from textual.app import App
from textual.containers import Container
from textual.widget import Widget

from bwtui.errors import BwtuiError
from bwtui.model.backfill import BackfillCommand, BackfillRequest, BackfillStatus
from bwtui.model.backfill_texts import REASONS, in_brief, progress_text, share
from bwtui.model.status import Status
from bwtui.relay.process.control import control_backfill, send_again
from bwtui.tui.base import figures
from bwtui.tui.base.keys import key_for
from bwtui.tui.base.plain import Content, Group, Text, fact, with_hint
from bwtui.tui.screens.base import DetailedList
from bwtui.tui.screens.dialogs import AskScreen
from bwtui.tui.sources.host import Closer, ScreenHost, ScreenSelection
from bwtui.tui.sources.model import ScreenSnapshot
from bwtui.tui.widgets.grid import Cell, GridColumn, Item, ItemList
from bwtui.tui.widgets.line import Detail

COLUMNS = (
    GridColumn("table", "Table", 16, grow=40),
    GridColumn("state", "State", 9),
    GridColumn("done", "Done", 5, "right"),
    GridColumn("rows", "Rows", 9, "right"),
    GridColumn("pace", "Rows/s", 7, "right"),
    GridColumn("tombstones", "Tombst.", 8, "right", drop=3),
    GridColumn("left_out", "Left out", 8, "right", drop=2),
    GridColumn("requested", "Requested", 9, drop=1, grow=19),
    GridColumn("id", "Id", 10, drop=4, grow=20),
    GridColumn("where", "Where", 12, drop=5, grow=60),
)
#: The action that opens this screen.
OPENS = "open_details('backfills')"
_TONES = {"running": "good", "failed": "bad", "paused": "warn", "cancelled": "muted", "done": "muted"}


class BackfillsScreen(DetailedList):
    """Shows the list of requests, and the selected one in full."""

    mode: ClassVar[str] = "overview"
    own_keys: ClassVar[frozenset[str]] = frozenset(("pause_sending", "cancel_sending"))
    nothing: ClassVar[str] = "no request selected"

    @classmethod
    def of(cls, host: ScreenHost, selection: ScreenSelection) -> Closer:
        """Return the screen, or why there is none: a recording has no relay that could backfill rows."""
        if host.model.recorded:
            return "A recording has no backfill requests; 'bwtui attach' shows those of a running relay"
        return cls(host)

    def body(self) -> Iterable[Widget]:
        sortable = ("requested", "table", "state", "rows")
        listing = ItemList(
            COLUMNS, sortable, id="backfills", noun="requests", title="Backfills", descending=True
        )
        yield Container(
            listing, Detail(id="backfill", title="Request"), id="backfills-pair", classes="folder"
        )

    def crumbs(self) -> tuple[str, ...]:
        return ("Overview", "Backfills")

    def selected_table(self) -> str | None:
        status: BackfillStatus | None = self.selected_entry()
        return status.table if status is not None else None

    def paint(self, snapshot: ScreenSnapshot) -> None:
        listing = self.query_one("#backfills", ItemList)
        statuses = snapshot.status.backfills if snapshot.status else ()
        key = key_for("snapshot_table")
        listing.say_why_empty(f"no backfill requests yet; {key} on a table requests its rows")
        listing.set_items([_item(status) for status in statuses], snapshot.received)
        self.show_selected()

    def describe(self, entry: BackfillStatus) -> tuple[object, Content]:
        content = _text(entry, self.host.model.snapshot.received)
        return (entry.id, content.markup), content

    def action_pause_sending(self) -> None:
        """Pause the selected request, or resume it."""
        selected = self._open_one()
        if selected is not None:
            command: BackfillCommand = "resume" if selected.state == "paused" else "pause"
            self._control(selected, command)

    def action_cancel_sending(self) -> None:
        """Cancel the selected request, after a question."""
        selected = self._open_one()
        if selected is None:
            return

        def cancel(go: bool | None) -> None:
            if go:
                self._control(selected, "cancel")

        question = Group(
            Text(f"{selected.rows:,} rows of {selected.table} were sent, and stay in the topic."),
            Text("The remaining rows are not sent. A new request starts from scratch."),
        )
        self.app.push_screen(AskScreen(f"Cancel {selected.id}", question, "Cancel it", careful=True), cancel)

    def _open_one(self) -> BackfillStatus | None:
        """Return the selected request, or show why it accepts no commands."""
        selected: BackfillStatus | None = self.selected_entry()
        if selected is None:
            self.notify("No request is selected", severity="warning", timeout=4)
        elif selected.is_over:
            self.notify(
                f"request {selected.id} has already ended: {selected.state}", severity="warning", timeout=4
            )
            return None
        return selected

    def _control(self, selected: BackfillStatus, command: BackfillCommand) -> None:
        name = self.host.model.name

        async def ask() -> None:
            try:
                status = await asyncio.to_thread(control_backfill, name, selected.id, command)
            except BwtuiError as error:
                self.notify(with_hint(error), severity="error", timeout=8)
            else:
                self.notify(f"{status.id}: {status.detail or status.state}", timeout=4)

        self.run_worker(ask(), exit_on_error=True)


def ask_to_send(app: App[Any], name: str, table: str | None, status: Status | None) -> None:
    """Ask whether to send all rows of a table again, and make the relay called ``name`` do so."""
    table_status = status.tables.get(table) if status is not None and table is not None else None
    if table is None or table_status is None:
        app.notify("No table is selected", severity="warning", timeout=4)
        return
    unkeyed = table_status.has_final_key and not table_status.key_columns
    lines: list[Text | str] = [
        Text(
            f"The relay reads all rows of {table} and sends them to topic {table_status.topic} while it "
            "streams the changes. It never sends a row over a newer one of the same key."
        ),
        "",
        Text("Consumers receive every row once more. The request can be paused and cancelled."),
    ]
    if unkeyed:
        warning = app.theme_variables["warning"]
        lines += ["", Text("▲ The table has no key, so its rows will be in the topic twice.", warning)]

    async def send() -> None:
        try:
            request = BackfillRequest(table, unkeyed=unkeyed)
            id = await asyncio.to_thread(send_again, name, request)
        except BwtuiError as error:
            app.notify(with_hint(error), severity="error", timeout=8)
        else:
            app.notify(f"Requested: {id}; {key_for(OPENS)} shows its progress", timeout=6)

    def begin(go: bool | None) -> None:
        if go:
            app.run_worker(send(), exit_on_error=True)

    app.push_screen(AskScreen(f"Send {table} again", Group(*lines), "Send", careful=True), begin)


def in_one_line(status: Status | None, now: float) -> Content | None:
    """Return the requests in progress in one line, or None without any."""
    open_ones = [one for one in status.backfills if not one.is_over] if status else []
    if not open_ones:
        return None
    first = next((one for one in open_ones if one.state == "running"), open_ones[0])
    further = len(open_ones) - 1
    more = f"  +{further}" if further else ""
    return Content.assemble(
        (" ↻ ", "bold $primary"),
        (first.table, "bold"),
        f"  {in_brief(first, now)}{more}",
        (f"  {key_for(OPENS)}", "bold"),
        (" all", "$quiet"),
    )


def of_table(status: Status | None, table: str, now: float) -> str:
    """Return the progress of a table's newest request, or "" without any."""
    mine = [one for one in status.backfills if one.table == table] if status else []
    return progress_text(mine[-1], now) if mine else ""


def _item(status: BackfillStatus) -> Item:
    done, tone = share(status), _TONES.get(status.state, "")
    requested = figures.moment(status.requested)[11:19] if status.requested else figures.NONE
    cells = (
        Cell(status.table, "strong"),
        Cell(status.state, tone),
        Cell(figures.NONE if done is None else f"{done:.0%}"),
        Cell(f"{status.rows:,}" if status.rows < 1e7 else figures.count(status.rows), "", status.rows),
        Cell(figures.rate(status.rows_per_second) if status.state == "running" else figures.NONE),
        Cell(figures.count(status.tombstones)),
        Cell(figures.count(status.left_out)),
        Cell(requested, "muted", (status.requested, status.id)),
        Cell(status.id, "muted"),
        Cell(" ".join(status.where.split()), "muted"),
    )
    search = f"{status.id} {status.table} {status.state} {status.where} {status.reason} {status.error}"
    return Item(status.id, cells, search, status.state == "failed", status)


def _text(status: BackfillStatus, now: float) -> Content:
    if status.state == "failed":
        lines = [Content.styled(status.error, "bold $error"), Content.styled(status.hint, "$quiet")]
    else:
        lines = [Content.styled(progress_text(status, now), "bold")]
    requester = REASONS.get(status.reason, status.reason)
    facts = (
        ("id", status.id),
        ("table", status.table),
        ("where", status.where),
        ("requester", requester or "a user"),
        ("rows", f"{status.rows:,} sent"),
        ("tombstones", f"{status.tombstones:,}" if status.tombstones else ""),
        ("left out", f"{status.left_out:,}: the stream had sent a newer state" if status.left_out else ""),
        ("chunks", f"{status.chunks:,} acknowledged, {status.again:,} read again"),
        ("requested", figures.moment(status.requested) if status.requested else ""),
        ("started", figures.moment(status.started) if status.started else ""),
        ("ended", figures.moment(status.ended) if status.ended else ""),
    )
    lines += [Content("")]
    lines += [fact(name, value, width=12) for name, value in facts if value]
    return Content("\n").join(lines)

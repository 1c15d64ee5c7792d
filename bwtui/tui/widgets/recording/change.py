"""A change of a recording, as a row and in full."""

from collections.abc import Callable

from rich.console import RenderableType

from bwtui.model.status import FieldChange
from bwtui.recording.change import Change, SentMessage
from bwtui.recording.fields import differences, key_text
from bwtui.recording.reading.seek_target import MICROS
from bwtui.tui import figures
from bwtui.tui.assessment import Tone
from bwtui.tui.plain import Group, Text
from bwtui.tui.widgets.changes import OPERATIONS, fields_table
from bwtui.tui.widgets.columns import Cell, GridRow
from bwtui.tui.widgets.detail import Detail

WITHOUT = {
    "dropped": "dropped by --on-error log: it is among the dead letters, and the errors say why",
    "superseded": "passed over: the row was gone before its unchanged large value could be read",
    "unkeyed": "a delete in a table without a key has nothing to put into a tombstone",
    "truncated": "TRUNCATE makes no message, unless --truncate-topic is set",
}


class RecordedDetail(Detail):
    """Shows one recorded change: PostgreSQL's data, the messages made from it, and their places."""

    def __init__(self) -> None:
        super().__init__(id="change", title="Change")

    def show_nothing(self, reason: str) -> None:
        """Show why there is no change."""
        self.border_title = "Change"
        self.show(reason, Text(reason))

    def show_change(self, change: Change, fields: tuple[FieldChange, ...] | None = None) -> None:
        """Show a change; ``fields`` are set if more is known about the old row than the change contains."""
        colours = self.app.theme_variables
        shown = differences(change) if fields is None else fields
        self.border_title = f"Change at position {change.position:,}"
        self.show((change.position, shown), change_content(change, shown, colours))


def has_trouble(change: Change) -> bool:
    """Return whether a message was dropped, refused or never confirmed."""
    return change.without == "dropped" or any(m.state in ("refused", "unknown") for m in change.messages)


def change_row(change: Change, with_table: bool) -> GridRow:
    """Return a recorded change as a row."""
    sign, tone = OPERATIONS.get(change.operation, (" ", ""))
    message = change.messages[-1] if change.messages else None
    place = (
        f"{message.partition}@{message.offset}" if message and message.offset is not None else figures.NONE
    )
    changed = ", ".join(f.name for f in differences(change) if f.mark == "changed")
    cells = [
        _mark(change),
        Cell(figures.precise_clock(change.commit_time / MICROS), "muted"),
        Cell(f"{sign} {change.operation}", tone),
        Cell(change.table if len(change.tables) < 2 else ", ".join(change.tables), "strong"),
        Cell(key_text(change) or figures.NONE),
        Cell(change.lsn_text, "muted"),
        Cell(str(change.xid) if change.in_transaction else "", "muted"),
        Cell(place, "muted"),
        Cell(changed, "warn"),
    ]
    if not with_table:
        del cells[3]
    return GridRow(str(change.position), tuple(cells))


def _mark(change: Change) -> Cell:
    if change.without == "dropped" or any(m.state == "refused" for m in change.messages):
        return Cell("✗", "bad")
    if any(m.state == "unknown" for m in change.messages):
        return Cell("?", "warn")
    return Cell("»", "muted") if change.is_repeat else Cell("")


def change_content(
    change: Change, fields: tuple[FieldChange, ...], colours: dict[str, str]
) -> RenderableType:
    """Return everything about a change."""
    quiet = colours["quiet"]
    sign, _ = OPERATIONS.get(change.operation, (" ", ""))
    xid = str(change.xid) if change.in_transaction else figures.NONE
    head = Text.assemble(
        (f"{sign} {change.operation} {', '.join(change.tables)}", "bold"),
        ("  key ", quiet), key_text(change) or figures.NONE,
    )  # fmt: skip
    place = Text.assemble(
        ("committed ", quiet), figures.precise_clock(change.commit_time / MICROS),
        ("  recorded ", quiet), figures.precise_clock(change.received / MICROS),
        ("  lsn ", quiet), change.lsn_text, ("  xid ", quiet), xid,
        ("  change " if change.in_transaction else "  row ", quiet), f"{change.ordinal:,}",
        (" of its transaction" if change.in_transaction else " of its table", quiet),
        ("  pass ", quiet), str(change.pass_number),
    )  # fmt: skip
    lines: list[RenderableType] = [head, place]
    if change.is_repeat:
        lines.append(Text("» sent again: an earlier pass recorded this change already", colours["secondary"]))
    lines += [_message(message, colours) for message in change.messages]
    if not change.messages:
        reason = WITHOUT.get(change.without or "", change.without or "no reason recorded")
        style = colours["error"] if change.without == "dropped" else colours["warning"]
        lines.append(Text(f"no message: {reason}", style))
    if change.filled:
        names = ", ".join(change.filled)
        lines.append(
            Text(f"put in by the relay, since PostgreSQL did not send it: {names}", colours["secondary"])
        )
    operation = "delete" if change.after is None else change.operation
    return Group(*lines, *(("", fields_table(operation, fields, colours)) if fields else ()))


_STATES: dict[str, tuple[str, str, Callable[[SentMessage], str]]] = {
    "acknowledged": ("✓", "success", lambda m: f"partition {m.partition} offset {m.offset}"),
    "refused": ("✗", "error", lambda m: "refused by Kafka, and dropped by --on-error log"),
    "unknown": ("?", "warning", lambda m: "no word came before the relay ended: it may be in the topic"),
    "unsent": ("·", "quiet", lambda m: "not sent: recorded without Kafka"),
}


#: The tone of each colour in `_STATES`.
_TONES: dict[str, Tone] = {"success": "good", "error": "bad", "warning": "warn", "quiet": "muted"}


def delivery_words(message: SentMessage) -> tuple[Tone, str]:
    """Return the delivery state of a message, and whether it is good or bad."""
    _, colour, where = _STATES[message.state]
    return _TONES[colour], where(message)


def _message(message: SentMessage, colours: dict[str, str]) -> Text:
    quiet = colours["quiet"]
    sign, colour, where = _STATES[message.state]
    kind = "tombstone" if message.value is None else figures.size(len(message.value))
    parts: list[str | tuple[str, str]] = [
        (f"{sign} ", colours[colour]), (f"{message.topic} ", "bold"), (where(message), colours[colour]),
        (f"  {kind}", quiet),
    ]  # fmt: skip
    for name, number in (("key schema", message.key_schema_id), ("value schema", message.value_schema_id)):
        if number is not None:
            parts += [(f"  {name} ", quiet), str(number)]
    return Text.assemble(*parts)

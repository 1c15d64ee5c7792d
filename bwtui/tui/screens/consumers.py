"""The consumer groups of the relay's topics, and the lag of each by its last commits."""

from collections.abc import Iterable
from typing import ClassVar

from textual.widget import Widget

from bwtui.model.service_views import Consumers, GroupEntry, Look, LookName, PartitionLag
from bwtui.tui import assessment, figures
from bwtui.tui.plain import Content
from bwtui.tui.screens.service_view import ServiceViewScreen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.columns import Cell, GridColumn
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.item_list import Item, ItemList
from bwtui.tui.widgets.line import Line

GROUPS = (
    GridColumn("mark", "", 1),
    GridColumn("group", "Group", 20, grow=44),
    GridColumn("verdict", "Is", 12),
    GridColumn("unread", "Unread", 8, "right"),
    GridColumn("time", "Behind", 9, "right"),
    GridColumn("state", "State", 9, drop=1, grow=22),
    GridColumn("members", "Members", 7, "right", drop=2),
    GridColumn("partitions", "Parts", 5, "right", drop=3),
    GridColumn("topics", "Topics", 14, drop=4, grow=60),
)
PARTITIONS = (
    GridColumn("mark", "", 1),
    GridColumn("topic", "Topic", 20, grow=60),
    GridColumn("partition", "Part", 4, "right"),
    GridColumn("unread", "Unread", 9, "right"),
    GridColumn("time", "Behind", 9, "right"),
    GridColumn("committed", "Committed", 11, "right"),
    GridColumn("end", "End", 11, "right"),
    GridColumn("since", "First unread is of", 19, drop=1),
)


class ConsumersScreen(ServiceViewScreen):
    """Shows the groups, and the partitions of the selected one."""

    mode: ClassVar[str] = "consumers"
    wants_look: ClassVar[LookName | None] = "consumers"
    service: ClassVar[str] = "Kafka"
    instead: ClassVar[str] = "kafka-consumer-groups.sh --bootstrap-server … --all-groups --describe"

    def body(self) -> Iterable[Widget]:
        groups = ItemList(
            GROUPS,
            ("unread", "time", "group", "verdict", "members"),
            id="groups",
            noun="groups",
        )
        groups.border_title = "Consumer groups"
        partitions = ItemList(
            PARTITIONS, ("unread", "time", "topic", "partition", "end"), id="partitions", noun="partitions"
        )
        partitions.border_title = "Partitions"
        return (Line(id="said"), groups, partitions)

    def show_look(self, look: Look, picture: ScreenSnapshot) -> Content:
        """Fill the lists, and return which group has the largest lag."""
        assert isinstance(look, Consumers)
        groups = self.query_one("#groups", ItemList)
        groups.set_items([_group(group, look.time) for group in look.groups], picture.received)
        self._show_partitions(look, picture)
        return _sentence(look)

    def rest_after(self, look: Look) -> float:
        """Return the pause of `OnDemandPoller`: 4 times the poll's duration, up to 10 s."""
        assert isinstance(look, Consumers)
        return min(4 * look.seconds, 10.0)

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        """Show the partitions of the selected group."""
        picture = self.host.model.picture
        look = picture.looks.get("consumers")
        if event.grid.id == "groups" and isinstance(look, Consumers):
            self._show_partitions(look, picture)

    def open_row(self, grid: Grid) -> None:
        """Focus the group's partitions."""
        self.query_one("#partitions").focus()

    def _show_partitions(self, look: Consumers, picture: ScreenSnapshot) -> None:
        key = self.query_one("#groups", ItemList).cursor_key
        group = next((one for one in look.groups if one.name == key), None)
        partitions = self.query_one("#partitions", ItemList)
        partitions.border_title = Content("Partitions" if group is None else f"Partitions of {group.name}")
        lags = group.partitions if group else ()
        partitions.set_items([_lag(lag, look.time) for lag in lags], picture.received)


def _sentence(look: Consumers) -> Content:
    """Return which group has the largest lag, and where."""
    late = [group for group in look.groups if assessment.is_behind(group, look.time)]
    unknown = "".join(f" {_unknown(group)}" for group in look.groups if group.uncommitted)
    if not look.groups:
        return Content.styled(" No consumer group has committed an offset in these topics.", "$quiet")
    many = "1 group reads" if len(look.groups) == 1 else f"{len(look.groups)} groups read"
    if not late and unknown:
        return Content.styled(f" ▲{unknown}", "$warning")
    if not late:
        return Content.assemble((" ✓ ", "$success"), f"{many} these topics, and none is late.")
    worst = max(late, key=lambda group: (_age(group.unread_since, look.time), group.unread))
    age = "" if worst.unread_since is None else f", {figures.duration(_age(worst.unread_since, look.time))}"
    where = worst.partitions[0] if worst.partitions else None
    place = f", most of it in {where.topic}[{where.partition}]" if where is not None and where.unread else ""
    alone = "" if worst.members != 0 else "; no consumer is in it"
    return Content.assemble(
        (" ▲ ", "$warning"),
        (f"{worst.name} is furthest behind: {assessment.unread_of(worst)} messages{age}", "bold"),
        f"{place}{alone}. ",
        (f"{len(late)} of {len(look.groups)} groups late.", "$quiet"),
        (unknown, "$warning"),
    )


def _unknown(group: GroupEntry) -> str:
    noun = "a partition that holds" if group.uncommitted == 1 else f"{group.uncommitted} partitions that hold"
    return f"{group.name} has committed nothing in {noun} messages: what it has read there is not known."


def _age(since: float | None, now: float) -> float:
    return 0.0 if since is None else max(now - since, 0.0)


def _group(group: GroupEntry, now: float) -> Item:
    verdict = assessment.of_group(group, now)
    topics = ", ".join(group.topics)
    if group.uncommitted:
        noun = "partition" if group.uncommitted == 1 else "partitions"
        topics = f"{group.uncommitted} {noun} without a commit; {topics}"
    age = _age(group.unread_since, now)
    cells = (
        Cell(verdict.mark, verdict.tone),
        Cell(group.name, "strong"),
        Cell(verdict.word, verdict.tone),
        Cell(assessment.unread_of(group), "" if group.unread else "muted"),
        _time(group.unread or group.uncommitted, group.unread_since, now),
        Cell(group.state, "muted"),
        Cell(
            figures.NONE if group.members is None else str(group.members), "warn" if not group.members else ""
        ),
        Cell(str(group.partition_count), "muted"),
        Cell(topics, "warn" if group.uncommitted else "muted"),
    )
    values = {
        "unread": group.unread,
        "time": age,
        "group": group.name,
        "verdict": verdict.word,
        "members": group.members or 0,
    }
    search = f"{group.name} {verdict.word} {group.state} {topics}"
    return Item(group.name, cells, values, search, verdict.tone != "good")


def _lag(lag: PartitionLag, now: float) -> Item:
    late = lag.unread > 0 and lag.unread_since is not None and assessment.is_late(lag.unread_since, now)
    key = f"{lag.topic}[{lag.partition}]"
    unknown = lag.committed is None and lag.end > 0
    cells = (
        Cell("▲" if late else " ", "warn" if late else ""),
        Cell(lag.topic),
        Cell(str(lag.partition)),
        Cell("not known" if unknown else figures.count(lag.unread), "" if lag.unread else "muted"),
        Cell(figures.NONE, "muted") if unknown else _time(lag.unread, lag.unread_since, now),
        Cell("never", "warn") if lag.committed is None else Cell(str(lag.committed)),
        Cell(str(lag.end), "muted"),
        Cell(figures.NONE if lag.unread_since is None else figures.moment(lag.unread_since), "muted"),
    )
    values = {
        "unread": lag.unread,
        "time": _age(lag.unread_since, now),
        "topic": lag.topic,
        "partition": lag.partition,
        "end": lag.end,
    }
    return Item(key, cells, values, key, late)


def _time(unread: int, since: float | None, now: float) -> Cell:
    if not unread:
        return Cell(figures.duration(0), "muted")
    if since is None:
        return Cell("not known", "muted")
    return Cell(figures.duration(_age(since, now)), "warn" if assessment.is_late(since, now) else "")

"""The versions of a subject in order, and a comparison of two of them field by field."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

from textual.containers import Container
from textual.widget import Widget

from bwtui.encode.schema_differences import SchemaDifference, differences
from bwtui.model.service_views import CHANGES, NEWEST, Look, LookName, SubjectVersions
from bwtui.tui import figures
from bwtui.tui.host import Closer, ScreenHost, ScreenSelection
from bwtui.tui.keys import key_for
from bwtui.tui.plain import Content
from bwtui.tui.registry import descriptions
from bwtui.tui.registry.versions import SubjectVersion, before, versions
from bwtui.tui.screens.service_view import OLD_AFTER, ServiceViewScreen
from bwtui.tui.state import ScreenSnapshot
from bwtui.tui.widgets.columns import Cell, GridColumn
from bwtui.tui.widgets.grid import Grid
from bwtui.tui.widgets.item_list import Item, SortedItemList
from bwtui.tui.widgets.line import Line

VERSIONS = (
    GridColumn("mark", "", 4),
    GridColumn("version", "Ver", 5, "right"),
    GridColumn("id", "Id", 7, "right"),
    GridColumn("changes", "Changes", 9, grow=20),
    GridColumn("when", "When", 27, grow=34),
    GridColumn("fields", "Fields", 6, "right", drop=1),
)
DIFFERENCES = (
    GridColumn("field", "Field", 16, grow=60),
    GridColumn("kind", "What", 8, grow=14),
    GridColumn("before", "Was", 12, grow=60),
    GridColumn("after", "Is", 12, grow=60),
    GridColumn("rule", "Rule", 18, grow=36),
)
#: Maximum fetched texts of versions that are cached, in addition to the relay's own.
_TEXTS = 40
#: Seconds per painting for comparing versions that are not selected.
_SPARE = 0.03

#: The action that shows all schemas.
_REGISTRY = "show('registry')"


class VersionsScreen(ServiceViewScreen):
    """Shows a timeline of versions; compares the selected one with the version before or with a held one."""

    mode: ClassVar[str] = "registry"
    wants_look: ClassVar[LookName | None] = "subject"
    service: ClassVar[str] = "the schema registry"
    own_keys: ClassVar[frozenset[str]] = frozenset(("look_closer('versions')",))

    def __init__(self, host: ScreenHost, subject: str) -> None:
        super().__init__(host)
        self.subject = subject
        self._versions: list[SubjectVersion] = []
        self._texts: dict[str, str] = {}
        #: The key of the version that others are compared with.
        self._held: str | None = None
        self._found: dict[tuple[str, str], list[SchemaDifference] | None] = {}
        self._shown: object = None
        self._is_placed = False
        self._timeline = SortedItemList(VERSIONS, ("version", "id"), id="versions", noun="versions")
        self._opened = host.model.clock()

    @classmethod
    def of(cls, host: ScreenHost, selection: ScreenSelection) -> Closer:
        """Return the screen of the selected subject, or of the selected table's."""
        subject = selection.selected_subject()
        if subject is None:
            return f"No schema is selected: {key_for(_REGISTRY)} shows those that are known here"
        return cls(host, subject)

    def body(self) -> Iterable[Widget]:
        self._timeline.border_title = Content("Versions")
        found = SortedItemList(DIFFERENCES, ("field", "kind", "rule"), id="differences", noun="differences")
        found.border_title = Content("Differences")
        return (Line(id="said"), Container(self._timeline, found, id="versions-pair", classes="folder"))

    def crumbs(self) -> tuple[str, ...]:
        return ("Registry", self.subject)

    def selected_subject(self) -> str | None:
        return self.subject

    def selected_table(self) -> str | None:
        """Return the table that the subject belongs to."""
        schemas = self.host.model.picture.schemas
        return next((one.table for one in schemas if one.subject == self.subject), None)

    def open_row(self, grid: Grid) -> None:
        """Focus the differences."""
        if grid.id == "versions":
            self.query_one("#differences").focus()

    def action_look_closer(self, name: str) -> None:
        """Hold the selected version for comparison with others, or release it."""
        if name != "versions":
            super().action_look_closer(name)
            return
        selected = self._selected()
        if selected is not None:
            self._held = None if self._held == selected.key else selected.key
            self.refresh_picture()

    # -- requests -------------------------------------------------------------------------------------------

    def look_about(self) -> tuple[str, ...]:
        """Return the subject, and the versions with missing texts."""
        look = self._look(self.host.model.picture)
        if look is None or not look.versions:
            return (self.subject, CHANGES, NEWEST)
        return (self.subject, CHANGES, *(one.key for one in self._lacking()))

    @property
    def hurries(self) -> bool:
        """Whether requested data is still missing."""
        look = self._look(self.host.model.picture)
        return look is None or (not look.time and not look.failure) or bool(self._lacking())

    def _lacking(self) -> list[SubjectVersion]:
        return [one for one in self._pair() if one.text is None and one.number is not None]

    def _look(self, picture: ScreenSnapshot) -> SubjectVersions | None:
        """Return the registry's answer, unless a screen requested it long before this one was opened."""
        look = picture.looks.get("subject")
        if not isinstance(look, SubjectVersions) or look.name != self.subject:
            return None
        return None if 0 < look.time < self._opened - OLD_AFTER else look

    # -- showing -------------------------------------------------------------------------------------------

    def rest_after(self, look: Look) -> float:
        """Return twice the maximum pause of `SubjectViews`: one pause, and the next poll."""
        return 10.0

    def paint(self, picture: ScreenSnapshot) -> None:
        look = self._look(picture)
        if look is not None:
            self._texts |= {str(one.version): one.schema for one in look.texts}
            while len(self._texts) > _TEXTS:
                del self._texts[next(iter(self._texts))]
        self._versions = versions(self.subject, picture.schemas, look, self._texts)
        if self.host.model.recorded:
            self._count_changes()
        self._show_all(picture)

    def _show_all(self, picture: ScreenSnapshot) -> None:
        timeline = self._timeline
        timeline.set_items(self._items(picture.received), picture.received)
        if self._versions and not self._is_placed:
            self._is_placed = self._look(picture) is not None or self.host.model.recorded
            newest = next((one for one in reversed(self._versions) if one.is_compared), self._versions[-1])
            timeline.move_to_key(newest.key)
            # Now it is known which versions are compared.
            timeline.set_items(self._items(picture.received), picture.received)
        level = look.level if (look := self._look(picture)) is not None else ""
        self._show_differences(level, picture)
        said = [self._about(level, picture), self._comparison(level), self._missing(picture)]
        self.query_one("#said", Line).put(Content("\n").join([one for one in said if one.plain]), layout=True)

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        """Compare the newly selected version."""
        if event.grid.id == "versions":
            self._show_all(self.host.model.picture)

    def _selected(self) -> SubjectVersion | None:
        key = self._timeline.cursor_key
        return next((one for one in self._versions if one.key == key), None)

    def _pair(self) -> list[SubjectVersion]:
        """Return the two versions that are compared, the older one first; or the only one, or none."""
        selected = self._selected()
        if selected is None:
            return []
        other = next((one for one in self._versions if one.key == self._held and one is not selected), None)
        other = other or before(self._versions, selected)
        return sorted((one for one in (other, selected) if one is not None), key=self._versions.index)

    def _compare(self, old: SubjectVersion, new: SubjectVersion) -> list[SchemaDifference] | None:
        """Return the differences; None if one of the versions is not an Avro record."""
        key = (old.key, new.key)
        if key not in self._found:
            assert old.text is not None and new.text is not None
            try:
                self._found[key] = differences(old.text, new.text)
            except ValueError:
                self._found[key] = None
        return self._found[key]

    def _count_changes(self) -> None:
        """Count the changes of each version of a recording, as far as there is time."""
        until = time.perf_counter() + _SPARE
        for at, (old, new) in enumerate(pairwise(self._versions), 1):
            if time.perf_counter() > until and (old.key, new.key) not in self._found:
                self.set_timer(_SPARE, self.refresh_picture)
                return
            found = self._compare(old, new) or []
            kinds = [one.kind for one in found if one.field]
            changed = {one.field for one in found if one.field and one.kind not in ("added", "removed")}
            self._versions[at] = replace(
                new, added=kinds.count("added"), removed=kinds.count("removed"), changed=len(changed)
            )

    def _show_differences(self, level: str, picture: ScreenSnapshot) -> None:
        pair, listing = self._pair(), self.query_one("#differences", SortedItemList)
        texts = [one.text for one in pair]
        if (shown := (level, [one.key for one in pair], texts)) == self._shown:
            return
        self._shown = shown
        found = self._compare(*pair) if len(pair) == 2 and None not in texts else []
        listing.reason = self._why_none(pair, found)
        listing.set_items([_difference(n, one, level) for n, one in enumerate(found or ())], picture.received)
        listing.move_to(0)
        title = " → ".join(one.name for one in pair)
        listing.border_title = Content(f"Differences: {title}" if len(pair) == 2 else "Differences")

    def _why_none(self, pair: Sequence[SubjectVersion], found: Sequence[SchemaDifference] | None) -> str:
        if len(pair) < 2:
            return "there is no version before to compare with" if pair else "no version is known yet"
        if lacking := [one.name for one in pair if one.text is None]:
            return f"the schema of {' and '.join(lacking)} is not here yet"
        if found is None:
            return "one of them is no Avro record, so that they can't be compared"
        return "no difference but in how they are written"

    # -- sentences -----------------------------------------------------------------------------------------

    def _about(self, level: str, picture: ScreenSnapshot) -> Content:
        deleted = sum(one.is_deleted for one in self._versions)
        number = len(self._versions)
        count = "1 version" if number == 1 else f"{number:,} versions"
        if self.host.model.recorded:
            rest = f" · {count} in the recording up to here, which holds no compatibility level"
            return Content.assemble((f" {self.subject}", "bold"), (rest, "$quiet"))
        held = f" is held to {level}" if level else ""
        softly = f", {deleted:,} softly deleted" if deleted else ""
        own = "" if self._look(picture) and level else " known to the relay"
        return Content.assemble((f" {self.subject}", "bold"), held, (f" · {count}{own}{softly}", "$quiet"))

    def _comparison(self, level: str) -> Content:
        pair = self._pair()
        if len(pair) < 2 or any(one.text is None for one in pair):
            return Content("")
        old, new = pair
        found = self._compare(old, new)
        if found is None:
            return Content("")
        why = descriptions.unchecked(self._versions, old, new, level)
        return Content.assemble(
            (f" {old.name} → {new.name.removeprefix('version ')}: ", ""),
            descriptions.outcome(found, level),
            (f" · {why}" if why else "", "$warning"),
        )

    def _missing(self, picture: ScreenSnapshot) -> Content:
        """Return that an answer is pending, what failed, or how old the answer is; empty if all is well."""
        if self.host.model.recorded:
            return Content("")
        look = self._look(picture)
        if look is None or (not look.time and not look.failure):
            where = f" at {picture.status.registry}" if picture.status and picture.status.registry else ""
            seconds = max(self.host.model.clock() - self._opened, 0.0)
            waits = f", no answer for {figures.duration(seconds)}" if seconds >= 1 else ""
            return Content.styled(f" · the relay asks the schema registry{where}{waits}", "$quiet")
        return self._trouble(look, picture)

    def _items(self, now: float) -> list[Item]:
        pair = [one.key for one in self._pair()]
        marks = dict(zip(pair, ("from", "to"), strict=False)) if len(pair) == 2 else {}
        if self._held is not None:
            marks[self._held] = "held"
        return [_version(at, one, marks.get(one.key, ""), now) for at, one in enumerate(self._versions)]


def _version(place: int, version: SubjectVersion, mark: str, now: float) -> Item:
    state = "softly deleted" if version.is_deleted else "not in the registry" if version.is_gone else ""
    when = descriptions.when(version, now)
    cells = (
        Cell(mark, "strong"),
        Cell(figures.NONE if version.number is None else str(version.number)),
        Cell("…" if version.id is None else str(version.id)),
        Cell(descriptions.changes(version), "muted"),
        Cell(state or when, "warn" if state else "muted" if when == descriptions.UNKNOWN else ""),
        Cell("" if version.fields is None else f"{version.fields:,}", "muted"),
    )
    values = {"version": place, "id": version.id or 0}
    return Item(version.key, cells, values, f"{version.name} {version.id} {state} {when}", bool(state))


def _difference(number: int, difference: SchemaDifference, level: str) -> Item:
    rule = descriptions.rule_cell(difference, level)
    kind = "of record" if not difference.field and difference.kind == "name" else difference.kind
    cells = (
        Cell(difference.field or "(the record)", "" if difference.field else "muted"),
        Cell(kind, "strong"),
        Cell(difference.before or figures.NONE, "" if difference.before else "muted"),
        Cell(difference.after or figures.NONE, "" if difference.after else "muted"),
        rule,
    )
    values = {"field": number, "kind": difference.kind, "rule": descriptions.rank(rule)}
    search = f"{difference.field} {difference.kind} {difference.before} {difference.after} {rule.text}"
    return Item(f"{number:06}", cells, values, search, rule.tone in ("bad", "warn"))

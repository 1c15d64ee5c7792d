"""The schemas that the relay registered or looked up, their versions, and the result of trying DDL."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, ClassVar

from rich.console import RenderableType
from textual.containers import Container
from textual.highlight import highlight
from textual.widget import Widget

from bwtui.encode.schema_differences import SchemaDifference, differences, directions
from bwtui.escaping import escape_json
from bwtui.model.service_views import CHANGES, NEWEST, Look, LookName, SubjectVersions
from bwtui.model.status import SchemaEntry
from bwtui.tui.base import assessment, figures
from bwtui.tui.base.keys import key_for
from bwtui.tui.base.plain import Content, Group, Table, Text
from bwtui.tui.screens.base import RelayScreen
from bwtui.tui.screens.services import OLD_AFTER, ServiceViewScreen
from bwtui.tui.sources.host import Closer, ScreenHost, ScreenSelection
from bwtui.tui.sources.model import ScreenSnapshot
from bwtui.tui.widgets.grid import Cell, Grid, GridColumn, Item, ItemList, SortedItemList
from bwtui.tui.widgets.line import Detail, Line

COLUMNS = (
    GridColumn("subject", "Subject", 24, grow=46),
    GridColumn("id", "Id", 6, "right"),
    GridColumn("version", "Ver", 4, "right"),
    GridColumn("part", "Part", 5, drop=2),
    GridColumn("table", "Table", 18, drop=1, grow=34),
    GridColumn("time", "Since", 8, drop=3),
)


class RegistryScreen(RelayScreen):
    """Shows the subjects, and next to them the text of the selected schema."""

    mode: ClassVar[str] = "registry"
    required_view: ClassVar[LookName | None] = "subject"
    own_keys: ClassVar[frozenset[str]] = frozenset(("open_details('versions')", "try_ddl"))
    _listing: ItemList | None = None

    def body(self) -> Iterable[Widget]:
        listing = ItemList(
            COLUMNS,
            ("subject", "id", "version", "table", "time"),
            id="schemas",
            noun="schemas",
            title="Subjects",
        )
        self._listing = listing
        return (listing, Detail(id="schema", title="Schema"))

    def paint(self, snapshot: ScreenSnapshot) -> None:
        troubled = {
            name
            for name, table in (snapshot.status.tables.items() if snapshot.status else ())
            if assessment.has_trouble(table)
        }
        items = [_schema_item(schema, schema.table in troubled) for schema in snapshot.schemas]
        self.query_one(ItemList).set_items(items, snapshot.received)
        self._show_selected()

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        self._show_selected()

    def selected_subject(self) -> str | None:
        schema = self._selected()
        return None if schema is None else schema.subject

    def view_subjects(self) -> tuple[str, ...]:
        """Return the selected subject, because its compatibility level is shown."""
        return (self.selected_subject() or "",)

    @property
    def hurries(self) -> bool:
        view = self._subject_view()
        return view is None or (not view.time and not view.failure)

    def row_text(self) -> str:
        schema = self._selected()
        return "" if schema is None else pretty(schema.schema)

    def _selected(self) -> SchemaEntry | None:
        # This is also called before the list exists and while the screen closes.
        key = None if self._listing is None else self._listing.cursor_key
        schemas = self.host.model.snapshot.schemas
        return next((schema for schema in schemas if _schema_key(schema) == key), None)

    def _show_selected(self) -> None:
        detail, schema = self.query_one("#schema", Detail), self._selected()
        if schema is None:
            detail.show(None, Content.styled("no schema selected", "$quiet"))
            return
        rule = self._rule()
        head = Content.assemble(
            (f"{schema.subject}  ", "bold"),
            (f"id {schema.id}  ", "$primary"),
            (f"version {figures.NONE if schema.version is None else schema.version}", "$primary"),
            "\n",
            (f"{schema.part} of {schema.table}, topic {schema.topic}", "$quiet"),
            "\n" if rule else "",
            rule,
            "\n\n",
        )
        detail.show((schema, rule), head + highlight(escape_json(pretty(schema.schema)), language="json"))

    def _subject_view(self) -> SubjectVersions | None:
        view = self.host.model.snapshot.views.get("subject")
        return view if isinstance(view, SubjectVersions) and view.name == self.selected_subject() else None

    def _rule(self) -> str:
        """Return the selected subject's compatibility level and number of versions; "" in a recording."""
        view = self._subject_view()
        if self.host.model.recorded or view is None:
            return ""
        if view.failure:
            return view.failure
        number = len(view.versions)
        versions = "1 version" if number == 1 else f"{number:,} versions"
        return f"compatibility level {view.level}, {versions} in the registry" if view.level else ""


def pretty(schema: str) -> str:
    """Return a schema's text with one line per field; text that is not JSON stays unchanged."""
    try:
        data = json.loads(schema)
    except ValueError:
        return schema
    if not isinstance(data, dict) or not isinstance(data.get("fields"), list):
        return json.dumps(data, indent=2, ensure_ascii=False)
    fields = ",\n".join(f"    {json.dumps(f, ensure_ascii=False)}" for f in data["fields"])
    rest = {**data, "fields": []}
    # One line per field is easier to read than the twelve of an indented union.
    return json.dumps(rest, indent=2, ensure_ascii=False).replace(
        '"fields": []', f'"fields": [\n{fields}\n  ]'
    )


def _schema_key(schema: SchemaEntry) -> str:
    return f"{schema.subject} {schema.id}"


def _schema_item(schema: SchemaEntry, trouble: bool) -> Item:
    version = figures.NONE if schema.version is None else str(schema.version)
    cells = (
        Cell(schema.subject, "strong"),
        Cell(str(schema.id), "", schema.id),
        Cell(version, "", schema.version or 0),
        Cell(schema.part, "muted"),
        Cell(schema.table),
        Cell(figures.clock(schema.time), "muted", schema.time),
    )
    return Item(_schema_key(schema), cells, f"{schema.subject} {schema.id} {schema.table}", trouble)


@dataclass(frozen=True, slots=True)
class SubjectVersion:
    """A version of a subject; unknown attributes are None."""

    #: Its number, or its id if it has no number.
    key: str
    number: int | None
    id: int | None = None
    #: The schema, if available.
    text: str | None = None
    #: When it was registered, according to the registry, and since when the relay has used it.
    registered: float | None = None
    used: float | None = None
    is_deleted: bool = False
    #: The registry does not list it: it was removed, or never registered there.
    is_gone: bool = False
    #: Fields added, removed and changed since the version before.
    added: int | None = None
    removed: int | None = None
    changed: int | None = None
    fields: int | None = None

    @property
    def name(self) -> str:
        """Its name for use in a sentence."""
        return f"version {self.number}" if self.number is not None else f"id {self.id}"

    @property
    def is_compared(self) -> bool:
        """True if the registry compares new schemas with it."""
        return not self.is_deleted and not self.is_gone


def versions_of(
    name: str, schemas: Sequence[SchemaEntry], subject: SubjectVersions | None, texts: Mapping[str, str]
) -> list[SubjectVersion]:
    """Return the versions of subject ``name``, the oldest one first.

    ``schemas`` are those that the relay or the recording holds, ``subject`` is the registry's answer, and
    ``texts`` are the registry's schemas by the key of their version.
    """
    by_key: dict[str, SubjectVersion] = {}
    for entry in schemas:
        if entry.subject == name:
            key = f"id {entry.id}" if entry.version is None else str(entry.version)
            if key not in by_key:
                by_key[key] = SubjectVersion(key, entry.version, entry.id, entry.schema, used=entry.time)
    if subject is not None and subject.versions:
        listed = {str(entry.version): entry for entry in subject.versions}
        by_key = {key: replace(one, is_gone=key not in listed) for key, one in by_key.items()}
        for key, entry_listed in listed.items():
            version = by_key.get(key) or SubjectVersion(key, entry_listed.version)
            by_key[key] = replace(
                version,
                id=version.id if entry_listed.id is None else entry_listed.id,
                text=version.text if version.text is not None else texts.get(key),
                registered=entry_listed.registered,
                is_deleted=entry_listed.is_deleted,
                added=entry_listed.added,
                removed=entry_listed.removed,
                changed=entry_listed.changed,
                fields=entry_listed.fields,
            )
    return sorted(by_key.values(), key=lambda one: (one.number or 0, one.used or 0.0, one.key))


def version_before(all_versions: Sequence[SubjectVersion], later: SubjectVersion) -> SubjectVersion | None:
    """Return the version to compare ``later`` with by default: the last earlier one that still counts."""
    earlier = list(all_versions[: all_versions.index(later)])
    alive = [one for one in earlier if one.is_compared]
    return next(reversed(alive or earlier), None)


#: Shown if it is unknown when a version was registered.
UNKNOWN = "unknown"
_RANK = {"bad": 0, "warn": 1}


def rule_cell(difference: SchemaDifference, level: str) -> Cell:
    """Return which compatibility rule a difference breaks, or that it keeps the rule in force."""
    rule, breaks = level.removesuffix("_TRANSITIVE"), " and ".join(sorted(difference.breaks))
    if not level:
        return Cell(f"breaks {breaks}", "warn") if breaks else Cell("breaks neither rule", "muted")
    if rule == "NONE":
        return Cell(f"unchecked, breaks {breaks}", "warn") if breaks else Cell("unchecked", "muted")
    if difference.breaks & directions(level):
        return Cell(f"✗ breaks {rule}", "bad")
    return Cell(f"✓ keeps {rule}", "good")


def rule_rank(cell: Cell) -> int:
    """Return a sort key that puts broken rules first."""
    return _RANK.get(cell.tone, 2)


def comparison(differences: Sequence[SchemaDifference], level: str) -> Content:
    """Return in a few words how two versions differ, and whether the rule holds between them."""
    if not differences:
        return Content.styled("no differences except in notation", "$quiet")
    kinds = [one.kind for one in differences]
    other_kinds = [kind for kind in kinds if kind not in ("added", "removed", "type", "default")]
    numbers = (
        (kinds.count("added"), "added"),
        (kinds.count("removed"), "removed"),
        (kinds.count("type"), "with a new type"),
        (kinds.count("default"), "with a changed default"),
        (len(other_kinds), "other"),
    )
    counted = ", ".join(f"{number:,} {label}" for number, label in numbers if number)
    return Content.assemble(f"{counted}: ", rule_verdict(differences, level))


def rule_verdict(differences: Sequence[SchemaDifference], level: str) -> tuple[str, str]:
    """Return whether the rule holds, and the style of that text."""
    rule, breaks = level.removesuffix("_TRANSITIVE"), sorted({one for it in differences for one in it.breaks})
    broken = " and ".join(breaks)
    if not level:
        return (f"▲ breaks {broken}", "bold $warning") if broken else ("✓ breaks neither rule", "$success")
    if rule == "NONE":
        return (
            (f"NONE checks nothing; breaks {broken}", "$warning") if broken else ("NONE checks nothing", "")
        )
    bad = sum(bool(one.breaks & directions(level)) for one in differences)
    if bad:
        return f"✗ breaks {rule} in {bad:,}", "bold $error"
    return f"✓ keeps {rule}", "$success"


def why_unchecked(
    all_versions: Sequence[SubjectVersion], old: SubjectVersion, new: SubjectVersion, level: str
) -> str:
    """Return why the registry does not compare these two versions, or an empty string."""
    uncompared = [one for one in (old, new) if not one.is_compared]
    if uncompared:
        state = "softly deleted" if uncompared[0].is_deleted else "not in the registry"
        return f"{uncompared[0].name} is {state}, so the registry does not compare new schemas with it"
    between = [
        one for one in all_versions[all_versions.index(old) + 1 : all_versions.index(new)] if one.is_compared
    ]
    if level and between and not level.endswith("_TRANSITIVE") and level != "NONE":
        return f"{level} compares only adjacent versions, and there are {len(between):,} in between"
    return ""


def when_registered(version: SubjectVersion, now: float) -> str:
    """Return when a version was registered, or else since when it has been used."""
    if version.registered is not None:
        return f"registered {_short_moment(version.registered, now)}"
    return UNKNOWN if version.used is None else f"used since {_short_moment(version.used, now)}"


def _short_moment(seconds: float, now: float) -> str:
    """Return the time of day, or date and time if it is not today."""
    text = figures.moment(seconds)
    return text[11:] if text[:10] == figures.moment(now)[:10] else text[:16]


def counted_changes(version: SubjectVersion) -> str:
    """Return the numbers of fields that were added, removed and changed."""
    if version.added is None or version.removed is None or version.changed is None:
        return ""
    parts = [f"{sign}{number:,}" for sign, number in _signed(version) if number]
    return " ".join(parts) or "no field"


def _signed(version: SubjectVersion) -> tuple[tuple[str, int], ...]:
    return ("+", version.added or 0), ("−", version.removed or 0), ("~", version.changed or 0)


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
    GridColumn("kind", "Change", 8, grow=14),
    GridColumn("before", "Before", 12, grow=60),
    GridColumn("after", "After", 12, grow=60),
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
    required_view: ClassVar[LookName | None] = "subject"
    service: ClassVar[str] = "the schema registry"
    own_keys: ClassVar[frozenset[str]] = frozenset(("open_details('versions')",))

    def __init__(self, host: ScreenHost, subject: str) -> None:
        super().__init__(host)
        self.subject = subject
        self._versions: list[SubjectVersion] = []
        self._texts: dict[str, str] = {}
        #: The key of the version that others are compared with.
        self._base_key: str | None = None
        self._compared: dict[tuple[str, str], list[SchemaDifference] | None] = {}
        self._shown: object = None
        self._is_placed = False
        self._timeline = SortedItemList(
            VERSIONS, ("version", "id"), id="versions", noun="versions", title="Versions"
        )
        self._opened = host.model.clock()

    @classmethod
    def of(cls, host: ScreenHost, selection: ScreenSelection) -> Closer:
        """Return the screen of the selected subject, or of the selected table's."""
        subject = selection.selected_subject()
        if subject is None:
            return f"No schema is selected; {key_for(_REGISTRY)} lists the known ones"
        return cls(host, subject)

    def body(self) -> Iterable[Widget]:
        listing = SortedItemList(
            DIFFERENCES, ("field", "kind", "rule"), id="differences", noun="differences", title="Differences"
        )
        return (Line(id="said"), Container(self._timeline, listing, id="versions-pair", classes="folder"))

    def crumbs(self) -> tuple[str, ...]:
        return ("Registry", self.subject)

    def selected_subject(self) -> str | None:
        return self.subject

    def selected_table(self) -> str | None:
        schemas = self.host.model.snapshot.schemas
        return next((one.table for one in schemas if one.subject == self.subject), None)

    def open_row(self, grid: Grid) -> None:
        if grid.id == "versions":
            self.query_one("#differences").focus()

    def action_open_details(self, name: str) -> None:
        """Hold the selected version for comparison with others, or release it."""
        if name != "versions":
            super().action_open_details(name)
            return
        selected = self._selected()
        if selected is not None:
            self._base_key = None if self._base_key == selected.key else selected.key
            self.refresh_picture()

    # -- requests -------------------------------------------------------------------------------------------

    def view_subjects(self) -> tuple[str, ...]:
        view = self._subject_view(self.host.model.snapshot)
        if view is None or not view.versions:
            return (self.subject, CHANGES, NEWEST)
        return (self.subject, CHANGES, *(one.key for one in self._lacking()))

    @property
    def hurries(self) -> bool:
        view = self._subject_view(self.host.model.snapshot)
        return view is None or (not view.time and not view.failure) or bool(self._lacking())

    def _lacking(self) -> list[SubjectVersion]:
        return [one for one in self._pair() if one.text is None and one.number is not None]

    def _subject_view(self, snapshot: ScreenSnapshot) -> SubjectVersions | None:
        """Return the registry's answer, unless a screen requested it long before this one was opened."""
        view = snapshot.views.get("subject")
        if not isinstance(view, SubjectVersions) or view.name != self.subject:
            return None
        return None if 0 < view.time < self._opened - OLD_AFTER else view

    # -- showing -------------------------------------------------------------------------------------------

    def rest_after(self, view: Look) -> float:
        """Return twice the maximum pause of `SubjectViews`: one pause, and the next poll."""
        return 10.0

    def paint(self, snapshot: ScreenSnapshot) -> None:
        view = self._subject_view(snapshot)
        if view is not None:
            self._texts |= {str(one.version): one.schema for one in view.texts}
            while len(self._texts) > _TEXTS:
                del self._texts[next(iter(self._texts))]
        self._versions = versions_of(self.subject, snapshot.schemas, view, self._texts)
        if self.host.model.recorded:
            self._count_changes()
        self._show_all(snapshot)

    def _show_all(self, snapshot: ScreenSnapshot) -> None:
        timeline = self._timeline
        timeline.set_items(self._items(snapshot.received), snapshot.received)
        if self._versions and not self._is_placed:
            self._is_placed = self._subject_view(snapshot) is not None or self.host.model.recorded
            newest = next((one for one in reversed(self._versions) if one.is_compared), self._versions[-1])
            timeline.move_to_key(newest.key)
            # Now it is known which versions are compared.
            timeline.set_items(self._items(snapshot.received), snapshot.received)
        level = view.level if (view := self._subject_view(snapshot)) is not None else ""
        self._show_differences(level, snapshot)
        sentences = [self._about(level, snapshot), self._comparison(level), self._missing(snapshot)]
        self.query_one("#said", Line).put(
            Content("\n").join([one for one in sentences if one.plain]), layout=True
        )

    def on_grid_highlighted(self, event: Grid.Highlighted) -> None:
        if event.grid.id == "versions":
            self._show_all(self.host.model.snapshot)

    def _selected(self) -> SubjectVersion | None:
        key = self._timeline.cursor_key
        return next((one for one in self._versions if one.key == key), None)

    def _pair(self) -> list[SubjectVersion]:
        """Return the two versions that are compared, the older one first; or the only one, or none."""
        selected = self._selected()
        if selected is None:
            return []
        base = next(
            (one for one in self._versions if one.key == self._base_key and one is not selected), None
        )
        base = base or version_before(self._versions, selected)
        return sorted((one for one in (base, selected) if one is not None), key=self._versions.index)

    def _compare(self, old: SubjectVersion, new: SubjectVersion) -> list[SchemaDifference] | None:
        """Return the differences; None if one of the versions is not an Avro record."""
        key = (old.key, new.key)
        if key not in self._compared:
            assert old.text is not None and new.text is not None
            try:
                self._compared[key] = differences(old.text, new.text)
            except ValueError:
                self._compared[key] = None
        return self._compared[key]

    def _count_changes(self) -> None:
        """Count the changes of each version of a recording, as far as there is time."""
        until = time.perf_counter() + _SPARE
        for at, (old, new) in enumerate(pairwise(self._versions), 1):
            if time.perf_counter() > until and (old.key, new.key) not in self._compared:
                self.set_timer(_SPARE, self.refresh_picture)
                return
            changes = self._compare(old, new) or []
            kinds = [one.kind for one in changes if one.field]
            changed = {one.field for one in changes if one.field and one.kind not in ("added", "removed")}
            self._versions[at] = replace(
                new, added=kinds.count("added"), removed=kinds.count("removed"), changed=len(changed)
            )

    def _show_differences(self, level: str, snapshot: ScreenSnapshot) -> None:
        pair, listing = self._pair(), self.query_one("#differences", SortedItemList)
        texts = [one.text for one in pair]
        if (displayed := (level, [one.key for one in pair], texts)) == self._shown:
            return
        self._shown = displayed
        changes = self._compare(*pair) if len(pair) == 2 and None not in texts else []
        listing.say_why_empty(self._why_none(pair, changes))
        listing.set_items(
            [_difference_item(n, one, level) for n, one in enumerate(changes or ())], snapshot.received
        )
        listing.move_to(0)
        title = " → ".join(one.name for one in pair)
        listing.border_title = Content(f"Differences: {title}" if len(pair) == 2 else "Differences")

    def _why_none(self, pair: Sequence[SubjectVersion], changes: Sequence[SchemaDifference] | None) -> str:
        if len(pair) < 2:
            return "no previous version to compare with" if pair else "no version is known yet"
        if missing := [one.name for one in pair if one.text is None]:
            return f"the schema of {' and '.join(missing)} has not arrived yet"
        if changes is None:
            return "one of them is not an Avro record, so they can't be compared"
        return "no differences except in notation"

    # -- sentences -----------------------------------------------------------------------------------------

    def _about(self, level: str, snapshot: ScreenSnapshot) -> Content:
        deleted = sum(one.is_deleted for one in self._versions)
        number = len(self._versions)
        count = "1 version" if number == 1 else f"{number:,} versions"
        if self.host.model.recorded:
            rest = f" · {count} in the recording up to here; recordings contain no compatibility level"
            return Content.assemble((f" {self.subject}", "bold"), (rest, "$quiet"))
        compatibility = f" has compatibility level {level}" if level else ""
        softly = f", {deleted:,} softly deleted" if deleted else ""
        source = "" if self._subject_view(snapshot) and level else " known to the relay"
        return Content.assemble(
            (f" {self.subject}", "bold"), compatibility, (f" · {count}{source}{softly}", "$quiet")
        )

    def _comparison(self, level: str) -> Content:
        pair = self._pair()
        if len(pair) < 2 or any(one.text is None for one in pair):
            return Content("")
        old, new = pair
        changes = self._compare(old, new)
        if changes is None:
            return Content("")
        why = why_unchecked(self._versions, old, new, level)
        return Content.assemble(
            (f" {old.name} → {new.name.removeprefix('version ')}: ", ""),
            comparison(changes, level),
            (f" · {why}" if why else "", "$warning"),
        )

    def _missing(self, snapshot: ScreenSnapshot) -> Content:
        """Return that an answer is pending, what failed, or how old the answer is; empty if all is well."""
        if self.host.model.recorded:
            return Content("")
        view = self._subject_view(snapshot)
        if view is None or (not view.time and not view.failure):
            where = f" at {snapshot.status.registry}" if snapshot.status and snapshot.status.registry else ""
            seconds = max(self.host.model.clock() - self._opened, 0.0)
            waits = f", no answer for {figures.duration(seconds)}" if seconds >= 1 else ""
            return Content.styled(f" · the relay is querying the schema registry{where}{waits}", "$quiet")
        return self._trouble(view, snapshot)

    def _items(self, now: float) -> list[Item]:
        pair = [one.key for one in self._pair()]
        marks = dict(zip(pair, ("from", "to"), strict=False)) if len(pair) == 2 else {}
        if self._base_key is not None:
            marks[self._base_key] = "held"
        return [_version_item(at, one, marks.get(one.key, ""), now) for at, one in enumerate(self._versions)]


def _version_item(place: int, version: SubjectVersion, mark: str, now: float) -> Item:
    state = "softly deleted" if version.is_deleted else "not in the registry" if version.is_gone else ""
    when = when_registered(version, now)
    cells = (
        Cell(mark, "strong"),
        Cell(figures.NONE if version.number is None else str(version.number), "", place),
        Cell("…" if version.id is None else str(version.id), "", version.id or 0),
        Cell(counted_changes(version), "muted"),
        Cell(state or when, "warn" if state else "muted" if when == UNKNOWN else ""),
        Cell("" if version.fields is None else f"{version.fields:,}", "muted"),
    )
    return Item(version.key, cells, f"{version.name} {version.id} {state} {when}", bool(state))


def _difference_item(number: int, difference: SchemaDifference, level: str) -> Item:
    rule = rule_cell(difference, level)
    kind = "renamed" if not difference.field and difference.kind == "name" else difference.kind
    cells = (
        Cell(difference.field or "(the record)", "" if difference.field else "muted", number),
        Cell(kind, "strong", difference.kind),
        Cell(difference.before or figures.NONE, "" if difference.before else "muted"),
        Cell(difference.after or figures.NONE, "" if difference.after else "muted"),
        rule._replace(value=rule_rank(rule)),
    )
    search = f"{difference.field} {difference.kind} {difference.before} {difference.after} {rule.text}"
    return Item(f"{number:06}", cells, search, rule.tone in ("bad", "warn"))


#: Maximum tables listed one by one; those that would stop the relay come first.
_LISTED = 300


def trial_content(answer: dict[str, Any], script: str, colours: dict[str, str]) -> RenderableType:
    """Return the registry's answer for every table; ``script`` is the DDL file, or empty."""
    tables: dict[str, dict[str, Any]] = answer.get("tables", {})
    bad = sorted(name for name, table in tables.items() if not table.get("ok"))
    good = sorted(tables.keys() - set(bad))
    lines: list[RenderableType] = [_trial_verdict(len(tables), len(bad), script, colours)]
    for name in bad[:_LISTED]:
        lines += ["", Text(f"✗ {name}", f"bold {colours['error']}"), *_trial_reasons(tables[name], colours)]
    if good:
        lines += ["", _compatible_tables(tables, good[: max(_LISTED - len(bad), 0)], colours)]
    omitted = len(tables) - _LISTED
    if omitted > 0:
        lines.append(Text(f"and {omitted:,} more; 'bwtui schema check' lists all", colours["quiet"]))
    lines += [
        "",
        Text(
            "Nothing was changed: the script was rolled back, and no schema was registered.", colours["quiet"]
        ),
    ]
    return Group(*lines)


def _trial_verdict(number: int, bad: int, script: str, colours: dict[str, str]) -> Text:
    after = f"after {script}" if script else "at present"
    if not number:
        return Text(f"▲ this relay has no tables {after}", f"bold {colours['warning']}")
    if bad:
        verb = "would stop the relay" if script else "stop the relay"
        return Text(f"✗ {bad:,} of {number:,} tables {verb} {after}", f"bold {colours['error']}")
    return Text(f"✓ all {number:,} tables are compatible {after}", f"bold {colours['success']}")


def _trial_reasons(table: dict[str, Any], colours: dict[str, str]) -> list[Text]:
    lines = [Text(f"  {table['error']}")] if table.get("error") else []
    for part in ("key", "value"):
        result = table.get(part)
        if result and result.get("result") == "incompatible":
            lines.append(
                Text(f"  {result['subject']}, compatibility level {result['rule']}", colours["quiet"])
            )
            reasons = result.get("reasons") or ["incompatible; the registry does not name the field"]
            lines += [Text(f"    {reason}") for reason in reasons]
    return lines


def _compatible_tables(tables: dict[str, dict[str, Any]], names: list[str], colours: dict[str, str]) -> Table:
    listed = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style=f"bold {colours['quiet']}")
    listed.add_column("Table", overflow="fold")
    for title in ("Key", "Value", "Rule"):
        listed.add_column(title)
    for name in names:
        table = tables[name]
        key, value = table.get("key") or {}, table.get("value") or {}
        listed.add_row(name, key.get("result", "–"), value.get("result", "–"), value.get("rule", "–"))
    return listed

"""The schema ids of a replay: what the target's registry calls the schemas that the recording refers to."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pyarrow.parquet as pq

from bwtui.encode.names import subject_names
from bwtui.errors import RefusedError
from bwtui.recording.sealed import Sealed

if TYPE_CHECKING:
    from bwtui.encode.registry import SchemaRegistry


@dataclass(slots=True)
class SchemaUse:
    """One schema that messages refer to, and what becomes of its id."""

    recorded_topic: str
    part: Literal["key", "value"]
    recorded_id: int
    subject: str
    text: str
    messages: int
    #: The id in the target's registry; None: not known before it is registered.
    id: int | None = None
    is_new: bool = False


@dataclass(slots=True)
class SchemaMap:
    """All schemas that are used."""

    uses: list[SchemaUse] = field(default_factory=list)

    def ids(self, topic: str, part: str) -> dict[int, int]:
        """Return recorded id → written id for a recorded topic, as far as they are known."""
        return {
            use.recorded_id: use.id
            for use in self.uses
            if use.recorded_topic == topic and use.part == part and use.id is not None
        }

    def changes_keys(self, topic: str) -> bool:
        """Whether the keys of a recorded topic get other bytes."""
        return any(
            use.id != use.recorded_id
            for use in self.uses
            if use.recorded_topic == topic and use.part == "key"
        )

    @property
    def new(self) -> list[SchemaUse]:
        """Those that have to be registered."""
        return [use for use in self.uses if use.is_new]


def used_schemas(
    sealed: Sealed, topics: Mapping[str, str], used: Mapping[tuple[str, str], Mapping[int, int]]
) -> SchemaMap:
    """Return every schema that is used, oldest first.

    ``topics`` goes from recorded to target topic, ``used`` from (recorded topic, part) to messages by id.
    Raises RefusedError when the recording does not hold one's text.
    """
    texts: dict[tuple[str, int], str] = {}
    for path in sealed.paths("schemas"):
        with pq.ParquetFile(path) as file:
            for row in file.read(["subject", "id", "schema"]).to_pylist():
                texts.setdefault((row["subject"], row["id"]), row["schema"])
    uses: list[SchemaUse] = []
    order = {name: number for number, name in enumerate(texts)}
    for (recorded, part), ids in used.items():
        which = 0 if part == "key" else 1
        subject = subject_names(recorded)[which]
        for number, messages in ids.items():
            text = texts.get((subject, number))
            if text is None:
                hint = "leave that topic's table out with --table, or restore the recording from a copy"
                raise RefusedError(f"the recording does not hold schema {number} of subject {subject}", hint)
            named = subject_names(topics[recorded])[which]
            kind: Literal["key", "value"] = "key" if part == "key" else "value"
            uses.append(SchemaUse(recorded, kind, number, named, text, messages))
    # A subject's versions in the order in which they came, for each must fit the one before.
    uses.sort(key=lambda use: order[subject_names(use.recorded_topic)[use.part == "value"], use.recorded_id])
    return SchemaMap(uses)


def find_ids(schemas: SchemaMap, registry: "SchemaRegistry", same: Iterable[str], *, keep: bool) -> None:
    """Find out which ids the schemas have in the registry; nothing is registered.

    ``same``: recorded topics that are the target's too, whose bytes stay as they are where the registry
    knows their ids. With ``keep`` no byte may change: raises RefusedError when it does not know one.
    """
    same = set(same)
    for use in schemas.uses:
        if keep or use.recorded_topic in same:
            text = registry.schema_text(use.recorded_id)
            if text is not None and _is_same(text, use.text):
                use.id = use.recorded_id
                continue
            if keep:
                what = "no schema" if text is None else "another schema"
                raise RefusedError(
                    f"the registry at {registry.url_without_user} has {what} under id {use.recorded_id}, "
                    f"which messages of {use.recorded_topic} refer to",
                    "leave out --keep-ids: then the schemas are registered there, and the ids mapped",
                )
        use.id = registry.schema_id(use.subject, use.text)
        use.is_new = use.id is None


def register(schemas: SchemaMap, registry: "SchemaRegistry") -> None:
    """Register what is new. Raises SchemaRefused or ConnectionFailed."""
    for use in schemas.uses:
        if use.is_new:
            use.id = registry.register_id(use.subject, use.text)


def _is_same(one: str, other: str) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return one == other

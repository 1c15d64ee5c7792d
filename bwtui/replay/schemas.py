"""Map the schema ids of a recording to those of the target's registry."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import pyarrow.parquet as pq

from bwtui.encode.names import subject_names
from bwtui.errors import RefusedError
from bwtui.recording.sealed import SealedRecording

if TYPE_CHECKING:
    from bwtui.encode.registry import SchemaRegistry


@dataclass(slots=True)
class SchemaUse:
    """One schema that messages refer to, and its new id."""

    recorded_topic: str
    part: Literal["key", "value"]
    recorded_id: int
    subject: str
    text: str
    messages: int
    #: The id in the target's registry; None until it is registered.
    id: int | None = None
    is_new: bool = False


@dataclass(slots=True)
class SchemaMap:
    """All schemas in use."""

    uses: list[SchemaUse] = field(default_factory=list)

    def ids(self, topic: str, part: str) -> dict[int, int]:
        """Return recorded id → written id for a recorded topic, without the unregistered ones."""
        return {
            use.recorded_id: use.id
            for use in self.uses
            if use.recorded_topic == topic and use.part == part and use.id is not None
        }

    def changes_keys(self, topic: str) -> bool:
        """Return whether the key bytes of a recorded topic change."""
        return any(
            use.id != use.recorded_id
            for use in self.uses
            if use.recorded_topic == topic and use.part == "key"
        )

    @property
    def new(self) -> list[SchemaUse]:
        """Schemas that must be registered."""
        return [use for use in self.uses if use.is_new]


def used_schemas(
    sealed: SealedRecording, topics: Mapping[str, str], used: Mapping[tuple[str, str], Mapping[int, int]]
) -> SchemaMap:
    """Return every schema in use, oldest first.

    ``topics`` maps recorded to target topics, ``used`` maps (recorded topic, part) to messages by id. Raises
    RefusedError when the recording does not have a schema's text.
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
                hint = "exclude that topic's table with --table, or restore the recording from a copy"
                raise RefusedError(f"the recording lacks schema {number} of subject {subject}", hint)
            named = subject_names(topics[recorded])[which]
            kind: Literal["key", "value"] = "key" if part == "key" else "value"
            uses.append(SchemaUse(recorded, kind, number, named, text, messages))
    # Register a subject's versions in their original order, since each must be compatible with the one
    # before.
    uses.sort(key=lambda use: order[subject_names(use.recorded_topic)[use.part == "value"], use.recorded_id])
    return SchemaMap(uses)


def find_ids(schemas: SchemaMap, registry: "SchemaRegistry", same: Iterable[str], *, keep: bool) -> None:
    """Look up the schemas' ids in the registry, without registering anything.

    ``same`` has the recorded topics that are also targets; their bytes stay unchanged if the registry has the
    recorded ids. With ``keep`` no byte may change: raises RefusedError when the registry lacks an id.
    """
    same = set(same)
    for use in schemas.uses:
        if keep or use.recorded_topic in same:
            text = registry.schema_text(use.recorded_id)
            if text is not None and _is_same(text, use.text):
                use.id = use.recorded_id
                continue
            if keep:
                schema = "no schema" if text is None else "a different schema"
                raise RefusedError(
                    f"the registry at {registry.url_without_user} has {schema} under id {use.recorded_id}, "
                    f"to which messages of {use.recorded_topic} refer",
                    "leave out --keep-ids; the replay then registers the schemas and maps their ids",
                )
        use.id = registry.schema_id(use.subject, use.text)
        use.is_new = use.id is None


def register(schemas: SchemaMap, registry: "SchemaRegistry") -> None:
    """Register the new schemas. Raises SchemaRefused or ConnectionFailed."""
    for use in schemas.uses:
        if use.is_new:
            use.id = registry.register_id(use.subject, use.text)


def _is_same(first: str, second: str) -> bool:
    try:
        return bool(json.loads(first) == json.loads(second))
    except ValueError:
        return first == second

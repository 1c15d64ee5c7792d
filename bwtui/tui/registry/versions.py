"""The versions of one subject, out of what the relay or the recording holds and what the registry says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bwtui.model.looks import Subject
from bwtui.model.status import SchemaEntry


@dataclass(frozen=True, slots=True)
class Version:
    """One version, as far as it is known."""

    #: Its number, or its id where it has none.
    key: str
    number: int | None
    id: int | None = None
    #: The schema, where it is at hand.
    text: str | None = None
    #: When it was registered, as the registry says, and since when the relay uses it.
    registered: float | None = None
    used: float | None = None
    is_deleted: bool = False
    #: The registry does not list it any more, or never has.
    is_gone: bool = False
    #: What came, went and changed since the version before.
    added: int | None = None
    removed: int | None = None
    changed: int | None = None
    fields: int | None = None

    @property
    def name(self) -> str:
        """What it is called in a sentence."""
        return f"version {self.number}" if self.number is not None else f"id {self.id}"

    @property
    def is_compared(self) -> bool:
        """Whether the registry compares new schemas with it."""
        return not self.is_deleted and not self.is_gone


def versions(
    name: str, schemas: Sequence[SchemaEntry], subject: Subject | None, texts: Mapping[str, str]
) -> list[Version]:
    """Return the versions of subject ``name``, the oldest one first.

    ``schemas`` are those that the relay or the recording holds, ``subject`` is what the registry said, and
    ``texts`` are the schemas that it gave, by the key of their version.
    """
    found: dict[str, Version] = {}
    for entry in schemas:
        if entry.subject == name:
            key = f"id {entry.id}" if entry.version is None else str(entry.version)
            if key not in found:
                found[key] = Version(key, entry.version, entry.id, entry.schema, used=entry.time)
    if subject is not None and subject.versions:
        listed = {str(entry.version): entry for entry in subject.versions}
        found = {key: replace(one, is_gone=key not in listed) for key, one in found.items()}
        for key, told in listed.items():
            known = found.get(key) or Version(key, told.version)
            found[key] = replace(
                known,
                id=known.id if told.id is None else told.id,
                text=known.text if known.text is not None else texts.get(key),
                registered=told.registered,
                is_deleted=told.is_deleted,
                added=told.added,
                removed=told.removed,
                changed=told.changed,
                fields=told.fields,
            )
    return sorted(found.values(), key=lambda one: (one.number or 0, one.used or 0.0, one.key))


def before(found: Sequence[Version], later: Version) -> Version | None:
    """Return the version that ``later`` is compared with by itself: the last before it that still counts."""
    earlier = list(found[: found.index(later)])
    alive = [one for one in earlier if one.is_compared]
    return next(reversed(alive or earlier), None)

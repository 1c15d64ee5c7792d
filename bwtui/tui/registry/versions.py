"""The versions of a subject, from the schemas of the relay or recording and the registry's list."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bwtui.model.service_views import SubjectVersions
from bwtui.model.status import SchemaEntry


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


def versions(
    name: str, schemas: Sequence[SchemaEntry], subject: SubjectVersions | None, texts: Mapping[str, str]
) -> list[SubjectVersion]:
    """Return the versions of subject ``name``, the oldest one first.

    ``schemas`` are those that the relay or the recording holds, ``subject`` is the registry's answer, and
    ``texts`` are the registry's schemas by the key of their version.
    """
    found: dict[str, SubjectVersion] = {}
    for entry in schemas:
        if entry.subject == name:
            key = f"id {entry.id}" if entry.version is None else str(entry.version)
            if key not in found:
                found[key] = SubjectVersion(key, entry.version, entry.id, entry.schema, used=entry.time)
    if subject is not None and subject.versions:
        listed = {str(entry.version): entry for entry in subject.versions}
        found = {key: replace(one, is_gone=key not in listed) for key, one in found.items()}
        for key, told in listed.items():
            known = found.get(key) or SubjectVersion(key, told.version)
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


def before(found: Sequence[SubjectVersion], later: SubjectVersion) -> SubjectVersion | None:
    """Return the version to compare ``later`` with by default: the last earlier one that still counts."""
    earlier = list(found[: found.index(later)])
    alive = [one for one in earlier if one.is_compared]
    return next(reversed(alive or earlier), None)

"""Schema ids without a registry, for recordings made without one; a replay maps them to a registry's ids."""

import hashlib

from bwtui.encode.registry import RegisteredSchema

_LARGEST_ID = (1 << 31) - 1


class LocalRegistry:
    """Gives every schema an id that depends only on its text, so that later runs assign the same."""

    url_without_user = ""

    def __init__(self) -> None:
        #: sha256 of the schema that has each id.
        self._digests: dict[int, bytes] = {}

    def check(self) -> None:
        """Do nothing: there is no service that could be down."""

    def register(self, subject: str, schema: str) -> RegisteredSchema:
        """Return the id of ``schema`` (JSON text), whatever the subject."""
        digest = hashlib.sha256(schema.encode()).digest()
        number = int.from_bytes(digest[:4], "big") & _LARGEST_ID
        while not number or self._digests.setdefault(number, digest) != digest:
            number = (number + 1) & _LARGEST_ID
        return RegisteredSchema(subject, number, None, schema)

    def close(self) -> None:
        """Do nothing: nothing is open."""

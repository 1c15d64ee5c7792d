"""Read values from the JSON of a different version of bwtui."""

import dataclasses
from typing import Any


def from_json_object(cls: type[Any], data: dict[str, Any]) -> Any:
    """Build a ``cls`` from a JSON object, ignoring keys that this version does not know."""
    names = {f.name for f in dataclasses.fields(cls)}
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in names})

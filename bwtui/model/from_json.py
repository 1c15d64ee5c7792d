"""Values out of the JSON of another version of bwtui."""

import dataclasses
from typing import Any


def made_of(cls: type[Any], data: dict[str, Any]) -> Any:
    """Make a ``cls`` of a JSON object; keys that this version does not know are left out."""
    names = {f.name for f in dataclasses.fields(cls)}
    return cls(**{k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in names})

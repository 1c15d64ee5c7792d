"""A relay's context for tests, from the parts that a test needs."""

from dataclasses import MISSING, fields
from typing import Any

from bwtui.relay.rows.run_context import RowOutput, RunContext
from bwtui.relay.stream.context import RelayContext, RelayServices, SlotHistory


def relay_context(**given: Any) -> RelayContext:
    """Return a context with the ``given`` parts; of the others, those without a default are None."""

    def group(kind: type[Any]) -> Any:
        names = {part.name: part.default is part.default_factory is MISSING for part in fields(kind)}
        lacking = dict.fromkeys(name for name, is_required in names.items() if is_required)
        return kind(**lacking | {name: given.pop(name) for name in names if name in given})

    context = RelayContext(*map(group, (RunContext, RowOutput, RelayServices, SlotHistory)))
    assert not given
    return context

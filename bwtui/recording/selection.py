"""Which changes of a recording are meant."""

import re
from dataclasses import dataclass

from bwtui.recording.change import Change
from bwtui.recording.query.language import Query


@dataclass(frozen=True, slots=True)
class Selection:
    """Which changes are meant: all conditions must hold; ranges include both ends, times are commit times."""

    query: Query | None = None
    #: Of ``schema.table``, wholly; ``public`` may be left out.
    table: re.Pattern[str] | None = None
    from_lsn: int | None = None
    to_lsn: int | None = None
    from_time: int | None = None
    to_time: int | None = None
    with_repeats: bool = False

    def takes(self, change: Change) -> bool:
        """Whether ``change`` is meant."""
        return (
            (self.with_repeats or not change.is_repeat)
            and (self.from_lsn is None or change.lsn >= self.from_lsn)
            and (self.to_lsn is None or change.lsn <= self.to_lsn)
            and (self.from_time is None or change.commit_time >= self.from_time)
            and (self.to_time is None or change.commit_time <= self.to_time)
            and (self.table is None or any(map(self.takes_table, change.tables)))
            and (self.query is None or self.query.matches(change))
        )

    def takes_table(self, qualified: str) -> bool:
        """Whether the table called ``schema.table`` is meant."""
        if self.table is None:
            return True
        bare = qualified.removeprefix("public.")
        return self.table.fullmatch(qualified) is not None or self.table.fullmatch(bare) is not None

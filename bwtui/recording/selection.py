"""The selection of a recording's changes, for exports and replays."""

import re
from dataclasses import dataclass

from bwtui.recording.change import Change
from bwtui.recording.query.language import Query


@dataclass(frozen=True, slots=True)
class ChangeSelection:
    """Conditions on changes that must all hold; ranges include both ends, and times are commit times."""

    query: Query | None = None
    #: Must match all of ``schema.table``; ``public`` may be omitted.
    table: re.Pattern[str] | None = None
    from_lsn: int | None = None
    to_lsn: int | None = None
    from_time: int | None = None
    to_time: int | None = None
    with_repeats: bool = False

    def takes(self, change: Change) -> bool:
        """Return whether ``change`` is selected."""
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
        """Return whether the table called ``schema.table`` is selected."""
        if self.table is None:
            return True
        bare = qualified.removeprefix("public.")
        return self.table.fullmatch(qualified) is not None or self.table.fullmatch(bare) is not None

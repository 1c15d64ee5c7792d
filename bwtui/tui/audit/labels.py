"""The names of the two sides of an audit on the screens, by the question of the audit."""

from collections.abc import Mapping
from dataclasses import dataclass

from bwtui.audit.classes import Question


@dataclass(frozen=True, slots=True)
class SideLabels:
    """The names of both sides."""

    #: Titles of the two sides.
    expected: str
    actual: str
    #: Titles of their values.
    left: str
    right: str
    #: Title of PostgreSQL's value, if that is neither of the two.
    source: str = ""
    #: Shown if there are no fields.
    no_fields: str = "no row on either side: there are no fields to compare"

    @property
    def of_fields(self) -> Mapping[str, str]:
        """The title of each value of a field in a report."""
        return {"postgresql": self.source or self.left, "sent": self.left, "kafka": self.right}


LABELS: Mapping[Question, SideLabels] = {
    "recording": SideLabels(
        "Expected: what was sent", "Found: what Kafka has", "Sent", "Kafka has", "PostgreSQL said"
    ),
    "database": SideLabels(
        "Expected: the table's row", "Found: the topic's latest value", "Table has", "Topic has"
    ),
    "recordings": SideLabels(
        "Expected: the first recording",
        "Found: the second recording",
        "First has",
        "Second has",
        no_fields="the report has no fields: the recordings have them, at this place",
    ),
}
#: Shown if a report has no values.
MASKED = "values are masked: 'bwtui verify --show-values' shows them"

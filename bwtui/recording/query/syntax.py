"""A query's syntax tree; `parser` builds it, `match` and `sql` read it.

``!=``, ``!~``, ``not in`` and ``is not`` are a `Not` around the positive condition: both are unknown for
null.
"""

from dataclasses import dataclass
from typing import Literal

from bwtui.recording.query.fields import FieldRef
from bwtui.recording.query.regex import Regex

Order = Literal["=", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class TextOperand:
    """A text to compare with; if it is ``bare`` (not quoted), it may be a number, true or false."""

    value: str
    bare: bool = False


#: Numbers, LSNs and times are ints.
Operand = TextOperand | int | bool | FieldRef


@dataclass(frozen=True, slots=True)
class Compare:
    """``field = value`` and the other orders."""

    ref: FieldRef
    order: Order
    operand: Operand


@dataclass(frozen=True, slots=True)
class Match:
    """``field ~ 'regular expression'``."""

    ref: FieldRef
    regex: Regex


@dataclass(frozen=True, slots=True)
class IsNull:
    """``field is null``."""

    ref: FieldRef


@dataclass(frozen=True, slots=True)
class IsUnchanged:
    """``after.column is unchanged``: a TOAST value that PostgreSQL did not send."""

    ref: FieldRef


@dataclass(frozen=True, slots=True)
class Not:
    """``not part``."""

    part: "Node"


@dataclass(frozen=True, slots=True)
class And:
    """``part and part …``."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Or:
    """``part or part …``."""

    parts: tuple["Node", ...]


Node = Compare | Match | IsNull | IsUnchanged | Not | And | Or

"""Generate the source code of a table's encoders, once per relation, and compile it.

The source consists of numbers and of the codecs' own templates. Names from the database never enter it.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bwtui.encode.schema import FieldPlan
from bwtui.types.codec import InlineCode
from bwtui.types.varint import NULL, VALUE

# Exceptions that a template may raise for a value that it does not handle: then the plain encoder encodes the
# row.
_UNKNOWN = (TypeError, ValueError, LookupError, OverflowError, AttributeError, struct.error)

# Minimum number of texts to decode joined rather than one by one: 0.8 µs for ten short ones instead of 1.3.
_JOINED = 4

# For a codec without a template.
_CALL = InlineCode(
    "h{i} = NULL if {f} is None else VALUE + encode{i}({f})", ("h{i}",), {"NULL": NULL, "VALUE": VALUE}
)

Slow = Callable[[Sequence[Any]], bytes]
Both = Callable[[Sequence[Any]], tuple[bytes, bytes]]


class EncodedRowParts:
    """The parts of an encoded row: header, some columns, the escape field's null, and the plain encoder."""

    def __init__(self, head: bytes, plans: Sequence[FieldPlan], slow: Slow, escapes: bool) -> None:
        self.head = head
        self.plans = plans
        self.slow = slow
        self.tail = NULL if escapes else b""

    def expression(self, name: str) -> str:
        """Return the source of the expression that joins the record's parts."""
        parts = [_fill(part, plan) for plan in self.plans for part in _inline(plan).parts]
        return f"JOIN(({', '.join([f'{name}_HEAD', *parts, f'{name}_TAIL'])}))"


def compile_one(record: EncodedRowParts, width: int) -> Slow:
    """Return a function from a row of ``width`` fields to the record's bytes."""
    lines = _body(record.plans, width)
    encode: Slow = _compile(lines, record.expression("A"), "A_SLOW(fields)", {"A": record})
    return encode


def compile_both(key: EncodedRowParts, value: EncodedRowParts, width: int) -> Both:
    """Return a function from a row to the bytes of both records; shared columns are encoded once."""
    plans = {(plan.index, plan.variables): plan for plan in (*key.plans, *value.plans)}
    lines = _body(plans.values(), width)
    result = f"{key.expression('A')}, {value.expression('B')}"
    encode: Both = _compile(lines, result, "A_SLOW(fields), B_SLOW(fields)", {"A": key, "B": value})
    return encode


def _body(plans: Iterable[FieldPlan], width: int) -> list[str]:
    """Return the statements that split the row and encode the columns of ``plans``."""
    plans = list(plans)
    used = {plan.index for plan in plans}
    if len(used) == width:
        lines = ["(" + "".join(f"f{i}, " for i in range(width)) + ") = fields"]
    else:
        lines = [f"if len(fields) != {width}: raise ValueError"]
        lines += [f"f{i} = fields[{i}]" for i in sorted(used)]
    for plan in plans:
        lines += _fill(_inline(plan).code, plan).splitlines()
    return lines + _check([f"f{i}" for i in sorted({plan.index for plan in plans if _inline(plan).copies})])


def _check(texts: Sequence[str]) -> list[str]:
    """Return statements that raise UnicodeDecodeError, a ValueError, for texts that are not UTF-8."""
    if len(texts) < _JOINED:
        return [f"{text}.isascii() or {text}.decode()" for text in texts]
    # Call isascii() on each, because a Binary raises; the line ends between texts prevent that a character
    # that begins in one text and ends in the next counts as valid.
    is_ascii = " & ".join(f"{text}.isascii()" for text in texts)
    return [f"{is_ascii} or LINES(({', '.join(texts)})).decode()"]


def _inline(plan: FieldPlan) -> InlineCode:
    return plan.codec.inline or _CALL


def _fill(template: str, plan: FieldPlan) -> str:
    return template.replace("{i}", f"{plan.variables}{plan.index}").replace("{f}", f"f{plan.index}")


def _compile(lines: Sequence[str], result: str, fallback: str, records: dict[str, EncodedRowParts]) -> Any:
    scope: dict[str, Any] = {"JOIN": b"".join, "LINES": b"\n".join, "UNKNOWN": _UNKNOWN}
    for name, record in records.items():
        scope |= {f"{name}_HEAD": record.head, f"{name}_TAIL": record.tail, f"{name}_SLOW": record.slow}
        for plan in record.plans:
            scope |= _inline(plan).names
            scope[f"encode{plan.variables}{plan.index}"] = plan.codec.encode
    body = [f"        {line}" for line in (*lines, f"return {result}")]
    source = "\n".join(
        ("def encode(fields):", "    try:", *body, "    except UNKNOWN:", f"        return {fallback}")
    )
    exec(source, scope)
    # Remove it from its own globals: the reference cycle would not be freed with its route.
    return scope.pop("encode")

"""Numbers as text: three significant digits, and no text wider than its column.

Sizes use PostgreSQL's own units (powers of 1024, written kB, MB, GB), so that they match what psql shows.
"""

_SI = ("", "k", "M", "G", "T", "P")
_BYTES = ("B", "kB", "MB", "GB", "TB", "PB")


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: ``1 segment``, ``2 segments``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def count(number: float) -> str:
    """Return a count in at most five characters: ``999``, ``12.3k``, ``1.23M``."""
    if abs(number) < 1000:
        return str(int(number))
    value, unit = _scaled(number, 1000, _SI)
    return f"{_three(value)}{unit}"


def rate(number: float) -> str:
    """Return a rate, without its unit: as `count`, but with a decimal below ten."""
    if 0 < abs(number) < 9.95:
        return f"{number:.1f}"
    return count(round(number))


def size(number: float) -> str:
    """Return a size in at most seven characters: ``512 B``, ``1.23 MB``."""
    if abs(number) < 1000:
        return f"{int(number)} B"
    value, unit = _scaled(number, 1024, _BYTES)
    return f"{_three(value)} {unit}"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: ``0.3 s``, ``3 m 05 s``, ``2 h 05 m``, ``3 d 4 h``."""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} m"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def milliseconds(seconds: float) -> str:
    """Return a duration in milliseconds, without their unit: ``0.31``, ``12.4``, ``1,204``."""
    value = seconds * 1000
    return _three(value) if value < 999.5 else f"{value:,.0f}"


def _scaled(number: float, base: int, units: tuple[str, ...]) -> tuple[float, str]:
    power = 0
    # 999.5 would be written as 1000, one character too wide.
    while abs(number) >= 999.5 and power < len(units) - 1:
        number /= base
        power += 1
    return number, units[power]


def _three(value: float) -> str:
    for limit, digits in ((9.995, 2), (99.95, 1)):
        if abs(value) < limit:
            return f"{value:.{digits}f}"
    return f"{value:.0f}"

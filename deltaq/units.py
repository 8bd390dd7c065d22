"""Values as people read them: texts, numbers, sizes, times. Pure.

Text from topics may hold anything. It is escaped here, so that a message cannot move the cursor of
a terminal, recolour the screen, forge lines of a table, or turn the direction of a text.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from deltaq.errors import printable

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SPANS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))


def as_text(value: object) -> str:
    """A value in a cell: bytes as text, None as nothing, anything that a terminal would act on
    escaped.
    """
    if value is None:
        return ""
    if isinstance(value, bytes):
        return printable(value.decode("utf-8", "backslashreplace"))
    return printable(value if isinstance(value, str) else str(value))


def as_count(value: int | None) -> str:
    """1234567 -> 1,234,567."""
    return "" if value is None else f"{value:,}"


def as_lag(value: int | None) -> str:
    """A lag, and - where it is not known."""
    return "-" if value is None else as_count(value)


def as_rate(value: float | None) -> str:
    """A number per second with three digits at least: 0.25, 12.5, 1,234."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def as_size(value: float | None) -> str:
    """A number of bytes with three digits: 1.21 MiB."""
    if value is None:
        return ""
    unit = 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{value:.3g} {_UNITS[unit]}"


def counted(count: int, noun: str) -> str:
    """1 partition, 2,000 partitions."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def as_time(timestamp_ms: int | None) -> str:
    """A timestamp as ISO 8601 in UTC, with milliseconds."""
    if timestamp_ms is None:
        return ""
    time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp_ms)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def as_age(ms: int | None) -> str:
    """A time that has passed, as a whole number of a unit: 90 seconds, 5 hours."""
    if ms is None:
        return ""
    length, unit = next(((of, unit) for of, unit in _SPANS if ms >= 2 * of), _SPANS[-1])
    return counted(ms // length, unit)


def as_span(ms: int) -> str:
    """Milliseconds as the largest unit that fits without a rest: 7 days, 36 hours."""
    for length, unit in _SPANS:
        if ms and ms % length == 0:
            return counted(ms // length, unit)
    return f"{ms:,} ms"

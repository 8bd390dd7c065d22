"""Compares this machine's wall clock with the store's clock before anything is removed because of
its age.

A machine whose clock is a week ahead would remove all records a week early. So maintenance writes
an object and compares its modification time with the wall clock (decision 0025). Until the next
comparison the difference is known from the uptime, with which the wall clock advances unless it is
set.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from deltaq.clock import Clock
from deltaq.delta.store_errors import raising_unavailable
from deltaq.errors import Unavailable
from deltaq.names import clock_key
from deltaq.store import Store

_log = logging.getLogger("deltaq.maintenance")

CLOCK_TOLERANCE_S = 300.0
"""Largest difference between this machine's clock and the store's at which objects still expire by
age.
"""

COMPARED_EVERY_S = 3600.0
"""How long a comparison is valid."""

RECOVERY_S = 60.0
"""How long a comparison is valid that found a difference, since the store's clock may be corrected
meanwhile.
"""

_NOW_ATTEMPTS = 3

NOTHING_EXPIRES_MS = 0
"""A time in epoch milliseconds at which nothing is old enough to be removed."""


@dataclass(frozen=True, slots=True)
class _ClockComparison:
    """How far the wall clock was ahead of the store's clock at wall-clock time `wall_ms` and uptime
    `uptime_s`.
    """

    ahead_ms: int
    wall_ms: int
    uptime_s: float

    def ahead_s(self, clock: Clock) -> float:
        """Seconds by which the wall clock is ahead now; negative if it is behind."""
        wall_ms, uptime_s = _now(clock)
        return (self.ahead_ms + wall_ms - self.wall_ms) / 1000 - (uptime_s - self.uptime_s)

    def is_wrong(self, clock: Clock) -> bool:
        return abs(self.ahead_s(clock)) > CLOCK_TOLERANCE_S

    def is_good(self, clock: Clock) -> bool:
        """Whether the comparison is still valid. It is not if it is too old or the wall clock has
        been set since.
        """
        wall_ms, uptime_s = _now(clock)
        age_s = max(uptime_s - self.uptime_s, abs(wall_ms - self.wall_ms) / 1000)
        return age_s < (RECOVERY_S if self.is_wrong(clock) else COMPARED_EVERY_S)


# Shared by all maintenance of a process: a root with a thousand topics needs one comparison, not a
# thousand.
_COMPARISONS: WeakKeyDictionary[Store, WeakKeyDictionary[Clock, _ClockComparison]] = (
    WeakKeyDictionary()
)


def compare_clocks(store: Store, clock: Clock) -> None:
    """Compare the clocks unless the last comparison is valid. Logs when they begin to differ.
    Raises Unavailable.
    """
    # No lock: two threads at once both compare, which is harmless.
    before = _comparison_of(store, clock)
    if before is not None and before.is_good(clock):
        return
    with raising_unavailable():
        comparison = _compared(store, clock)
    _COMPARISONS.setdefault(store, WeakKeyDictionary())[clock] = comparison
    if comparison.is_wrong(clock) and not (before is not None and before.is_wrong(clock)):
        _log.warning("%s", clock_fault(store, clock))


def expiry_ms(store: Store, clock: Clock) -> int:
    """The wall-clock time, in epoch milliseconds, for removal by age; `NOTHING_EXPIRES_MS` if
    `compare_clocks` found it wrong.
    """
    comparison = _comparison_of(store, clock)
    if comparison is not None and comparison.is_wrong(clock):
        return NOTHING_EXPIRES_MS
    return clock.time_ms()


def clock_fault(store: Store, clock: Clock) -> str | None:
    """What is wrong with the wall clock and how to correct it; None if it is right or was not
    compared.
    """
    comparison = _comparison_of(store, clock)
    if comparison is None or not comparison.is_wrong(clock):
        return None
    ahead_s = comparison.ahead_s(clock)
    return (
        f"the clock of this machine is {abs(ahead_s):,.0f} s "
        f"{'ahead of' if ahead_s > 0 else 'behind'} that of {store.url}: set it right (NTP keeps "
        "it so). Until then this machine removes nothing because of its age: no records, "
        "tombstones, committed offsets, files or log entries"
    )


def _comparison_of(store: Store, clock: Clock) -> _ClockComparison | None:
    comparisons = _COMPARISONS.get(store)
    return None if comparisons is None else comparisons.get(clock)


def _now(clock: Clock) -> tuple[int, float]:
    """Wall-clock time and uptime at the same moment. Repeated if the machine was suspended between
    the two calls.
    """
    for _ in range(_NOW_ATTEMPTS):
        uptime_s = clock.uptime()
        wall_ms = clock.time_ms()
        if clock.uptime() - uptime_s < 1:
            break
    return wall_ms, uptime_s


def _compared(store: Store, clock: Clock) -> _ClockComparison:
    key = clock_key()
    from_ms = clock.time_ms()
    store.put(key, b"")
    found = [entry.modified_ms for entry in store.list(key) if entry.key == key]
    until_ms, uptime_s = _now(clock)
    if not found:
        raise Unavailable(f"{key!r} was just written, but is not listed")
    # The object was written at some time between `from_ms` and `until_ms`: within that span the
    # clocks agree.
    ahead_ms = max(0, from_ms - found[0]) or min(0, until_ms - found[0])
    return _ClockComparison(ahead_ms, until_ms, uptime_s)

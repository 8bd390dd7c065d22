"""Whether this machine's wall clock is right, for whatever is removed because of its age. The store's clock decides.

A machine that is a week ahead would take everybody's records for a week older than they are. So the time at which the
store says that an object was just written is compared with the machine's own (decision 0025). Between two such looks
the difference is known too: wall clock and uptime move on together unless the wall clock was set.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from deltaq.clock import Clock
from deltaq.delta.store_errors import unavailable
from deltaq.errors import Unavailable
from deltaq.names import clock_key
from deltaq.store import Store, StoreError

__all__ = ["clock_fault", "compare_clocks", "expiry_ms"]

_log = logging.getLogger("deltaq.maintenance")

CLOCK_TOLERANCE_S = 300.0
"""Difference between this machine's clock and the store's up to which things are removed because of their age."""

COMPARED_EVERY_S = 3600.0
"""How long a look at the store's clock is good for."""

RECOVERY_S = 60.0
"""The same while the clocks differ, since it is the store's that may have been set right."""

_NOW_ATTEMPTS = 3

NOTHING_EXPIRES_MS = 0
"""A time at which nothing is old enough to go."""


@dataclass(frozen=True, slots=True)
class _Look:
    """How far the wall clock was ahead of the store's when it was `wall_ms`, and the uptime `uptime_s`."""

    ahead_ms: int
    wall_ms: int
    uptime_s: float

    def ahead_s(self, clock: Clock) -> float:
        """How far it is ahead by now, in seconds; below 0 if behind."""
        wall_ms, uptime_s = _now(clock)
        return (self.ahead_ms + wall_ms - self.wall_ms) / 1000 - (uptime_s - self.uptime_s)

    def is_wrong(self, clock: Clock) -> bool:
        return abs(self.ahead_s(clock)) > CLOCK_TOLERANCE_S

    def is_good(self, clock: Clock) -> bool:
        """Whether there is no need to look again yet. That the wall clock was set is a reason."""
        wall_ms, uptime_s = _now(clock)
        age_s = max(uptime_s - self.uptime_s, abs(wall_ms - self.wall_ms) / 1000)
        return age_s < (RECOVERY_S if self.is_wrong(clock) else COMPARED_EVERY_S)


# One for all maintenance of a process: a root with a thousand topics is not looked at a thousand times.
_LOOKS: WeakKeyDictionary[Store, WeakKeyDictionary[Clock, _Look]] = WeakKeyDictionary()


def compare_clocks(store: Store, clock: Clock) -> None:
    """Look at the store's clock unless that was done lately: one put and one list, once an hour. Raises Unavailable.

    That the clocks differ is a warning in the log, once.
    """
    # No lock: two threads that come here at once both look, which does no harm.
    before = _look_of(store, clock)
    if before is not None and before.is_good(clock):
        return
    try:
        look = _look(store, clock)
    except StoreError as error:
        raise unavailable(error) from error
    _LOOKS.setdefault(store, WeakKeyDictionary())[clock] = look
    if look.is_wrong(clock) and not (before is not None and before.is_wrong(clock)):
        _log.warning("%s", clock_fault(store, clock))


def expiry_ms(store: Store, clock: Clock) -> int:
    """The time, in epoch milliseconds, by which to tell whether something is old enough to go.

    It is that of the wall clock, or if that was found wrong, one at which nothing is (`NOTHING_EXPIRES_MS`). Who has
    not called `compare_clocks` gets the wall clock's, which is good enough for a plan.
    """
    look = _look_of(store, clock)
    return NOTHING_EXPIRES_MS if look is not None and look.is_wrong(clock) else clock.time_ms()


def clock_fault(store: Store, clock: Clock) -> str | None:
    """What is wrong with the wall clock and what to do, for people; None if nothing is, or nobody has looked."""
    look = _look_of(store, clock)
    if look is None or not look.is_wrong(clock):
        return None
    ahead_s = look.ahead_s(clock)
    return (
        f"the clock of this machine is {abs(ahead_s):,.0f} s {'ahead of' if ahead_s > 0 else 'behind'} that of "
        f"{store.url}: set it right (NTP keeps it so). Until then this machine removes nothing because of its age: "
        "no records, tombstones, committed offsets, files or log entries"
    )


def _look_of(store: Store, clock: Clock) -> _Look | None:
    looks = _LOOKS.get(store)
    return None if looks is None else looks.get(clock)


def _now(clock: Clock) -> tuple[int, float]:
    """Wall clock and uptime at the same moment: the machine may be suspended between one question and the other."""
    for _ in range(_NOW_ATTEMPTS):
        uptime_s = clock.uptime()
        wall_ms = clock.time_ms()
        if clock.uptime() - uptime_s < 1:
            break
    return wall_ms, uptime_s


def _look(store: Store, clock: Clock) -> _Look:
    key = clock_key()
    from_ms = clock.time_ms()
    store.put(key, b"")
    found = [entry.modified_ms for entry in store.list(key) if entry.key == key]
    until_ms, uptime_s = _now(clock)
    if not found:
        raise Unavailable(f"{key!r} was just written, and is not listed")
    # Somewhere in between it was written. How long that took says nothing about clocks.
    ahead_ms = max(0, from_ms - found[0]) or min(0, until_ms - found[0])
    return _Look(ahead_ms, until_ms, uptime_s)

"""Clocks for tests."""

from __future__ import annotations

from deltaq.clock import SystemClock


class ImpatientClock(SystemClock):
    """The system's clock, but its sleeps take no time: they move the clock instead. `skip` moves it too."""

    def __init__(self) -> None:
        self.skipped = 0.0

    def skip(self, seconds: float) -> None:
        """Let time pass."""
        self.skipped += seconds

    def time_ms(self) -> int:
        return super().time_ms() + int(self.skipped * 1000)

    def monotonic(self) -> float:
        return SystemClock.monotonic() + self.skipped

    def uptime(self) -> float:
        return super().uptime() + self.skipped

    def sleep(self, seconds: float) -> None:
        self.skipped += seconds

"""Statistics of a client for `stats_cb`: when they are emitted, and the fields that all clients
have.

Names and units are those of librdkafka's JSON. A field that only a broker could fill is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from deltaq.clock import Clock, Thread

_NUMBERS = count(1)


@dataclass(frozen=True)
class ClientFields:
    """Which client emits statistics. `kind` is `producer` or `consumer`."""

    kind: str
    client_id: str
    clock: Clock
    _number: int = field(default_factory=lambda: next(_NUMBERS))
    _started_at: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_started_at", self.clock.monotonic())

    def now(self) -> dict[str, Any]:
        """The fields that say who emits them and when: `ts` and `age` in microseconds, `time` in
        seconds since 1970.
        """
        now = self.clock.monotonic()
        return {
            "name": f"{self.client_id}#{self.kind}-{self._number}",
            "client_id": self.client_id,
            "type": self.kind,
            "ts": int(now * 1e6),
            "time": self.clock.time_ms() // 1000,
            "age": int((now - self._started_at) * 1e6),
        }


class StatisticsTimer:
    """Calls `emit` every `interval_s` seconds on a thread, until it returns False or `close` is
    called.
    """

    def __init__(
        self, clock: Clock, interval_s: float, emit: Callable[[], bool], name: str
    ) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._emit = emit
        self._changed = clock.condition()
        self._is_over = False
        self._thread = clock.start_thread(self._run, f"deltaq-statistics-{name}")

    def close(self) -> None:
        """End the thread and wait for it."""
        self.abandon().join()

    def abandon(self) -> Thread:
        """Let the thread end soon, and return it. May be called in any thread, also in that one."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        return self._thread

    def _run(self) -> None:
        while self._wait() and self._emit():
            pass

    def _wait(self) -> bool:
        """Wait for the next emission. False if there is none."""
        due_at = self._clock.monotonic() + self._interval_s
        with self._changed:
            while not self._is_over and (left := due_at - self._clock.monotonic()) > 0:
                self._changed.wait(left)
            return not self._is_over

"""What `error_cb` gets while the store does not answer: at once, and again for as long as it
lasts.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltaq.clock import Clock
from deltaq.errors import KafkaError

TRANSPORT_AGAIN_S = 1.0
"""Seconds between two reports of `_TRANSPORT`. librdkafka reports each attempt to connect, one or
two a second.
"""

ALL_DOWN_AGAIN_S = 10.0
"""Seconds between two reports of `_ALL_BROKERS_DOWN`, as observed of librdkafka."""

OVER_AFTER_S = 5.0
"""Seconds without a failure after which the next one begins another outage. Requests are repeated
more often.
"""


@dataclass(eq=False)
class OutageReports:
    """Decides which failures of the store one client reports. Not thread-safe."""

    _clock: Clock
    _failed_at: float = float("-inf")
    _transport_at: float = float("-inf")
    _all_down_at: float = float("-inf")

    def due(self, error: KafkaError) -> list[KafkaError]:
        """What to report of a request that failed with `error`, a `_TRANSPORT`; empty if it was
        reported lately.
        """
        now = self._clock.monotonic()
        if now - self._failed_at >= OVER_AFTER_S:
            self._transport_at = self._all_down_at = float("-inf")
        self._failed_at = now
        found = []
        if now - self._transport_at >= TRANSPORT_AGAIN_S:
            self._transport_at = now
            found.append(error)
        if now - self._all_down_at >= ALL_DOWN_AGAIN_S:
            self._all_down_at = now
            found.append(
                KafkaError(
                    KafkaError._ALL_BROKERS_DOWN, "the store does not answer", retriable=True
                )
            )
        return found

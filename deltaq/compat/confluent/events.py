"""Events that `confluent_kafka` passes to callbacks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class ThrottleEvent:
    """A broker that slowed a request down, for `throttle_cb`. A store has no quotas, so the
    callback is never called.

    `throttle_time` is in seconds.
    """

    broker_name: str
    broker_id: int
    throttle_time: float

    def __str__(self) -> str:
        return (
            f"{self.broker_name}/{self.broker_id} throttled for {int(self.throttle_time * 1000)} ms"
        )

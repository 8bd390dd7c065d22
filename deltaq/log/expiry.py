"""Keeping `message.timeout.ms` of each producer while the threads that write are held up by another one's batch.

The upload and commit threads keep the limit of the batch at hand. With one limit for all that is enough, since what
waits behind a batch is younger. Where producers of a topic have different limits, a thread of its own reports messages
whose time is over.
"""

from __future__ import annotations

from deltaq.clock import Clock
from deltaq.errors import KafkaException, OutcomeUnknown, Unavailable
from deltaq.log.buffer import RecordBuffer, Report
from deltaq.log.flight_reports import FlightReports
from deltaq.log.flights import FLIGHT_ROWS_MAX, Flight, Flights, Part
from deltaq.log.topic_log import SharedTopicLog

__all__ = ["WITHDRAW_S", "Expiry"]

WITHDRAW_S = 2.0
"""Longest time in seconds for which a message that may be in the log is kept beyond its limit, while the commit thread
finds out what became of it."""


_LOOK_S = 3600.0
"""Longest wait in seconds. Without a limit it would be for ever."""


class Expiry:
    """Reports messages of one topic once their time is over, whatever the other threads wait for."""

    def __init__(self, topic: str, clock: Clock, log: SharedTopicLog, flights: Flights, reports: FlightReports) -> None:
        self._topic = topic
        self._clock = clock
        self._log = log
        self._flights = flights
        self._reports = reports
        self._soon = clock.condition()
        self._is_woken = False
        self.is_running = False

    def is_wanted_with(self, buffer: RecordBuffer) -> bool:
        """Whether the producers have different limits when this one's is added. The writer's lock is held."""
        return any(other.settings.timeout_s != buffer.settings.timeout_s for other in self._flights.buffers)

    def wake(self) -> None:
        """Look again: the limits are others, or the writer ends."""
        with self._soon:
            self._is_woken = True
            self._soon.notify_all()

    def run(self) -> None:
        """The work of its thread, which ends with the last buffer."""
        while (wait_s := self._look()) is not None:
            with self._soon:
                if not self._is_woken:
                    self._soon.wait(wait_s)
                self._is_woken = False

    def _look(self) -> float | None:
        """Report what is over. Seconds until more may be; None at the end."""
        flights = self._flights
        with flights.changed:
            if flights.is_stopping or not flights.buffers:
                self.is_running = False
                return None
            now = self._clock.monotonic()
            over = [flight for flight in flights.open if self._over_at(flight) <= now]
            told = [report for flight in over for report in self._given_up(flight)] + self._queued(now)
            wait_s = self._wait_s(now)
            if told:
                flights.changed.notify_all()
        for buffer, report in told:
            buffer.report(report)
        return wait_s

    def _wait_s(self, now: float) -> float:
        """Seconds until the first of what is here is over. What comes later has the shortest limit at least."""
        flights = self._flights
        limits = [buffer.settings.timeout_s for buffer in flights.buffers]
        queued = [
            at + buffer.settings.timeout_s
            for buffer in flights.buffers
            if (at := buffer.first_produced_at()) is not None
        ]
        first = min([now + min(limits), *queued, *map(self._over_at, flights.open)])
        return min(max(0.0, first - now), _LOOK_S)

    def _queued(self, now: float) -> list[tuple[RecordBuffer, Report]]:
        """Messages that were not taken in time: nothing of them was sent."""
        parts: list[Part] = []
        for buffer in self._flights.buffers:
            limit_s = buffer.settings.timeout_s
            while (at := buffer.first_produced_at()) is not None and at + limit_s <= now:
                taken = buffer.take(FLIGHT_ROWS_MAX, max(at, now - limit_s))
                if taken is not None:
                    parts.append(Part(buffer, *taken))
        return self._reports.told(parts, self._too_late())

    def _over_at(self, flight: Flight) -> float:
        """When a flight is to be reported. The commit thread may need a moment more for one whose attempt ends now."""
        ends_now = flight.tried_until <= flight.deadline
        is_in_commit = flight not in self._flights.waiting and (flight.is_offered or flight.token is not None)
        return flight.deadline + (WITHDRAW_S if is_in_commit and ends_now else 0.0)

    def _given_up(self, flight: Flight) -> list[tuple[RecordBuffer, Report]]:
        """Report a flight, which no attempt from now on has in it: lost, or unknown if one may have landed."""
        flights = self._flights
        token = flight.token
        if flight.is_offered:
            token = self._log.offer_token(flight.segments[0])
        if flight in flights.waiting:
            flights.waiting.remove(flight)
        flights.settled([flight])
        reason = "no answer about the commit before message.timeout.ms"
        return self._reports.told(
            flight.parts, self._too_late() if token is None else OutcomeUnknown(reason, token=token)
        )

    def _too_late(self) -> KafkaException:
        return Unavailable(
            f"messages for {self._topic!r} could not be written before message.timeout.ms: "
            "the store has not taken what was produced before them"
        )

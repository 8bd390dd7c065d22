"""Telling clients what became of their records, once each."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from deltaq.clock import Clock
from deltaq.errors import KafkaError, KafkaException, Unavailable
from deltaq.log.buffer import Report, RowBlock
from deltaq.log.flights import Flight, Flights, Part
from deltaq.log.topic_state import DataFile

__all__ = ["FlightReports", "defect"]

_log = logging.getLogger("deltaq.log")


def defect(error: Exception, doing: str, topic: str) -> KafkaException:
    """What clients are told of an error that nobody expected: it must not leave them waiting for ever."""
    _log.exception("%s a batch failed topic=%r", doing, topic)
    return KafkaException(KafkaError(KafkaError._FAIL, f"unexpected {type(error).__name__}: {error}"))


class FlightReports:
    """Reports to the producers of one topic."""

    def __init__(self, topic: str, clock: Clock, flights: Flights) -> None:
        self._topic = topic
        self._clock = clock
        self._flights = flights

    def delivered(self, flights: Sequence[Flight], committed: Sequence[DataFile]) -> None:
        """The files of these flights are in the topic, each as `committed` says."""
        files = {file.path: file for file in committed}
        now = self._clock.monotonic()
        for flight in flights:
            self._delivered(flight, [files[segment.path] for segment in flight.segments], now)
        with self._flights.changed:
            self._flights.settled(flights)

    def _delivered(self, flight: Flight, files: Sequence[DataFile], now: float) -> None:
        offsets: dict[int, int] = {}
        for file in files:
            for batch in file.batches:
                offsets.setdefault(batch.partition, batch.base_offset)
        append_time = files[-1].append_time_ms
        for part in flight.parts:
            columns = part.columns
            about = append_time, None, now, self._topic, part.bytes, part.epoch_ms
            self._tell(part, Report(part.records, part.partitions, columns, dict(offsets), *about))
            if len(flight.parts) > 1 and columns is not None:
                for count in columns.partitions.value_counts():
                    offsets[count["values"].as_py()] += count["counts"].as_py()

    def failed(self, parts: Sequence[Part], error: KafkaException) -> None:
        """Parts were not written, or nobody knows."""
        if isinstance(error, Unavailable) and error.error.retriable():
            # Not tried again, so their time is over.
            error = KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT, error.error.str(), retriable=True))
        now = self._clock.monotonic()
        for part in parts:
            records = part.records
            partitions = part.partitions or ([row[2] for row in records.rows] if isinstance(records, RowBlock) else ())
            about = error, now, self._topic, part.bytes, part.epoch_ms
            self._tell(part, Report(records, partitions, part.columns, {}, None, *about))

    def _tell(self, part: Part, report: Report) -> None:
        """Report what became of a part, unless its client has been told already."""
        with self._flights.changed:
            if part.told:
                return
            part.told = True
            self._flights.under_way.pop(part, None)
        part.buffer.report(report)

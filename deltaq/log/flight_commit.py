"""Committing what was uploaded, in the order in which it was taken."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from deltaq.clock import Clock
from deltaq.errors import KafkaException, Unavailable
from deltaq.log.caretaker import Care
from deltaq.log.flight_reports import FlightReports, defect
from deltaq.log.flight_upload import FlightUpload
from deltaq.log.flights import Flight, Flights
from deltaq.log.linger import AdaptiveLinger
from deltaq.log.topic_log import Appended, SharedTopicLog, UploadsGone
from deltaq.log.topic_sight import TopicSight
from deltaq.log.topic_state import PendingSegment
from deltaq.log.topic_view import TopicView, view_of
from deltaq.log.upload_threads import UploadThreads

__all__ = ["FlightCommit"]

_log = logging.getLogger("deltaq.log")


class FlightCommit:
    """Commits the flights of one topic. One thread only, but for what `FlightReports` and `Flights` do."""

    def __init__(
        self,
        topic: str,
        clock: Clock,
        log: SharedTopicLog,
        flights: Flights,
        upload: FlightUpload,
        reports: FlightReports,
        linger: AdaptiveLinger,
        sight: TopicSight,
        care: Care,
        uploads: UploadThreads,
    ) -> None:
        self._topic = topic
        self._clock = clock
        self._log = log
        self._flights = flights
        self._upload = upload
        self._reports = reports
        self._sight = sight
        self._linger = linger
        self._care = care
        self._uploads = uploads

    def next(self) -> None:
        """Commit all that has been uploaded. There is some."""
        with self._flights.changed:
            front = self._flights.front()
        if front is None:
            return
        taken: list[Flight] = []
        try:
            appended = self._append(taken, front.topic_id, front.deadline)
        except KafkaException as error:
            self.not_appended(taken, error)
        except Exception as error:  # noqa: BLE001 - a defect must not leave callers waiting for ever
            self.not_appended(taken, defect(error, "committing", self._topic))
        else:
            now, chance = self._clock.monotonic(), self._clock.random()
            self._linger.committed(appended.others, now, appended.seconds, chance)
            self._uploads.learn(taken, now)
            self._reports.delivered(taken, appended.files)
            self._uploads.look_again()

    def _append(self, taken: list[Flight], topic_id: str, deadline: float) -> Appended:
        def take_segments() -> list[PendingSegment]:
            # Asked again after a lost race: whatever has been uploaded meanwhile rides along.
            with self._flights.changed:
                taken.extend(flight for flight in self._flights.take_uploaded(topic_id))
                self._uploads.relieve()  # there is room again
            return [segment for flight in taken for segment in flight.segments]

        with self._log.turn() as log:
            try:
                while True:
                    try:
                        appended = log.append(take_segments, topic_id, deadline)
                    except UploadsGone as gone:
                        self._upload_again(taken, gone.paths, view_of(log), deadline)
                    else:
                        if self._care.taker is not None:
                            self._care.taker.committed(log.version, log.copied_state)
                        return appended
            finally:
                self._sight.saw(view_of(log) if log.head is not None else None)

    def _upload_again(self, taken: Sequence[Flight], gone: frozenset[str], view: TopicView, deadline: float) -> None:
        """What was uploaded before a long suspension may have been removed as an orphan. Never heard of otherwise."""
        _log.warning("files that waited too long for their commit are uploaded again topic=%r", self._topic)
        for flight in taken:
            if any(segment.path in gone for segment in flight.segments):
                self._upload.put(flight, view, deadline)

    def not_appended(self, taken: list[Flight], error: KafkaException) -> None:
        """Try again what still has time, and give up the rest."""
        now = self._clock.monotonic()
        again = []
        with self._flights.changed:
            if not taken and (front := self._flights.front()) is not None:
                # Refused before anything was taken: the topic is gone.
                self._flights.waiting.popleft()
                taken.append(front)
        if isinstance(error, Unavailable) and error.error.retriable():
            again = [flight for flight in taken if flight.deadline > now]
        for flight in taken:
            if flight not in again:
                self._reports.failed(flight.parts, error)
        with self._flights.changed:
            self._flights.put_back(again)

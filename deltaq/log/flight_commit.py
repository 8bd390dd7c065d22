"""Committing what was uploaded, in the order in which it was taken, and giving up what cannot be.

What is offered to other processes may be in the log before we are, and must never be called a failure as long as it may
still come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from deltaq.clock import Clock
from deltaq.errors import KafkaError, KafkaException, OutcomeUnknown, Unavailable, UnknownTopic
from deltaq.log.caretaker import Care
from deltaq.log.expiry import WITHDRAW_S, Expiry
from deltaq.log.flight_reports import FlightReports, defect
from deltaq.log.flight_upload import FlightUpload
from deltaq.log.flights import Flight, Flights
from deltaq.log.linger import AdaptiveLinger
from deltaq.log.topic_log import Appended, Fate, OutRun, SharedTopicLog, TakenAlong, TopicLog, UploadsGone
from deltaq.log.topic_sight import TopicSight
from deltaq.log.topic_state import PendingSegment
from deltaq.log.topic_view import TopicView, view_of
from deltaq.log.turns import Turns
from deltaq.log.upload_threads import UploadThreads

__all__ = ["FlightCommit"]

_log = logging.getLogger("deltaq.log")

GIVE_WAY_MAX = 3
"""How many lost races make a writer wait for others once more, before it insists."""

OFFER_AGAIN_BYTES_MAX = 256 * 1024
"""Larger files are not uploaded again only to save their writer a commit."""


class _TryAgain(Exception):
    """What was taken is back in its place, in another state."""


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
        turns: Turns,
        linger: AdaptiveLinger,
        sight: TopicSight,
        care: Care,
        uploads: UploadThreads,
        expiry: Expiry,
    ) -> None:
        self._topic = topic
        self._clock = clock
        self._log = log
        self._flights = flights
        self._upload = upload
        self._reports = reports
        self._sight = sight
        self._turns = turns
        self._linger = linger
        self._care = care
        self._uploads = uploads
        self._expiry = expiry

    def next(self) -> None:
        """Commit all that has been uploaded, or find out what is to be said about it. There is some."""
        with self._flights.changed:
            lost = list(self._flights.take_lost())
            front = self._flights.front()
            self._flights.is_committing = True
        try:
            if lost:
                self._fail(lost)
            elif front is not None:
                self._commit(front)
        finally:
            self._flights.is_committing = False
        self._uploads.look_again()

    def _commit(self, front: Flight) -> None:
        """Commit this flight and what has been uploaded behind it."""
        taken: list[Flight] = []
        try:
            appended = self._append(taken, front)
        except TakenAlong as found:
            self._were_taken_along(taken, found)
        except _TryAgain:
            pass
        except KafkaException as error:
            self.not_appended(taken, error)
        except Exception as error:  # noqa: BLE001 - a defect must not leave callers waiting for ever
            self.not_appended(taken, defect(error, "committing", self._topic))
        else:
            self._learn(appended, taken)
            self._reports.delivered(taken, appended.files)

    def _learn(self, appended: Appended, taken: Sequence[Flight]) -> None:
        now, chance = self._clock.monotonic(), self._clock.random()
        others = sum(appended.others.values())
        self._turns.learned(now, others + 1, appended.files_seen, company=others + appended.taken_along > 0)
        self._turns.committed(appended.seconds)
        if not self._turns.in_company(now):
            self._linger.committed(appended.others, now, appended.seconds, chance)
        self._uploads.learn(taken, now)

    # --- appending ---

    def _append(self, taken: list[Flight], front: Flight) -> Appended:
        topic_id, deadline, token = front.topic_id, front.deadline, None

        def trying(newest: str) -> None:
            nonlocal token
            token = newest

        def take_segments() -> list[PendingSegment]:
            # Asked again after a lost race: whatever has been uploaded meanwhile rides along, and what was reported
            # meanwhile does not.
            with self._flights.changed:
                taken.extend(flight for flight in self._flights.take_uploaded(topic_id))
                self._leave_out_unwanted(taken)
                for flight in taken:
                    flight.token, flight.tried_until = token, deadline
                self._uploads.relieve()  # there is room again
            return [segment for flight in taken for segment in flight.segments]

        lost = 0
        with self._log.turn:
            log = self._log.log
            try:
                while True:
                    take_segments()
                    deadline = self._deadline_of(taken)
                    # For what nobody but we can commit, to wait is in vain; but a lost race may change that.
                    is_offered = all(flight.is_offered for flight in taken)
                    if is_offered:
                        self._let_others_commit(log, take_segments, lost, deadline)
                    shared = self._turns.in_company(self._clock.monotonic())
                    may_give_way = lost < GIVE_WAY_MAX if is_offered else lost == 0
                    tries = 1 if may_give_way and self._turns.is_busy else None
                    try:
                        appended = log.append(
                            take_segments, topic_id, deadline, shared=shared, tries=tries, trying=trying
                        )
                    except OutRun:
                        lost += 1
                        self._turns.met(self._clock.monotonic())
                        self._offer_again(taken, view_of(log))
                    except UploadsGone as gone:
                        self._upload_again(taken, gone.paths, view_of(log), deadline)
                    else:
                        if self._care.taker is not None:
                            self._care.taker.committed(log.version, log.copied_state)
                        return appended
            finally:
                self._sight.saw(view_of(log) if log.head is not None else None)

    def _leave_out_unwanted(self, taken: list[Flight]) -> None:
        """Raises _TryAgain if nothing is left. The writer's lock is held."""
        unwanted = [flight for flight in taken if flight.is_unwanted]
        if unwanted:
            self._flights.settled(unwanted)
            taken[:] = [flight for flight in taken if not flight.is_unwanted]
        if not taken:
            raise _TryAgain

    def _deadline_of(self, taken: Sequence[Flight]) -> float:
        """Until when an attempt goes on: where the limits differ, as long as any of its flights has time."""
        deadlines = [flight.deadline for flight in taken]
        return max(deadlines) if self._expiry.is_running else deadlines[0]

    def _let_others_commit(
        self, log: TopicLog, take_segments: Callable[[], Sequence[PendingSegment]], lost: int, deadline: float
    ) -> None:
        """Give whoever commits for all a while to do so. Raises TakenAlong, Corrupt, Incompatible."""
        now = self._clock.monotonic()
        patience_s = self._turns.patience_s(now, self._clock.random(), lost, is_ours=log.is_ours)
        until = min(deadline, now + patience_s)
        while now < until and not self._flights.is_stopping:
            self._clock.sleep(min(self._turns.look_s, until - now))
            try:
                log.catch_up()
            except Unavailable:
                return
            log.check_taken(take_segments())
            now = self._clock.monotonic()

    def _were_taken_along(self, taken: list[Flight], found: TakenAlong) -> None:
        """Others have committed some of what was to be committed; the rest is tried again."""
        now = self._clock.monotonic()
        with self._log.turn:
            log = self._log.log
            others, files = log.others_since()
        self._turns.learned(now, sum(others.values()), files, company=True)
        self._turns.met(now)
        done = [flight for flight in taken if flight.segments[0].path in found.landed]
        missed = [flight for flight in taken if flight.segments[0].path in found.unseen]
        with self._flights.changed:
            self._flights.put_back([flight for flight in taken if flight not in done + missed])
        self._reports.delivered(done, tuple(found.landed.values()))
        if missed:
            reason = "the log was cleaned up before it could be looked at"
            self._fail(missed, Unavailable(reason, retriable=False))

    def _offer_again(self, taken: list[Flight], view: TopicView) -> None:
        """Others write too: what nobody but we could commit is uploaded once more, so that they can.

        Raises _TryAgain if that fails.
        """
        for flight in taken:
            if flight.topic_id != view.topic_id or flight.is_late or len(flight.segments) != 1:
                return
            if flight.segments[0].size > OFFER_AGAIN_BYTES_MAX:
                return
        with self._flights.changed:
            is_first = self._flights.open[: len(taken)] == taken
            if not is_first or any(flight.place is not None for flight in self._flights.open):
                return
            for number, flight in enumerate(taken):
                flight.place = self._flights.place(self._log.version, follows=number > 0)
        for flight in taken:
            try:
                self._upload.put(flight, view, flight.deadline)
            except KafkaException as error:
                flight.failure = error
                with self._flights.changed:
                    self._flights.put_back(taken)
                raise _TryAgain from error
            if not flight.is_offered:
                return

    def _upload_again(self, taken: list[Flight], gone: frozenset[str], view: TopicView, deadline: float) -> None:
        """What was uploaded before a long suspension may have been removed as an orphan. Never heard of otherwise."""
        _log.warning("files that waited too long for their commit are uploaded again topic=%r", self._topic)
        for flight in taken:
            if any(segment.path in gone for segment in flight.segments):
                with self._flights.changed:
                    # By now nobody adds it any more, and what is behind it must wait for it.
                    self._flights.forget(flight)
                    flight.is_offered, flight.is_late, flight.place = False, True, None
                self._upload.put(flight, view, deadline)

    # --- giving up ---

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
            for flight in again:
                flight.token = None  # nothing was written
        self._fail([flight for flight in taken if flight not in again], error)
        with self._flights.changed:
            self._flights.put_back(again)

    def _fail(self, flights: Sequence[Flight], error: KafkaException | None = None) -> None:
        """Report that flights were not written, once nobody else can do so any more; if that cannot be had, that their
        outcome is unknown. `error`: unless each has failed for a reason of its own."""
        # Nobody commits to a topic that is gone.
        offered = [flight for flight in flights if flight.is_offered and not isinstance(error, UnknownTopic)]
        fate = self._withdrawn(offered) if offered else None
        for flight in flights:
            reason = error or flight.failure or KafkaException(KafkaError(KafkaError._FAIL))
            if flight not in offered:
                self._reports.failed(flight.parts, reason)
            elif fate is None or flight.segments[0].path in fate.unseen:
                self._reports.failed(flight.parts, self._unknown(flight, reason))
            elif flight.segments[0].path in fate.landed:
                self._reports.delivered([flight], tuple(fate.landed.values()))
            else:
                self._reports.failed(flight.parts, _certain(reason))
        with self._flights.changed:
            self._flights.settled(flights)

    def _withdrawn(self, offered: Sequence[Flight]) -> Fate | None:
        """What became of files that others might have committed, and cannot any more; None if that is not to be had
        now."""
        segments = [segment for flight in offered for segment in flight.segments]
        try:
            with self._log.turn:
                log = self._log.log
                return log.withdraw(segments, self._clock.monotonic() + WITHDRAW_S)
        except KafkaException as error:
            _log.warning("cannot be withdrawn now: %d files topic=%r: %s", len(segments), self._topic, error)
        except Exception as error:  # noqa: BLE001 - a defect must not turn an unknown outcome into a known one
            defect(error, "withdrawing", self._topic)
        return None

    def _unknown(self, flight: Flight, error: KafkaException) -> OutcomeUnknown:
        """What is to be told about records that others may commit yet."""
        return OutcomeUnknown(_reason(error), token=self._log.offer_token(flight.segments[0]) or "")


def _certain(error: KafkaException) -> KafkaException:
    """The error of a commit, now that it is certain that there was none."""
    if isinstance(error, OutcomeUnknown):
        return KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT, _reason(error), retriable=True))
    return error


def _reason(error: KafkaException) -> str:
    return str(error.error.str()).partition(" (token ")[0]

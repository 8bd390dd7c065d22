"""Committing what was uploaded, in the order in which it was taken, and giving up what cannot be.

What is offered to other processes may be in the log before we are, and must never be called a failure as long as it may
still come.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from deltaq.clock import Clock
from deltaq.errors import KafkaError, KafkaException, OutcomeUnknown, Unavailable, UnknownTopic
from deltaq.producer.batch_upload import BatchUpload
from deltaq.producer.batches import InFlightBatches, ProduceBatch
from deltaq.producer.caretaker import MaintenanceSlot
from deltaq.producer.delivery_reports import DeliveryReports, defect
from deltaq.producer.expiry import WITHDRAW_S, Expiry
from deltaq.producer.group_commit import GroupCommitPolicy
from deltaq.producer.linger import AdaptiveLinger
from deltaq.producer.metadata_cache import TopicDefinitionCache
from deltaq.producer.uploader import Uploader
from deltaq.topics.log import (
    Appended,
    CommitConflict,
    CommitOutcome,
    CommittedByPeer,
    SharedTopicLog,
    TopicLog,
    UploadsExpired,
)
from deltaq.topics.metadata import TopicDefinition, definition_of
from deltaq.topics.state import PendingSegment

__all__ = ["Committer"]

_log = logging.getLogger("deltaq.producer")

GIVE_WAY_MAX = 3
"""How many lost races make a writer wait for others once more, before it insists."""

OFFER_AGAIN_BYTES_MAX = 256 * 1024
"""Larger files are not uploaded again only to save their writer a commit."""


class _TryAgain(Exception):
    """What was taken is back in its place, in another state."""


class Committer:
    """Commits the batches of one topic. One thread only, but for what `DeliveryReports` and `InFlightBatches` do."""

    def __init__(
        self,
        topic: str,
        clock: Clock,
        log: SharedTopicLog,
        batches: InFlightBatches,
        upload: BatchUpload,
        reports: DeliveryReports,
        turns: GroupCommitPolicy,
        linger: AdaptiveLinger,
        sight: TopicDefinitionCache,
        care: MaintenanceSlot,
        uploads: Uploader,
        expiry: Expiry,
    ) -> None:
        self._topic = topic
        self._clock = clock
        self._log = log
        self._batches = batches
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
        with self._batches.changed:
            lost = list(self._batches.take_lost())
            front = self._batches.front()
            self._batches.is_committing = True
        try:
            if lost:
                self._fail(lost)
            elif front is not None:
                self._commit(front)
        finally:
            self._batches.is_committing = False
        self._uploads.look_again()

    def _commit(self, front: ProduceBatch) -> None:
        """Commit this batch and what has been uploaded behind it."""
        taken: list[ProduceBatch] = []
        try:
            appended = self._append(taken, front)
        except CommittedByPeer as found:
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

    def _learn(self, appended: Appended, taken: Sequence[ProduceBatch]) -> None:
        now, chance = self._clock.monotonic(), self._clock.random()
        others = sum(appended.others.values())
        self._turns.learned(now, others + 1, appended.files_seen, company=others + appended.taken_along > 0)
        self._turns.committed(appended.seconds)
        if not self._turns.in_company(now):
            self._linger.committed(appended.others, now, appended.seconds, chance)
        self._uploads.learn(taken, now)

    # --- appending ---

    def _append(self, taken: list[ProduceBatch], front: ProduceBatch) -> Appended:
        topic_id, deadline, token = front.topic_id, front.deadline, None

        def trying(newest: str) -> None:
            nonlocal token
            token = newest

        def take_segments() -> list[PendingSegment]:
            # Asked again after a lost race: whatever has been uploaded meanwhile rides along, and what was reported
            # meanwhile does not.
            with self._batches.changed:
                taken.extend(batch for batch in self._batches.take_uploaded(topic_id))
                self._leave_out_unwanted(taken)
                for batch in taken:
                    batch.token, batch.tried_until = token, deadline
                self._uploads.start_extra_worker()  # there is room again
            return [segment for batch in taken for segment in batch.segments]

        lost = 0
        with self._log.turn:
            log = self._log.log
            try:
                while True:
                    take_segments()
                    deadline = self._deadline_of(taken)
                    # For what nobody but we can commit, to wait is in vain; but a lost race may change that.
                    is_offered = all(batch.is_offered for batch in taken)
                    if is_offered:
                        self._let_others_commit(log, take_segments, lost, deadline)
                    shared = self._turns.in_company(self._clock.monotonic())
                    may_give_way = lost < GIVE_WAY_MAX if is_offered else lost == 0
                    tries = 1 if may_give_way and self._turns.is_busy else None
                    try:
                        appended = log.append(
                            take_segments, topic_id, deadline, shared=shared, tries=tries, trying=trying
                        )
                    except CommitConflict:
                        lost += 1
                        self._turns.met(self._clock.monotonic())
                        self._offer_again(taken, definition_of(log))
                    except UploadsExpired as gone:
                        self._upload_again(taken, gone.paths, definition_of(log), deadline)
                    else:
                        if self._care.taker is not None:
                            self._care.taker.committed(log.version, log.copied_state)
                        return appended
            finally:
                self._sight.saw(definition_of(log) if log.head is not None else None)

    def _leave_out_unwanted(self, taken: list[ProduceBatch]) -> None:
        """Raises _TryAgain if nothing is left. The writer's lock is held."""
        unwanted = [batch for batch in taken if batch.is_unwanted]
        if unwanted:
            self._batches.settled(unwanted)
            taken[:] = [batch for batch in taken if not batch.is_unwanted]
        if not taken:
            raise _TryAgain

    def _deadline_of(self, taken: Sequence[ProduceBatch]) -> float:
        """Until when an attempt goes on: where the limits differ, as long as any of its batches has time."""
        deadlines = [batch.deadline for batch in taken]
        return max(deadlines) if self._expiry.is_running else deadlines[0]

    def _let_others_commit(
        self, log: TopicLog, take_segments: Callable[[], Sequence[PendingSegment]], lost: int, deadline: float
    ) -> None:
        """Give whoever commits for all a while to do so. Raises CommittedByPeer, Corrupt, Incompatible."""
        now = self._clock.monotonic()
        patience_s = self._turns.patience_s(now, self._clock.random(), lost, is_ours=log.is_ours)
        until = min(deadline, now + patience_s)
        while now < until and not self._batches.is_stopping:
            self._clock.sleep(min(self._turns.look_s, until - now))
            try:
                log.catch_up()
            except Unavailable:
                return
            log.check_taken(take_segments())
            now = self._clock.monotonic()

    def _were_taken_along(self, taken: list[ProduceBatch], found: CommittedByPeer) -> None:
        """Others have committed some of what was to be committed; the rest is tried again."""
        now = self._clock.monotonic()
        with self._log.turn:
            log = self._log.log
            others, files = log.others_since()
        self._turns.learned(now, sum(others.values()), files, company=True)
        self._turns.met(now)
        done = [batch for batch in taken if batch.segments[0].path in found.landed]
        missed = [batch for batch in taken if batch.segments[0].path in found.unseen]
        with self._batches.changed:
            self._batches.put_back([batch for batch in taken if batch not in done + missed])
        self._reports.delivered(done, tuple(found.landed.values()))
        if missed:
            reason = "the log was cleaned up before it could be looked at"
            self._fail(missed, Unavailable(reason, retriable=False))

    def _offer_again(self, taken: list[ProduceBatch], view: TopicDefinition) -> None:
        """Others write too: what nobody but we could commit is uploaded once more, so that they can.

        Raises _TryAgain if that fails.
        """
        for batch in taken:
            if batch.topic_id != view.topic_id or batch.is_late or len(batch.segments) != 1:
                return
            if batch.segments[0].size > OFFER_AGAIN_BYTES_MAX:
                return
        with self._batches.changed:
            is_first = self._batches.open[: len(taken)] == taken
            if not is_first or any(batch.place is not None for batch in self._batches.open):
                return
            for number, batch in enumerate(taken):
                batch.place = self._batches.place(self._log.version, follows=number > 0)
        for batch in taken:
            try:
                self._upload.put(batch, view, batch.deadline)
            except KafkaException as error:
                batch.failure = error
                with self._batches.changed:
                    self._batches.put_back(taken)
                raise _TryAgain from error
            if not batch.is_offered:
                return

    def _upload_again(
        self, taken: list[ProduceBatch], gone: frozenset[str], view: TopicDefinition, deadline: float
    ) -> None:
        """What was uploaded before a long suspension may have been removed as an orphan. Never heard of otherwise."""
        _log.warning("files that waited too long for their commit are uploaded again topic=%r", self._topic)
        for batch in taken:
            if any(segment.path in gone for segment in batch.segments):
                with self._batches.changed:
                    # By now nobody adds it any more, and what is behind it must wait for it.
                    self._batches.forget(batch)
                    batch.is_offered, batch.is_late, batch.place = False, True, None
                self._upload.put(batch, view, deadline)

    # --- giving up ---

    def not_appended(self, taken: list[ProduceBatch], error: KafkaException) -> None:
        """Try again what still has time, and give up the rest."""
        now = self._clock.monotonic()
        again = []
        with self._batches.changed:
            if not taken and (front := self._batches.front()) is not None:
                # Refused before anything was taken: the topic is gone.
                self._batches.waiting.popleft()
                taken.append(front)
        if isinstance(error, Unavailable) and error.error.retriable():
            again = [batch for batch in taken if batch.deadline > now]
            for batch in again:
                batch.token = None  # nothing was written
        self._fail([batch for batch in taken if batch not in again], error)
        with self._batches.changed:
            self._batches.put_back(again)

    def _fail(self, batches: Sequence[ProduceBatch], error: KafkaException | None = None) -> None:
        """Report that batches were not written, once nobody else can do so any more; if that cannot be had, that their
        outcome is unknown. `error`: unless each has failed for a reason of its own."""
        # Nobody commits to a topic that is gone.
        offered = [batch for batch in batches if batch.is_offered and not isinstance(error, UnknownTopic)]
        fate = self._withdrawn(offered) if offered else None
        for batch in batches:
            reason = error or batch.failure or KafkaException(KafkaError(KafkaError._FAIL))
            if batch not in offered:
                self._reports.failed(batch.parts, reason)
            elif fate is None or batch.segments[0].path in fate.unseen:
                self._reports.failed(batch.parts, self._unknown(batch, reason))
            elif batch.segments[0].path in fate.landed:
                self._reports.delivered([batch], tuple(fate.landed.values()))
            else:
                self._reports.failed(batch.parts, _certain(reason))
        with self._batches.changed:
            self._batches.settled(batches)

    def _withdrawn(self, offered: Sequence[ProduceBatch]) -> CommitOutcome | None:
        """What became of files that others might have committed, and cannot any more; None if that is not to be had
        now."""
        segments = [segment for batch in offered for segment in batch.segments]
        try:
            with self._log.turn:
                log = self._log.log
                return log.withdraw(segments, self._clock.monotonic() + WITHDRAW_S)
        except KafkaException as error:
            _log.warning("cannot be withdrawn now: %d files topic=%r: %s", len(segments), self._topic, error)
        except Exception as error:  # noqa: BLE001 - a defect must not turn an unknown outcome into a known one
            defect(error, "withdrawing", self._topic)
        return None

    def _unknown(self, batch: ProduceBatch, error: KafkaException) -> OutcomeUnknown:
        """What is to be told about records that others may commit yet."""
        return OutcomeUnknown(_reason(error), token=self._log.offer_token(batch.segments[0]) or "")


def _certain(error: KafkaException) -> KafkaException:
    """The error of a commit, now that it is certain that there was none."""
    if isinstance(error, OutcomeUnknown):
        return KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT, _reason(error), retriable=True))
    return error


def _reason(error: KafkaException) -> str:
    return str(error.error.str()).partition(" (token ")[0]

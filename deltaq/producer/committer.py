"""The commit thread of a sender: commits uploaded batches in the order of taking, and fails those out of time.

Other processes may commit a shared file before its own sender does. It must never be reported as failed while that is
still possible.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from deltaq import metrics
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
    AppendOutcome,
    CommitConflict,
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
"""Lost races after which a writer retries its own commit, instead of giving way to the group-commit leader again."""

OFFER_AGAIN_BYTES_MAX = 256 * 1024
"""Larger files, in bytes, are not uploaded again as shared files merely to save their writer a commit."""


class _TryAgain(Exception):
    """The batches were put back or dropped; start over."""


class Committer:
    """Commits the batches of one topic. Used by the commit thread only."""

    def __init__(
        self,
        topic: str,
        clock: Clock,
        log: SharedTopicLog,
        batches: InFlightBatches,
        upload: BatchUpload,
        reports: DeliveryReports,
        policy: GroupCommitPolicy,
        linger: AdaptiveLinger,
        definitions: TopicDefinitionCache,
        maintenance: MaintenanceSlot,
        uploads: Uploader,
        expiry: Expiry,
    ) -> None:
        self._topic = topic
        self._clock = clock
        self._log = log
        self._batches = batches
        self._upload = upload
        self._reports = reports
        self._definitions = definitions
        self._policy = policy
        self._linger = linger
        self._maintenance = maintenance
        self._uploads = uploads
        self._expiry = expiry

    def next(self) -> None:
        """Commit the uploaded batches in front, or resolve and report those whose upload failed."""
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
        self._uploads.recheck_linger()

    def _commit(self, front: ProduceBatch) -> None:
        """Commit `front` and the uploaded batches behind it."""
        taken: list[ProduceBatch] = []
        try:
            outcome = self._append(taken, front)
        except _TryAgain:
            pass
        except KafkaException as error:
            self.not_appended(taken, error)
        except Exception as error:  # noqa: BLE001 - after a defect, callers must not wait for ever
            self.not_appended(taken, defect(error, "committing", self._topic))
        else:
            if isinstance(outcome, Appended):
                self._learn(outcome, taken)
                self._reports.delivered(taken, outcome.files)
            elif isinstance(outcome, CommittedByPeer):
                self._committed_by_peer(taken, outcome)

    def _learn(self, appended: Appended, taken: Sequence[ProduceBatch]) -> None:
        now, chance = self._clock.monotonic(), self._clock.random()
        others = sum(appended.others.values())
        self._policy.learned(now, others + 1, appended.files_seen, contended=others + appended.peer_files > 0)
        self._policy.committed(appended.seconds)
        if not self._policy.is_contended(now):
            self._linger.committed(appended.others, now, appended.seconds, chance)
        self._uploads.learn(taken, now)

    # --- appending ---

    def _append(self, taken: list[ProduceBatch], front: ProduceBatch) -> AppendOutcome:
        topic_id, deadline, token = front.topic_id, front.deadline, None

        def trying(newest: str) -> None:
            nonlocal token
            token = newest

        def take_segments() -> list[PendingSegment]:
            # Called again after each lost race: batches uploaded meanwhile join, batches reported meanwhile leave.
            with self._batches.changed:
                taken.extend(batch for batch in self._batches.take_uploaded(topic_id))
                self._leave_out_unwanted(taken)
                for batch in taken:
                    batch.token, batch.tried_until = token, deadline
                self._uploads.start_extra_worker()  # `waiting` has room again
            return [segment for batch in taken for segment in batch.segments]

        lost = 0
        with self._log.lock:
            log = self._log.log
            try:
                while True:
                    take_segments()
                    deadline = self._deadline_of(taken)
                    # A leader can commit only shared files. After a lost race, others are uploaded again as such.
                    is_shared = all(batch.is_shared for batch in taken)
                    if is_shared:
                        found = self._let_others_commit(log, take_segments, lost, deadline)
                        if found is not None:
                            return found
                    shared = self._policy.is_contended(self._clock.monotonic())
                    may_give_way = lost < GIVE_WAY_MAX if is_shared else lost == 0
                    tries = 1 if may_give_way and self._policy.is_busy else None
                    outcome = log.append(take_segments, topic_id, deadline, shared=shared, tries=tries, trying=trying)
                    if isinstance(outcome, CommitConflict):
                        lost += 1
                        self._policy.peer_committed(self._clock.monotonic())
                        self._share_again(taken, definition_of(log))
                    elif isinstance(outcome, UploadsExpired):
                        self._upload_expired_again(taken, outcome.paths, definition_of(log), deadline)
                    else:
                        if isinstance(outcome, Appended) and self._maintenance.current is not None:
                            self._maintenance.current.committed(log.version, log.copied_state)
                        return outcome
            finally:
                self._definitions.saw(definition_of(log) if log.head is not None else None)

    def _leave_out_unwanted(self, taken: list[ProduceBatch]) -> None:
        """Drop fully reported batches. Raises _TryAgain if none is left. The caller holds the sender's lock."""
        unwanted = [batch for batch in taken if batch.is_unwanted]
        if unwanted:
            self._batches.finished(unwanted)
            taken[:] = [batch for batch in taken if not batch.is_unwanted]
        if not taken:
            raise _TryAgain

    def _deadline_of(self, taken: Sequence[ProduceBatch]) -> float:
        """When the attempt ends. With an expiry thread, limits differ and the latest deadline counts."""
        deadlines = [batch.deadline for batch in taken]
        return max(deadlines) if self._expiry.is_running else deadlines[0]

    def _let_others_commit(
        self, log: TopicLog, take_segments: Callable[[], Sequence[PendingSegment]], lost: int, deadline: float
    ) -> CommittedByPeer | None:
        """Wait for the group-commit leader to commit our files; None if it has not. Raises Corrupt, Incompatible."""
        now = self._clock.monotonic()
        leader_timeout_s = self._policy.leader_timeout_s(now, self._clock.random(), lost, is_ours=log.is_ours)
        until = min(deadline, now + leader_timeout_s)
        while now < until and not self._batches.is_stopping:
            self._clock.sleep(min(self._policy.poll_s, until - now))
            try:
                log.catch_up()
            except Unavailable:
                return None
            if (found := log.committed_by_peer(take_segments())) is not None:
                return found
            now = self._clock.monotonic()
        return None

    def _committed_by_peer(self, taken: list[ProduceBatch], found: CommittedByPeer) -> None:
        """Report the batches that a peer has committed, and put back the rest."""
        now = self._clock.monotonic()
        with self._log.lock:
            log = self._log.log
            others, files = log.others_since()
        self._policy.learned(now, sum(others.values()), files, contended=True)
        self._policy.peer_committed(now)
        done = [batch for batch in taken if batch.segments[0].path in found.committed]
        missed = [batch for batch in taken if batch.segments[0].path in found.unknown]
        with self._batches.changed:
            self._batches.put_back([batch for batch in taken if batch not in done + missed])
        self._reports.delivered(done, tuple(found.committed.values()))
        if missed:
            reason = "the log was cleaned up before this writer could read it"
            self._fail(missed, Unavailable(reason, retriable=False))

    def _share_again(self, taken: list[ProduceBatch], definition: TopicDefinition) -> None:
        """After a lost race, upload small files again as shared files, so that the leader can commit them.

        Raises _TryAgain if an upload fails.
        """
        for batch in taken:
            if batch.topic_id != definition.topic_id or batch.is_late or len(batch.segments) != 1:
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
                self._upload.put(batch, definition, batch.deadline)
            except KafkaException as error:
                batch.failure = error
                with self._batches.changed:
                    self._batches.put_back(taken)
                raise _TryAgain from error
            if not batch.is_shared:
                return

    def _upload_expired_again(
        self, taken: list[ProduceBatch], gone: frozenset[str], definition: TopicDefinition, deadline: float
    ) -> None:
        """Upload files again that may have been removed as orphans, for instance while the process was suspended."""
        metrics.EXPIRED_UPLOADS.add(len(gone), topic=self._topic)
        _log.warning("uploading files again that waited too long for their commit topic=%r", self._topic)
        for batch in taken:
            if any(segment.path in gone for segment in batch.segments):
                with self._batches.changed:
                    # The log refuses the old file now. Later batches must not be committed before the new one.
                    self._batches.forget(batch)
                    batch.is_shared, batch.is_late, batch.place = False, True, None
                self._upload.put(batch, definition, deadline)

    # --- failures ---

    def not_appended(self, taken: list[ProduceBatch], error: KafkaException) -> None:
        """Put back batches that still have time, and fail the rest."""
        now = self._clock.monotonic()
        again = []
        with self._batches.changed:
            if not taken and (front := self._batches.front()) is not None:
                # The append failed before it took a batch: the topic does not exist any more.
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
        """Report batches as failed. Shared files are revoked first; if that fails, their outcome is unknown.

        `error` applies to all batches; None if each has its own `failure`.
        """
        # No writer commits to a deleted topic, so nothing has to be revoked.
        shared = [batch for batch in batches if batch.is_shared and not isinstance(error, UnknownTopic)]
        outcome = self._revoked(shared) if shared else None
        for batch in batches:
            reason = error or batch.failure or KafkaException(KafkaError(KafkaError._FAIL))
            if batch not in shared:
                self._reports.failed(batch.parts, reason)
            elif outcome is None or batch.segments[0].path in outcome.unknown:
                self._reports.failed(batch.parts, self._unknown(batch, reason))
            elif batch.segments[0].path in outcome.committed:
                self._reports.delivered([batch], tuple(outcome.committed.values()))
            else:
                self._reports.failed(batch.parts, _certain(reason))
        with self._batches.changed:
            self._batches.finished(batches)

    def _revoked(self, shared: Sequence[ProduceBatch]) -> CommittedByPeer | None:
        """Revoke shared files; which of them peers have committed, or None if they cannot be revoked now."""
        segments = [segment for batch in shared for segment in batch.segments]
        try:
            with self._log.lock:
                outcome = self._log.log.revoke(segments, self._clock.monotonic() + WITHDRAW_S)
            metrics.REVOCATIONS.add(topic=self._topic, outcome="committed" if outcome.committed else "revoked")
            return outcome
        except KafkaException as error:
            _log.warning("cannot revoke %d shared files topic=%r: %s", len(segments), self._topic, error)
        except Exception as error:  # noqa: BLE001 - a defect must not turn an unknown outcome into a known one
            defect(error, "revoking", self._topic)
        return None

    def _unknown(self, batch: ProduceBatch, error: KafkaException) -> OutcomeUnknown:
        """The error for records that a peer may still commit."""
        metrics.UNKNOWN_OUTCOMES.add(topic=self._topic)
        return OutcomeUnknown(_reason(error), token=self._log.shared_file_token(batch.segments[0]) or "")


def _certain(error: KafkaException) -> KafkaException:
    """`error` for a file that is certainly not in the log: an unknown outcome becomes a time-out."""
    if isinstance(error, OutcomeUnknown):
        return KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT, _reason(error), retriable=True))
    return error


def _reason(error: KafkaException) -> str:
    return str(error.error.str()).partition(" (token ")[0]

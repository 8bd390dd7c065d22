"""The commits of a sender: uploaded batches in the order of taking, and the failure of those out of
time.

A shared file must never be reported as failed while another process can still commit it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from deltaq import metrics
from deltaq.clock import Clock
from deltaq.errors import KafkaError, KafkaException, OutcomeUnknown, Unavailable, UnknownTopic
from deltaq.producer.batch_upload import BatchUpload
from deltaq.producer.batches import (
    CommitAttempt,
    InFlightBatches,
    ProduceBatch,
    Uploaded,
    UploadFailed,
)
from deltaq.producer.delivery_reports import REVOKE_S, DeliveryReports, defect
from deltaq.producer.group_commit import GroupCommitPolicy
from deltaq.producer.linger import Lingering
from deltaq.producer.sender_topic import SenderTopic
from deltaq.store.parallel import in_parallel
from deltaq.topics.log import (
    Appended,
    AppendMode,
    AppendOutcome,
    CommitConflict,
    CommittedByPeer,
    NothingToAppend,
    TopicLog,
    UploadsExpired,
)
from deltaq.topics.metadata import TopicDefinition, definition_of
from deltaq.topics.state import PendingSegment

_log = logging.getLogger("deltaq.producer")

GIVE_WAY_MAX = 3
"""Lost races after which a writer retries its own commit, instead of giving way to the group-commit
leader again.
"""

RESHARE_BYTES_MAX = 256 * 1024
"""Larger files, in bytes, are not uploaded again as shared files merely to save their writer a
commit.
"""


@dataclass(slots=True)
class _Attempt:
    """A commit of batches for the topic `topic_id`. `token` is that of the slot tried; it ends at
    `deadline`.
    """

    topic_id: str
    deadline: float
    taken: list[ProduceBatch] = field(default_factory=list)
    token: str | None = None
    lost_races: int = 0

    def ends_with_its_batches(self, *, latest: bool) -> None:
        """Set the deadline. Where batches are expired one by one, their limits differ, and the
        `latest` counts.
        """
        deadlines = [batch.deadline for batch in self.taken]
        self.deadline = max(deadlines) if latest else deadlines[0]

    def trying(self, token: str) -> None:
        """Note the token of the next slot."""
        self.token = token


@dataclass(eq=False)
class Committer:
    """Commits the batches of one topic. Used by one thread at a time, which has claimed the
    commit.
    """

    _topic: SenderTopic
    _clock: Clock
    _batches: InFlightBatches
    _upload: BatchUpload
    _reports: DeliveryReports
    _linger: Lingering
    _start_extra_worker: Callable[[], None]

    def step(self) -> bool:
        """Commit the uploaded batches in front, or resolve and report those whose upload failed.
        False if there is none, or if another thread commits.
        """
        batches = self._batches
        if not batches.claim_commit():
            return False
        try:
            with batches.lock:
                lost = list(batches.take_lost())
                front = batches.front()
            if lost:
                self._fail(lost)
            elif front is not None and isinstance(front.state, Uploaded):
                self._commit(_Attempt(front.state.topic_id, front.deadline))
        finally:
            batches.is_committing = False
        return True

    def _commit(self, attempt: _Attempt) -> None:
        """Commit the uploaded batches in front that are for one topic, and report them."""
        log = self._topic.log
        outcome: AppendOutcome | None = None
        try:
            with log.known.turn:
                try:
                    while outcome is None and self._take(attempt) is not None:
                        attempt.ends_with_its_batches(latest=self._batches.is_expiring)
                        policy = self._batches.group_commit
                        outcome = None if policy is None else self._await_leader(attempt, policy)
                        if outcome is None:
                            how = self._how(attempt, policy)
                            take, until = partial(self._take, attempt), attempt.deadline
                            found = log.append(
                                take, attempt.topic_id, until, how=how, trying=attempt.trying
                            )
                            outcome = self._resolved(attempt, found, policy)
                finally:
                    self._topic.publish(definition_of(log) if log.head is not None else None)
        except KafkaException as error:
            self.not_appended(attempt.taken, error)
        except Exception as error:  # noqa: BLE001 - after a defect, callers must not wait for ever
            self.not_appended(attempt.taken, defect(error, "committing", self._topic.name))
        else:
            if isinstance(outcome, Appended):
                self._learn(outcome, attempt.taken)
                self._reports.delivered(attempt.taken, outcome.files)
            elif isinstance(outcome, CommittedByPeer):
                self._committed_by_peer(attempt.taken, outcome)

    def _take(self, attempt: _Attempt) -> list[PendingSegment] | None:
        """The segments to append; None if nothing is left. Batches uploaded or reported meanwhile
        join or leave.
        """
        batches = self._batches
        with batches.lock:
            attempt.taken += batches.take_uploaded(attempt.topic_id)
            unwanted = [batch for batch in attempt.taken if batch.is_unwanted]
            if unwanted:
                batches.finished(unwanted)
                attempt.taken = [batch for batch in attempt.taken if not batch.is_unwanted]
            if not attempt.taken:
                return None
            for batch in attempt.taken:
                batch.attempt = CommitAttempt(attempt.token, attempt.deadline)
            self._start_extra_worker()  # `waiting` has room again
        return [segment for batch in attempt.taken for segment in batch.segments]

    def _how(self, attempt: _Attempt, policy: GroupCommitPolicy | None) -> AppendMode:
        """How to append: with the shared files of peers, if there are any, and with how many tries.
        The group-commit leader can commit only shared files: after a lost race, others are uploaded
        again as such.
        """
        if policy is None:
            return AppendMode()
        now = self._clock.monotonic()
        looks = policy.looks_for_peers(now)
        tries = 1 if attempt.lost_races < GIVE_WAY_MAX else None
        return AppendMode(policy.is_contended(now) or looks, far_behind=looks, tries=tries)

    def _resolved(
        self, attempt: _Attempt, found: AppendOutcome, policy: GroupCommitPolicy | None
    ) -> AppendOutcome | None:
        """The outcome of an append; None if it is to be tried again, where files have expired or a
        race was lost. Raises what an upload raises.
        """
        log = self._topic.log
        if isinstance(found, UploadsExpired):
            self._upload_expired_again(attempt, found.paths, definition_of(log))
            return None
        if not isinstance(found, CommitConflict):
            if isinstance(found, Appended) and self._topic.maintenance is not None:
                self._topic.maintenance.committed(log.state)
            return found
        if policy is not None:
            policy.lost_race(self._clock.monotonic(), again=attempt.lost_races > 0)
            attempt.lost_races += 1
            if policy.is_busy and not self._share_again(attempt.taken, log):
                return NothingToAppend()
        return None

    def _learn(self, appended: Appended, taken: Sequence[ProduceBatch]) -> None:
        """Learn how long these batches took, and how many other writers there are."""
        now = self._clock.monotonic()
        if (policy := self._batches.group_commit) is not None:
            others = sum(appended.others.values())
            policy.observe(
                now, others + 1, appended.files_seen, contended=others + appended.peer_files > 0
            )
            policy.committed(appended.seconds)
        chance = self._clock.random()
        if not self._batches.contended_left_s(now):
            self._linger.adaptive.committed(appended.others, now, appended.seconds, chance)
        for batch in taken:
            self._linger.batch_times.committed(now - batch.taken_at)

    def _await_leader(
        self, attempt: _Attempt, policy: GroupCommitPolicy
    ) -> CommittedByPeer | NothingToAppend | None:
        """Wait for the group-commit leader to commit our files, if all are shared; None if it has
        not, or if no listing of a leader shows the first of them any more. Raises Corrupt,
        Incompatible.
        """
        log = self._topic.log
        if not all(batch.is_shared for batch in attempt.taken):
            return None
        now = self._clock.monotonic()
        leader_timeout_s = policy.leader_timeout_s(
            now, self._clock.random(), attempt.lost_races, is_ours=log.is_ours
        )
        until = min(attempt.deadline, now + leader_timeout_s)
        front = attempt.taken[0].segments[0]
        while now < until and log.is_listed(front) and not self._batches.is_stopping:
            self._clock.sleep(min(policy.poll_s, until - now))
            try:
                log.catch_up()
            except Unavailable:
                return None
            segments = self._take(attempt)
            if segments is None:
                return NothingToAppend()
            if (found := log.committed_by_peer(segments)) is not None:
                return found
            now = self._clock.monotonic()
        return None

    def _committed_by_peer(self, taken: list[ProduceBatch], found: CommittedByPeer) -> None:
        """Report the batches that a peer has committed, and put back the rest."""
        now = self._clock.monotonic()
        with self._topic.log.known.turn:
            others, files = self._topic.log.others_since()
        if (policy := self._batches.group_commit) is not None:
            policy.observe(now, sum(others.values()), files, contended=True)
            policy.peer_committed(now)
        done = [batch for batch in taken if batch.segments[0].path in found.committed]
        missed = [batch for batch in taken if batch.segments[0].path in found.unknown]
        with self._batches.lock:
            self._batches.put_back([batch for batch in taken if batch not in done + missed])
        self._reports.delivered(done, tuple(found.committed.values()))
        if missed:
            reason = "the log was cleaned up before this writer could read it"
            self._fail(missed, Unavailable(reason, retriable=False))

    def _share_again(self, taken: list[ProduceBatch], log: TopicLog) -> bool:
        """After a lost race, upload small files again as shared files, for the leader to commit.
        False if that fails: the batches have then been put back.
        """
        definition = definition_of(log)
        is_small = all(_is_small(batch, definition.topic_id) for batch in taken)
        if not is_small or not self._batches.share_again(taken, log.version):
            return True
        # At once: while they are uploaded, the log goes on, and peers find only files of its newest
        # versions.
        in_parallel(self._clock, partial(self._put_again, definition=definition), taken)
        with self._batches.lock:
            if any(isinstance(batch.state, UploadFailed) for batch in taken):
                self._batches.put_back(taken)
                return False
        return True

    def _put_again(self, batch: ProduceBatch, definition: TopicDefinition) -> None:
        try:
            self._batches.replaced(batch, self._upload.put(batch, definition, batch.deadline))
        except KafkaException as error:
            self._batches.not_replaced(batch, error)

    def _upload_expired_again(
        self, attempt: _Attempt, gone: frozenset[str], definition: TopicDefinition
    ) -> None:
        """Upload files again that may have been removed as orphans, for instance while the process
        was suspended.
        """
        metrics.EXPIRED_UPLOADS.add(len(gone), topic=self._topic.name)
        _log.warning(
            "uploading files again that waited too long for their commit topic=%r", self._topic.name
        )
        for batch in attempt.taken:
            if any(segment.path in gone for segment in batch.segments):
                self._batches.upload_again(batch)
                segments = self._upload.put(batch, definition, attempt.deadline)
                self._batches.replaced(batch, segments)

    def not_appended(self, taken: list[ProduceBatch], error: KafkaException) -> None:
        """Put back batches that still have time, and fail the rest."""
        with self._batches.lock:
            if not taken and (front := self._batches.front()) is not None:
                # The append failed before it took a batch: the topic does not exist any more.
                self._batches.waiting.popleft()
                taken.append(front)
        now = self._clock.monotonic()
        may_retry = isinstance(error, Unavailable) and error.error.retriable()
        again = [batch for batch in taken if may_retry and batch.deadline > now]
        for batch in again:
            batch.attempt = CommitAttempt(None, batch.attempt.until if batch.attempt else 0.0)
        self._fail([batch for batch in taken if batch not in again], error)
        with self._batches.lock:
            self._batches.put_back(again)

    def _fail(self, batches: Sequence[ProduceBatch], error: KafkaException | None = None) -> None:
        """Report batches as failed. Shared files are revoked first; if that fails, their outcome is
        unknown. `error` applies to all batches; None if each has its own `failure`.
        """
        # No writer commits to a deleted topic, so nothing has to be revoked.
        shared = [
            batch for batch in batches if batch.is_shared and not isinstance(error, UnknownTopic)
        ]
        outcome = self._revoked(shared) if shared else None
        for batch in batches:
            own = batch.state.failure if isinstance(batch.state, UploadFailed) else None
            reason = error or own or KafkaException(KafkaError(KafkaError._FAIL))
            if batch not in shared:
                self._reports.failed(batch.parts, reason)
            elif outcome is None or batch.segments[0].path in outcome.unknown:
                self._reports.failed(batch.parts, self._unknown(batch, reason))
            elif batch.segments[0].path in outcome.committed:
                self._reports.delivered([batch], tuple(outcome.committed.values()))
            else:
                self._reports.failed(batch.parts, _certain(reason))
        with self._batches.lock:
            self._batches.finished(batches)

    def _revoked(self, shared: Sequence[ProduceBatch]) -> CommittedByPeer | None:
        """Revoke shared files; which of them peers have committed, or None if they cannot be
        revoked now.
        """
        segments = [segment for batch in shared for segment in batch.segments]
        try:
            with self._topic.log.known.turn:
                outcome = self._topic.log.revoke(segments, self._clock.monotonic() + REVOKE_S)
            metrics.REVOCATIONS.add(
                topic=self._topic.name, outcome="committed" if outcome.committed else "revoked"
            )
            return outcome
        except KafkaException as error:
            _log.warning(
                "cannot revoke %d shared files topic=%r: %s", len(segments), self._topic.name, error
            )
        except Exception as error:  # noqa: BLE001 - a defect must not turn an unknown outcome into a known one
            defect(error, "revoking", self._topic.name)
        return None

    def _unknown(self, batch: ProduceBatch, error: KafkaException) -> OutcomeUnknown:
        """The error for records that a peer may still commit."""
        metrics.UNKNOWN_OUTCOMES.add(topic=self._topic.name)
        return OutcomeUnknown(
            _reason(error), token=self._topic.log.shared_file_token(batch.segments[0]) or ""
        )


def _is_small(batch: ProduceBatch, topic_id: str) -> bool:
    """Whether a batch can be uploaded again as a shared file, and is worth it."""
    match batch.state:
        case Uploaded(topic_id=uploaded_for, segments=(segment,), is_late=False):
            return uploaded_for == topic_id and segment.size <= RESHARE_BYTES_MAX
    return False


def _certain(error: KafkaException) -> KafkaException:
    """`error` for a file that is certainly not in the log: an unknown outcome becomes a
    time-out.
    """
    if isinstance(error, OutcomeUnknown):
        return KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT, _reason(error), retriable=True))
    return error


def _reason(error: KafkaException) -> str:
    return str(error.error.str()).partition(" (token ")[0]

"""Requests to commit offsets: each is one entry of the group's log, and its result is reported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from deltaq.clock import Clock
from deltaq.errors import KafkaError, KafkaException, UnknownTopic
from deltaq.groups.fencing import Claim
from deltaq.groups.log import GroupLog
from deltaq.groups.offsets import CommittedOffset, ToCommit
from deltaq.groups.pending import PendingOffsets
from deltaq.groups.state import GroupHead
from deltaq.groups.stored_offsets import OnResult, StoredOffsets
from deltaq.message import TopicPartition

_log = logging.getLogger("deltaq.groups")

HandOver: TypeAlias = "Callable[[GroupHead, Claim], GroupHead | None]"
"""A change of the membership on behalf of a member; None if nothing is left to do."""

COMMIT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """Offsets to commit on behalf of a member, or of a consumer that uses `assign`: then `claim` is
    None. `wait` is that of `GroupLog.commit`.
    """

    offsets: Sequence[ToCommit]
    claim: Claim | None
    wait: bool = False


@dataclass(frozen=True, slots=True)
class CommitRequestSender:
    """Sends the requests of one consumer. One at a time: the offset committer decides on their
    order.

    `topic(name)` returns a topic's id and number of partitions, or None if it does not exist.
    """

    _log: GroupLog
    _topic: Callable[[str], tuple[str, int] | None]
    _on_result: OnResult
    _stored: StoredOffsets
    _clock: Clock

    def send(self, request: CommitRequest) -> list[TopicPartition]:
        """Commit, and return the partitions, each with its `error` set if its topic or partition
        does not exist. Raises UnknownTopic if none of them exists, Fenced, Unavailable,
        OutcomeUnknown.
        """
        results, located = self._located(request.offsets)
        self._log.commit(request.claim, located, self._deadline(), wait=request.wait)
        self._stored.note_committed(request.offsets, located)
        return results

    def send_and_report(self, request: CommitRequest) -> None:
        """Commit, and report the result. Raises nothing but the exception of a bug or of a signal
        handler.
        """
        try:
            self._report(request.offsets, lambda: self.send(request))
        except KafkaException:
            pass  # reported

    def hand_over(
        self, operation: str, plan: HandOver, claim: Claim, offsets: Sequence[ToCommit]
    ) -> None:
        """Change the membership, commit these offsets in the same entry, and report their result.
        Raises what `GroupLog.change` raises.
        """

        def change() -> list[TopicPartition]:
            results, located = self._located(offsets) if offsets else ([], [])
            self._log.change(
                operation, claim, lambda head: plan(head, claim), self._deadline(), located
            )
            self._stored.note_committed(offsets, located)
            return results

        self._report(offsets, change)

    def send_pending(
        self, claim: Claim, pending: Sequence[PendingOffsets], timeout_s: float
    ) -> None:
        """Commit what heartbeats show, as the leader that `claim` names. An error is only logged:
        the next heartbeats show the offsets again.
        """
        try:
            self._log.commit_pending(claim, pending, self._clock.monotonic() + timeout_s)
        except KafkaException as error:
            _log.info("offsets of members not committed group=%r reason=%s", self._log.group, error)
        except Exception:  # noqa: BLE001 - a bug must not end the committer's thread
            _log.exception("committing offsets of members failed group=%r", self._log.group)

    def _located(
        self, offsets: Sequence[ToCommit]
    ) -> tuple[list[TopicPartition], list[CommittedOffset]]:
        """The results of a commit, and the offsets of the topics that exist. Raises UnknownTopic if
        none does.
        """
        results, known = [], []
        failure: UnknownTopic | None = None
        for entry in offsets:
            wanted = entry.wanted
            result = TopicPartition(wanted.topic, wanted.partition, wanted.offset, wanted.metadata)
            results.append(result)
            try:
                topic_id = entry.topic_id or self._id_now(wanted)
            except UnknownTopic as error:
                failure, result.error = error, error.error
            else:
                known.append(entry.located(topic_id))
        if failure is not None and not known:
            raise failure
        return results, known

    def _id_now(self, wanted: TopicPartition) -> str:
        found = self._topic(wanted.topic)
        if found is None:
            raise UnknownTopic(wanted.topic)
        topic_id, partitions = found
        if not 0 <= wanted.partition < partitions:
            raise UnknownTopic(wanted.topic, partition=wanted.partition)
        return topic_id

    def _report(
        self, offsets: Sequence[ToCommit], commit: Callable[[], list[TopicPartition]]
    ) -> None:
        """Report the result of a commit to `on_result`, also if it raises."""
        try:
            results = commit()
            if offsets:
                self._on_result(None, results)
        except KafkaException as error:
            failed = [entry.wanted for entry in offsets]
            for partition in failed:
                partition.error = error.error
            if failed:
                self._on_result(error.error, failed)
            raise
        except Exception as error:  # a bug, or an exception of a signal handler
            _log.exception("committing offsets failed group=%r", self._log.group)
            self._on_result(
                KafkaError(KafkaError._FAIL, f"unexpected {type(error).__name__}: {error}"), []
            )
            raise

    def _deadline(self) -> float:
        return self._clock.monotonic() + COMMIT_TIMEOUT_S

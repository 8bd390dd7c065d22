"""Publication: one entry in each topic and group of a decided transaction makes it visible there.

Each entry is idempotent. In a topic it has a `txn` action with the version of the decision; in a
group it ends the pending offsets, in a share group the pending acknowledgements. So any process may
publish, and several at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from deltaq.clock import Clock
from deltaq.delta.actions import Txn
from deltaq.errors import UnknownTopic
from deltaq.groups.log import GroupLog
from deltaq.share_groups.log import ShareLog
from deltaq.store import Store
from deltaq.store.parallel import in_parallel_if_remote
from deltaq.topics.log import TopicLog
from deltaq.topics.state import PendingSegment
from deltaq.topics.view import known_topic
from deltaq.transactions.log import TransactionLog
from deltaq.transactions.state import Decision, StagedRecords

_log = logging.getLogger("deltaq.transactions")


@dataclass(eq=False)
class Publisher:
    """Publishes the newest decision of one `transactional.id`. `topic_log(topic)`,
    `group_log(group)` and `share_log(group)` are positions of the caller in the logs to write.
    """

    _log: TransactionLog
    _store: Store
    _clock: Clock
    topic_log: Callable[[str], TopicLog]
    group_log: Callable[[str], GroupLog]
    share_log: Callable[[str], ShareLog]

    @classmethod
    def of(cls, log: TransactionLog, store: Store, clock: Clock, client_id: str = "") -> Publisher:
        """A publisher with positions of its own."""
        return cls(
            log,
            store,
            clock,
            lambda topic: TopicLog(
                store, topic, clock, client_id=client_id, known=known_topic(store, topic, clock)
            ),
            lambda group: GroupLog(store, group, clock, client_id),
            lambda group: ShareLog(store, group, clock, client_id),
        )

    def publish(self, decision: Decision, deadline: float) -> None:
        """Write what is not written yet. Raises what `DeltaLog.commit` raises; may be repeated."""
        # Else a power failure could undo the decision, and leave half of it published.
        self._log.sync(decision)
        parts = [
            *(partial(self._append, staged, decision, deadline) for staged in decision.topics),
            *(
                partial(log.resolve, decision.key, deadline, is_committed=True)
                for log in map(self.group_log, decision.groups)
            ),
            *(
                partial(log.resolve_transaction, decision.key, deadline, is_committed=True)
                for log in map(self.share_log, decision.share_groups)
            ),
        ]
        in_parallel_if_remote(self._store, self._clock, lambda publish: publish(), parts)

    def missing(self, decision: Decision) -> list[str]:
        """The topics and groups in which the newest decision is not published. Raises what
        `TopicLog.load` raises.
        """
        pending = [group for group in decision.groups if self._is_pending(group, decision)]
        pending += [
            group
            for group in decision.share_groups
            if decision.key in self.share_log(group).pending()
        ]
        return [
            *(staged.topic for staged in decision.topics if self._lacks(staged, decision)),
            *(f"group {group}" for group in pending),
        ]

    def _is_pending(self, group: str, decision: Decision) -> bool:
        return any(of.transaction == decision.key for of in self.group_log(group).pending())

    def _lacks(self, staged: StagedRecords, decision: Decision) -> bool:
        log = self.topic_log(staged.topic)
        with log.known.turn:
            log.catch_up()
            app_id, version = decision.published_as
            done = log.state.txns.get(f"{app_id}/{staged.topic_id}")
            # The records of a topic that was deleted are gone.
            return _is_of(log, staged.topic_id) and (done is None or done.version < version)

    def _append(self, staged: StagedRecords, decision: Decision, deadline: float) -> None:
        tries = 0

        def take() -> tuple[PendingSegment, ...] | None:
            nonlocal tries
            tries += 1
            # A process that was suspended after the decision may find that others have published
            # it, and that the topic has forgotten the transaction since.
            return staged.segments if tries == 1 or self._is_newest(decision) else None

        log = self.topic_log(staged.topic)
        txn = Txn(*decision.published_as, self._clock.time_ms())
        with log.known.turn:
            # What this position has read may be of an earlier topic of this name.
            if not _is_of(log, staged.topic_id):
                log.catch_up()
            if _is_of(log, staged.topic_id):
                # UnknownTopic: it is deleted at this moment.
                with suppress(UnknownTopic):
                    log.append(take, staged.topic_id, deadline, txn, is_decided=True)
                    return
        # The topic was deleted since the records were staged, and these with it.
        _log.warning(
            "a transaction has records of a topic that was deleted topic=%r transactional.id=%r",
            staged.topic,
            decision.key.transactional_id,
        )

    def _is_newest(self, decision: Decision) -> bool:
        head = self._log.head()
        return head is not None and head.has_committed(decision.key)


def _is_of(log: TopicLog, topic_id: str) -> bool:
    return log.head is not None and log.head.topic_id == topic_id

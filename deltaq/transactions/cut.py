"""A cut: offsets of several topics, none of which splits a transaction.

Between the decision of a transaction and its publication, one of its topics may be ahead of
another. A cut is found by reading on: where one topic shows a transaction, each other one is read
up to the entry that shows it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from deltaq.clock import SYSTEM_CLOCK, Clock, checked_timeout
from deltaq.config import AdminConfig, parse_client_config
from deltaq.delta.actions import Txn
from deltaq.delta.position import LogCleaned
from deltaq.errors import Corrupt, Incompatible, Unavailable, UnknownTopic
from deltaq.names import check_topic, decoded_id
from deltaq.root import open_root
from deltaq.store import Store
from deltaq.store.parallel import in_parallel_if_remote
from deltaq.topics.log import TopicLog
from deltaq.topics.view import known_topic
from deltaq.transactions.log import TransactionLog
from deltaq.transactions.publication import Publisher
from deltaq.transactions.state import transactional_id_of


def cut(
    topics: Sequence[str],
    conf: Mapping[str, Any] | None = None,
    *,
    store: Store | None = None,
    clock: Clock = SYSTEM_CLOCK,
    timeout: float = 60.0,
) -> dict[str, dict[int, int]]:
    """The newest offsets of these topics that split no transaction: by topic and partition the
    offset after the last record, as `Topic.to_arrow` takes it for `end`.

    A transaction that is decided and not published in one of them is published. `conf` is that of a
    client, of which `bootstrap.servers` names the root; `store` replaces it. Raises UnknownTopic,
    and Unavailable after `timeout` seconds or while the store does not answer.
    """
    if store is None:
        store = open_root(parse_client_config(AdminConfig, conf, {}), clock)
    deadline = clock.monotonic() + checked_timeout(timeout)
    names = [check_topic(topic) for topic in dict.fromkeys(topics)]
    while True:
        try:
            ends = [_End.of(store, topic, clock) for topic in names]
            return _read_on(store, ends, clock, deadline)
        except LogCleaned:
            continue  # a log was cleaned up while it was read


def cut_of_readable(
    store: Store, topics: Iterable[str], clock: Clock, timeout_s: float
) -> dict[str, dict[int, int]]:
    """The cut of those of the topics that exist and can be read. Raises Unavailable, and LogCleaned
    if a log was cleaned up while it was read.
    """
    ends = []
    for topic in topics:
        with suppress(UnknownTopic, Corrupt, Incompatible):
            ends.append(_End.of(store, topic, clock))
    return _read_on(store, ends, clock, clock.monotonic() + timeout_s)


def _read_on(
    store: Store, ends: Sequence[_End], clock: Clock, deadline: float
) -> dict[str, dict[int, int]]:
    while behind := _behind(ends):
        _check_time(clock, deadline)
        in_parallel_if_remote(
            store,
            clock,
            lambda item: _publish(store, *item, clock, deadline),
            tuple(behind.items()),
        )
        for end in ends:
            end.read_to(behind)
    return {end.log.topic: dict(enumerate(end.offsets)) for end in ends}


def _check_time(clock: Clock, deadline: float) -> None:
    if clock.monotonic() >= deadline:
        raise Unavailable(
            "no cut of the topics before the time-out: their transactions follow each other faster "
            "than the topics and the logs of the transactional ids are read"
        )


def _behind(ends: Sequence[_End]) -> dict[str, int]:
    """The newest version of each application that some topic may lack: it shows an older one, or
    none, and was not read since the newest was seen elsewhere.
    """
    newest: dict[str, int] = {}
    for end in ends:
        for app_id, version in end.seen.items():
            newest[app_id] = max(version, newest.get(app_id, -1))
    return {
        app_id: version
        for app_id, version in newest.items()
        if any(max(end.seen.get(app_id, -1), end.checked.get(app_id, -1)) < version for end in ends)
    }


def _publish(store: Store, app_id: str, version: int, clock: Clock, deadline: float) -> None:
    """Publish the decision with this version, unless the id has gone on since: then it is
    published. A log whose folder was removed has none.
    """
    part, _, life = app_id.partition("/")
    # The application of a Spark query may have a slash, too.
    for transactional_id in (decoded_id(part) if life else None, transactional_id_of(app_id)):
        if transactional_id is None:
            continue
        _check_time(clock, deadline)
        log = TransactionLog(store, transactional_id, clock)
        head = log.head()
        decision = None if head is None else head.decision
        if decision is not None and decision.published_as == (app_id, version):
            Publisher.of(log, store, clock).publish(decision, deadline)
            return


@dataclass(slots=True, eq=False)
class _End:
    """How far a topic belongs to the cut. `seen` are the newest versions of applications there, and
    `checked` up to which of them the topic was read.
    """

    log: TopicLog
    offsets: tuple[int, ...]
    seen: dict[str, int]
    checked: dict[str, int] = field(default_factory=dict)
    _ahead: list[tuple[dict[str, int], tuple[int, ...]]] = field(default_factory=list)

    @classmethod
    def of(cls, store: Store, topic: str, clock: Clock) -> _End:
        log = TopicLog(store, topic, clock, known=known_topic(store, topic, clock))
        log.catch_up()
        if log.head is None:
            raise UnknownTopic(topic)
        txns = log.state.txns.values()
        return cls(log, log.head.next_offsets, dict(_applications(txns, log.head.topic_id)))

    def read_to(self, wanted: Mapping[str, int]) -> None:
        """Add the entries up to the last one that publishes one of these transactions."""
        while (entry := self.log.read_next()) is not None:
            head = self.log.head
            if head is None:
                raise UnknownTopic(self.log.topic)
            txns = (action for action in entry.actions if isinstance(action, Txn))
            self._ahead.append((dict(_applications(txns, head.topic_id)), head.next_offsets))
        needed = [
            number
            for number, (found, _) in enumerate(self._ahead, 1)
            if any(version <= wanted.get(app_id, -1) for app_id, version in found.items())
        ]
        for found, offsets in self._ahead[: max(needed, default=0)]:
            self.seen |= found
            self.offsets = offsets
        del self._ahead[: max(needed, default=0)]
        self.checked |= wanted


def _applications(txns: Iterable[Txn], topic_id: str) -> Iterator[tuple[str, int]]:
    """The `appId` of each transactional id or query, without the topic's, and its version."""
    for txn in txns:
        app_id, _, of_topic = txn.app_id.rpartition("/")
        if of_topic == topic_id:
            yield app_id, txn.version

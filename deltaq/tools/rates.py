"""Rates of topics and the lag of groups, from two looks at a root."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaq.admin.group_calls import GroupCalls
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.errors import KafkaException, UnknownTopic
from deltaq.metadata import topic_names
from deltaq.store import Store
from deltaq.store.parallel import in_parallel
from deltaq.topics.log import TopicLog


@dataclass(frozen=True, slots=True)
class TopicCount:
    """A topic at one time: offsets that it holds, offsets and entries that it ever had."""

    messages: int
    produced: int
    version: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class RootSample:
    """All topics of a root, and the lag of its groups, at one time of `Clock.monotonic`. `errors` are those of topics
    and groups that cannot be read, by name."""

    at_s: float
    topics: Mapping[str, TopicCount]
    lags: Mapping[str, int]
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicRate:
    """Messages and commits per second of a topic between two samples; None where there is only one."""

    topic: str
    messages: int
    messages_per_s: float | None
    commits_per_s: float | None


def topic_rates(before: RootSample | None, now: RootSample) -> list[TopicRate]:
    """The rates of all topics, the busiest first. A topic that was created again begins anew."""
    rates = []
    for topic, count in now.topics.items():
        earlier = None if before is None else before.topics.get(topic)
        if before is None or earlier is None or earlier.topic_id != count.topic_id or now.at_s <= before.at_s:
            rates.append(TopicRate(topic, count.messages, None, None))
            continue
        seconds = now.at_s - before.at_s
        produced, commits = count.produced - earlier.produced, count.version - earlier.version
        rates.append(TopicRate(topic, count.messages, produced / seconds, commits / seconds))
    return sorted(rates, key=lambda rate: (-(rate.messages_per_s or 0), rate.topic))


class RootWatch:
    """Looks at a root again and again: a look reads only what is new in the logs of topics. Not thread-safe."""

    def __init__(self, store: Store, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._clock = clock
        self._logs: dict[str, TopicLog] = {}
        self._groups = GroupCalls(store, clock, "deltaq-top")

    def sample(self) -> RootSample:
        """Look at all topics and groups. Raises Unavailable if the root cannot be listed."""
        there = topic_names(self._store)
        for gone in self._logs.keys() - set(there):
            del self._logs[gone]
        answers = dict(zip(there, in_parallel(self._clock, self._count, there), strict=True))
        topics = {name: answer for name, answer in answers.items() if isinstance(answer, TopicCount)}
        errors = {
            name: answer.error.str()
            for name, answer in answers.items()
            if isinstance(answer, KafkaException) and not isinstance(answer, UnknownTopic)
        }
        listed = self._groups.list_groups(None, None)
        lags = {}
        for listing in listed.valid:
            try:
                lags[listing.group_id] = self._groups.lag(listing.group_id).lag
            except KafkaException as error:
                errors[f"group {listing.group_id}"] = error.error.str()
        return RootSample(self._clock.monotonic(), topics, lags, errors)

    def _count(self, topic: str) -> TopicCount | KafkaException:
        try:
            log = self._logs.get(topic) or TopicLog(self._store, topic, self._clock)
            log.catch_up()
            self._logs[topic] = log
            head = log.live_head
        except KafkaException as error:
            return error
        produced = sum(head.next_offsets)
        return TopicCount(produced - sum(head.start_offsets), produced, log.version, head.topic_id)

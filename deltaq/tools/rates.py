"""Rates of topics and the lag of groups, from two looks at a root."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from deltaq.admin.group_calls import GroupCalls
from deltaq.admin.groups import (
    ConsumerGroupDescription,
    ConsumerGroupLag,
    ConsumerGroupState,
    description,
)
from deltaq.admin.share_groups import ShareGroupDescription, share_description, unfinished
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.config import TopicSettings
from deltaq.delta.table_state import TableState
from deltaq.errors import Corrupt, KafkaException, UnknownTopic
from deltaq.groups.log import GroupLog
from deltaq.groups.state import GroupHead
from deltaq.maintenance.file_compaction import count_waiting
from deltaq.maintenance.settings import DEFAULT_SETTINGS
from deltaq.metadata import node_of
from deltaq.share_groups.log import ShareGroup, process_of
from deltaq.store import Store
from deltaq.store.parallel import in_parallel_if_remote
from deltaq.tools.cost import Cost, GroupLoad, ShareGroupLoad, TopicLoad, estimate
from deltaq.topics.listing import topic_names
from deltaq.topics.log import TopicLog
from deltaq.topics.metadata import definition_of
from deltaq.topics.state import TopicHead
from deltaq.topics.time_lookup import times_from

GroupRead: TypeAlias = tuple[TableState, GroupHead] | ShareGroup | KafkaException
"""A consumer group as its table and head, a share group, or why it cannot be read."""

FirstTimes: TypeAlias = dict[tuple[str, int, int], int | None]
"""The timestamps in ms of first records, by topic id, partition and offset."""


@dataclass(frozen=True, slots=True)
class TopicCount:
    """A topic at one time: offsets that it holds, offsets and entries that it ever had.

    The rest is known only to a watch with `sizes`: start and end of each partition, data files and
    their bytes, how many files wait for compaction, and the settings.
    """

    messages: int
    produced: int
    version: int
    topic_id: str
    ranges: tuple[tuple[int, int], ...] = ()
    files: int = 0
    bytes: int = 0
    files_to_compact: int = 0
    settings: TopicSettings | None = None
    is_typed: bool = False


@dataclass(frozen=True, slots=True)
class GroupCount:
    """A group at one time: entries that its log ever had, lag by partition, and its members."""

    version: int
    lag: ConsumerGroupLag
    about: ConsumerGroupDescription


@dataclass(frozen=True, slots=True)
class QueueCount:
    """A share group at one time: entries that its log ever had, and its state."""

    version: int
    about: ShareGroupDescription


@dataclass(frozen=True, slots=True)
class RootSample:
    """All topics, consumer groups and share groups of a root at one time of `Clock.monotonic`.
    `errors` are those of topics and groups that cannot be read, by name.
    """

    at_s: float
    topics: Mapping[str, TopicCount]
    groups: Mapping[str, GroupCount]
    errors: Mapping[str, str] = field(default_factory=dict)
    queues: Mapping[str, QueueCount] = field(default_factory=dict)

    @property
    def lags(self) -> dict[str, int | None]:
        """The total lag of each group; None where it is not known."""
        return {group: count.lag.lag for group, count in self.groups.items()}


@dataclass(frozen=True, slots=True)
class TopicRate:
    """Messages and commits per second of a topic between two samples; None where there is only
    one.
    """

    topic: str
    messages: int
    messages_per_s: float | None
    commits_per_s: float | None


def topic_rates(before: RootSample | None, now: RootSample) -> list[TopicRate]:
    """The rates of all topics, the busiest first. A topic that was created again begins anew."""
    rates = []
    for topic, count in now.topics.items():
        earlier = None if before is None else before.topics.get(topic)
        if (
            before is None
            or earlier is None
            or earlier.topic_id != count.topic_id
            or now.at_s <= before.at_s
        ):
            rates.append(TopicRate(topic, count.messages, None, None))
            continue
        seconds = now.at_s - before.at_s
        produced, commits = count.produced - earlier.produced, count.version - earlier.version
        rates.append(TopicRate(topic, count.messages, produced / seconds, commits / seconds))
    return sorted(rates, key=lambda rate: (-(rate.messages_per_s or 0), rate.topic))


def measured_cost(
    before: RootSample | None, now: RootSample, topics: Collection[str] | None = None
) -> Cost:
    """What a root would cost on an object store at the rates between two samples with sizes; 0
    requests for one alone.

    With `topics`, only these count, with the groups that read them. Workers of share groups are
    counted that hold records in one of the samples, and the processes in which they run. Raises
    UnknownTopic for a topic that is missing.
    """
    for name in topics or ():
        if name not in now.topics:
            raise UnknownTopic(name)
    rates = {
        rate.topic: rate for rate in topic_rates(before, now) if not topics or rate.topic in topics
    }
    readers, groups = dict.fromkeys(rates, 0), []
    for name, count in now.groups.items():
        reads = {partition.topic for partition in count.lag.partitions} & rates.keys()
        for topic in reads:
            readers[topic] += len(count.about.members)
        if reads or not topics:
            earlier = None if before is None else before.groups.get(name)
            commits = _entries_per_s(before, earlier, now, count)
            groups.append(GroupLoad(len(count.about.members), commits))
    queues = []
    for name, queue in now.queues.items():
        reads = {partition.topic for partition in queue.about.partitions} & rates.keys()
        if reads or not topics:
            previous = None if before is None else before.queues.get(name)
            entries = _entries_per_s(before, previous, now, queue)
            seen = {
                member.member_id
                for each in (previous, queue)
                if each is not None
                for member in each.about.members
            }
            commits = sum(rates[topic].commits_per_s or 0.0 for topic in reads)
            workers = len(seen) or int(entries > 0)
            processes = len(set(map(process_of, seen))) or workers
            queues.append(ShareGroupLoad(workers, entries, commits, processes))
    loads = [
        TopicLoad(rate.commits_per_s or 0.0, readers[name], now.topics[name].bytes)
        for name, rate in rates.items()
    ]
    return estimate(loads, groups, queues)


def _entries_per_s(
    before: RootSample | None,
    earlier: GroupCount | QueueCount | None,
    now: RootSample,
    count: GroupCount | QueueCount,
) -> float:
    """Entries a second of the log of a group between two samples; 0 if it is in one only."""
    if before is None or earlier is None or now.at_s <= before.at_s:
        return 0.0
    return max(0.0, (count.version - earlier.version) / (now.at_s - before.at_s))


class RootWatch:
    """Looks at a root again and again: a look reads only what is new in the logs of topics and
    groups.

    With `sizes`, it also counts files, for which it keeps an index of each topic, and reads how old
    the first record is that a share group has not finished. Not thread-safe.
    """

    def __init__(self, store: Store, clock: Clock = SYSTEM_CLOCK, *, sizes: bool = False) -> None:
        self._store = store
        self._clock = clock
        self._has_sizes = sizes
        self._logs: dict[str, TopicLog] = {}
        self._counts: dict[str, TopicCount] = {}
        self._groups = _WatchedGroups(store, clock, "deltaq-top")
        self._times_ms: FirstTimes = {}

    def sample(self) -> RootSample:
        """Look at all topics and groups. Raises Unavailable if the root cannot be listed."""
        # Before the topics: a committed offset is not above the end that is read later.
        groups = self._groups.read_all()
        there = topic_names(self._store)
        for gone in self._logs.keys() - set(there):
            del self._logs[gone]
            self._counts.pop(gone, None)
        found = dict(
            zip(
                there,
                in_parallel_if_remote(self._store, self._clock, self._count, there),
                strict=True,
            )
        )
        topics = {name: answer for name, answer in found.items() if isinstance(answer, TopicCount)}
        errors = {
            name: answer.error.str()
            for name, answer in found.items()
            if isinstance(answer, KafkaException) and not isinstance(answer, UnknownTopic)
        }
        heads = {name: self._logs[name].live_head for name in topics}
        counts, failures = self._groups.counted(groups, heads)
        before, self._times_ms = self._times_ms, {}
        queues = {}
        for name, group in groups.items():
            if isinstance(group, ShareGroup):
                try:
                    about = self._described(name, group, heads, before)
                    queues[name] = QueueCount(group.table.version, about)
                except KafkaException as error:  # its state is damaged
                    failures[f"group {name}"] = error.error.str()
        return RootSample(self._clock.monotonic(), topics, counts, errors | failures, queues)

    def _described(
        self, name: str, group: ShareGroup, heads: Mapping[str, TopicHead], before: FirstTimes
    ) -> ShareGroupDescription:
        """A share group. Times that are in those of the look before are not read again. Raises
        Corrupt, Unavailable.
        """
        times_ms: dict[tuple[str, int], int | None] = {}
        for topic, first in unfinished(group, heads).items() if self._has_sizes else ():
            for partition, offset in first:
                key = heads[topic].topic_id, partition, offset
                known = before[key] if key in before else self._time_from(topic, partition, offset)
                times_ms[topic, partition] = self._times_ms[key] = known
        return share_description(name, group, heads, times_ms, self._clock.time_ms())

    def _time_from(self, topic: str, partition: int, offset: int) -> int | None:
        asked = [(partition, offset)]
        try:
            return times_from(self._store, self._logs[topic], asked, self._clock)[0]
        except (Corrupt, UnknownTopic):
            return None

    def _count(self, topic: str) -> TopicCount | KafkaException:
        try:
            log = self._logs.get(topic) or TopicLog(
                self._store, topic, self._clock, indexed=self._has_sizes
            )
            log.catch_up()
            self._logs[topic] = log
            head = log.live_head
            before = self._counts.get(topic)
            if before is None or (before.topic_id, before.version) != (head.topic_id, log.version):
                before = self._counts[topic] = _counted(log, head, has_sizes=self._has_sizes)
        except KafkaException as error:
            return error
        return before


def _counted(log: TopicLog, head: TopicHead, *, has_sizes: bool) -> TopicCount:
    produced = sum(head.next_offsets)
    count = TopicCount(produced - sum(head.start_offsets), produced, log.version, head.topic_id)
    if not has_sizes:
        return count
    definition, files = definition_of(log), log.index.files
    return replace(
        count,
        ranges=tuple(zip(head.start_offsets, head.next_offsets, strict=True)),
        files=len(files),
        bytes=sum(file.segment.size for file in files.values()),
        files_to_compact=count_waiting(
            log.index, definition.settings.segment_bytes, DEFAULT_SETTINGS
        ),
        settings=definition.settings,
        is_typed=definition.schema is not None,
    )


@dataclass(frozen=True)
class _WatchedGroups(GroupCalls):
    """Group calls that read only what is new in the logs of groups, and take the heads of topics
    from a watch.
    """

    logs: dict[str, GroupLog] = field(default_factory=dict)
    heads: dict[str, TopicHead] = field(default_factory=dict)

    def log(self, group: str) -> GroupLog:
        found = self.logs.get(group)
        return found or self.logs.setdefault(group, super().log(group))

    def topic_heads(self, topics: Iterable[str]) -> dict[str, TopicHead]:
        return {topic: self.heads[topic] for topic in topics if topic in self.heads}

    def read_all(self) -> dict[str, GroupRead]:
        """What each group is, or why it cannot be read. Raises Unavailable."""

        def read(group: str) -> GroupRead:
            try:
                return self.find_share_group(group) or self.read(group)
            except KafkaException as error:
                return error

        there = self.names()
        for gone in self.logs.keys() - set(there):
            del self.logs[gone]
        found = in_parallel_if_remote(self.store, self.clock, read, there)
        return dict(zip(there, found, strict=True))

    def counted(
        self,
        groups: Mapping[str, GroupRead],
        heads: Mapping[str, TopicHead],
    ) -> tuple[dict[str, GroupCount], dict[str, str]]:
        """What `read_all` has found of the consumer groups that exist, with the heads of the
        topics; and errors by name.
        """
        self.heads.clear()
        self.heads.update(heads)
        counts, errors = {}, {}
        for group, found in groups.items():
            if isinstance(found, KafkaException):
                errors[f"group {group}"] = found.error.str()
                continue
            if isinstance(found, ShareGroup):
                continue
            state, head = found
            about = description(group, state, head, node_of(self.store))
            if about.state is ConsumerGroupState.DEAD:
                continue
            try:
                counts[group] = GroupCount(state.version, self.lag_at(group, state, head), about)
            except KafkaException as error:  # its committed offsets are damaged
                errors[f"group {group}"] = error.error.str()
        return counts, errors

"""What topics, groups and queues cost on an object store, estimated from their rates. Pure.

The number of requests follows from how clients work. The benchmark `s3-model` counts the requests
of clients on a modelled store; the constants here that do not follow from the protocol are those of
its results.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from deltaq.tools.prices import DAY_S, REQUEST_KINDS, S3_STANDARD, PriceList

PUTS_PER_COMMIT = 2
"""A data file and the log entry that names it."""

GETS_PER_COMMIT = 2
"""Of each reader: the log entry and the data file."""

IDLE_POLLS_PER_S = 2.0
"""Requests for the next log entry of a reader that waits, on an object store."""

HOUSEKEEPING_PER_S = {"GET": 2.5, "LIST": 0.6, "DELETE": 0.1}
"""Measured for a topic that is written: maintenance beside the writer, and its looks at the log."""

COMMITS_PER_S_MAX = 7.0
"""Measured: commits of one producer on a modelled S3 Standard, where a PUT takes 65 ms, however
short its linger.
"""

SHARED_COMMITS_PER_S_MAX = 10.0
"""The same, of eight producers of one topic together."""

HEARTBEATS_PER_S = 1 / 3
"""Of a member of a group: one PUT each `heartbeat.interval.ms`, 3,000 by default."""

GROUP_POLLS_PER_S = 1.0
"""Requests of a member for the next entry of its group's log."""


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """A topic: commits a second of all producers together, consumers that read all of it, and bytes
    kept.
    """

    commits_per_s: float
    readers: float = 1.0
    bytes_kept: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupLoad:
    """A group: its members, and commits to its log a second."""

    members: int
    commits_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ShareGroupLoad:
    """A share group: its workers, entries of its log a second of all together, commits a second of
    the topics that it reads, and the processes in which the workers run; None if each has one of
    its own. Workers of a process read an entry once.
    """

    workers: int
    entries_per_s: float = 0.0
    topic_commits_per_s: float = 0.0
    processes: int | None = None


@dataclass(frozen=True, slots=True)
class Cost:
    """Requests a second by kind and bytes kept, with dollars a day by a price list."""

    requests_per_s: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(REQUEST_KINDS, 0.0)
    )
    bytes_kept: float = 0.0
    prices: PriceList = S3_STANDARD

    @property
    def request_dollars(self) -> float:
        """Dollars a day for requests."""
        return self.prices.dollars_for_requests(self.requests_per_s)

    @property
    def storage_dollars(self) -> float:
        """Dollars a day for what is kept."""
        return self.prices.dollars_for_bytes(self.bytes_kept)

    @property
    def dollars(self) -> float:
        """Dollars a day."""
        return self.request_dollars + self.storage_dollars

    def dollars_by_kind(self) -> dict[str, float]:
        """Dollars a day for each kind of request."""
        return {
            kind: self.prices.dollars_for_requests({kind: rate})
            for kind, rate in self.requests_per_s.items()
        }


def estimate(
    topics: Iterable[TopicLoad],
    groups: Iterable[GroupLoad] = (),
    queues: Iterable[ShareGroupLoad] = (),
    prices: PriceList = S3_STANDARD,
) -> Cost:
    """The cost of topics, consumer groups and share groups (`queues`). A topic without commits
    costs only what it keeps, and the polls of its readers. Workers are no readers of a topic.
    """
    rates = dict.fromkeys(REQUEST_KINDS, 0.0)
    kept = 0.0
    for topic in topics:
        kept += topic.bytes_kept
        rates["PUT"] += PUTS_PER_COMMIT * topic.commits_per_s
        rates["GET"] += topic.readers * (GETS_PER_COMMIT * topic.commits_per_s + IDLE_POLLS_PER_S)
        if topic.commits_per_s:
            for kind, rate in HOUSEKEEPING_PER_S.items():
                rates[kind] += rate
    for group in groups:
        rates["PUT"] += group.members * HEARTBEATS_PER_S + group.commits_per_s
        rates["GET"] += group.members * (GROUP_POLLS_PER_S + group.commits_per_s)
    for queue in queues:
        entries, commits = queue.entries_per_s, queue.topic_commits_per_s
        processes = queue.workers if queue.processes is None else queue.processes
        rates["PUT"] += entries
        # Each worker looks at the ends of both logs, also before it writes an entry. Each process
        # reads what is new there, but the entries of its own. Each data file is read once; an
        # entry takes the records of at least one.
        others, files = max(0, processes - 1), max(commits, entries)
        rates["GET"] += queue.workers * 2 * IDLE_POLLS_PER_S + entries + files
        rates["GET"] += processes * commits + others * entries
    return Cost(rates, kept, prices)


def load_of(
    messages_per_s: float,
    message_bytes: float,
    *,
    linger_ms: float = 5.0,
    producers: int = 1,
    consumers: int = 1,
    retention_days: float = 7.0,
    compression: float = 1.0,
) -> TopicLoad:
    """A topic that is to be written at a steady rate.

    A producer commits at most once per `linger_ms`, and on an object store not before its upload
    and the commit ahead of it are done. Several producers commit for each other. Without more
    messages there are no more commits. `compression` is the size of the files as a fraction of
    the messages' bytes.
    """
    by_linger = 1000 / linger_ms if linger_ms > 0 else float("inf")
    most = COMMITS_PER_S_MAX if producers == 1 else SHARED_COMMITS_PER_S_MAX
    commits = min(messages_per_s, producers * by_linger, most)
    kept = messages_per_s * message_bytes * compression * retention_days * DAY_S
    return TopicLoad(commits, consumers, kept)


def queue_load_of(topic: TopicLoad, workers: int, processes: int | None = None) -> ShareGroupLoad:
    """A share group that takes the messages of a topic as they come: an entry for each commit of
    the topic, up to what workers of one group reach together.
    """
    if not workers:
        return ShareGroupLoad(0)
    entries = min(topic.commits_per_s, SHARED_COMMITS_PER_S_MAX)
    at_most = None if processes is None else min(processes, workers)
    return ShareGroupLoad(workers, entries, topic.commits_per_s, at_most)

"""The fetcher: a thread that follows the topics of one consumer and keeps a byte budget of records
ready.

It polls the log of each topic for the next entry; the store's watch only shortens the wait between
polls. The records of a partition are delivered strictly in offset order. Each change of a
partition's position (`assign`, `seek`) starts a new *epoch*; the consumer drops records and events
of an earlier epoch. A pause changes no position, so it starts none; the consumer seeks as well if
it has already accepted records of the partition.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from deltaq import names
from deltaq.clock import Clock, Thread
from deltaq.consumer.fetch_buffer import FetchBuffer
from deltaq.consumer.offset_reset import FetchPosition, OffsetReset, StoredOffsets
from deltaq.consumer.tail import LiveTopic, TopicTail
from deltaq.consumer.topic_fetcher import ReadAhead, TopicFetcher, TopicProgress
from deltaq.groups.state import PartitionCount
from deltaq.message import OFFSET_BEGINNING
from deltaq.store import Store, Watch
from deltaq.topics.follower import topic_reader
from deltaq.topics.lookup import TopicLookup
from deltaq.topics.metadata import NewTopicPlan


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """Kafka's `queued.max.messages.kbytes` (in bytes), `fetch.max.bytes`, `auto.offset.reset`,
    `fetch.wait.max.ms` (in seconds), `enable.partition.eof`; and how to create missing topics, or
    None not to create them.
    """

    bytes_max: int
    read_bytes_max: int
    reset: str
    wait_max_s: float
    report_end: bool
    plan: NewTopicPlan | None = None


class PollTimer:
    """Waits between two reads of the logs: briefly while they are busy, longer each time while they
    are idle.
    """

    def __init__(self, store: Store, watch: Watch, wait_max_s: float, clock: Clock) -> None:
        self._store = store
        self._watch = watch
        self._wait_max_s = wait_max_s
        self._clock = clock
        self._idle_s = store.poll_interval.busy_s
        self._found_at = clock.monotonic()

    def wait(self, found: bool, rested_s: float = 0.0, most_s: float = float("inf")) -> bool:
        """Wait for new entries, `most_s` seconds at most; not at all after a read that `found`
        some. Returns whether the wait was ended early.

        `rested_s`: how long ago other readers of this process read the log. The wait is shorter by
        as much, so that the readers poll together.
        """
        interval, now = self._store.poll_interval, self._clock.monotonic()
        if found:
            self._idle_s, self._found_at = interval.busy_s, now
            return True
        is_steady = now - self._found_at < interval.steady_s
        wait_s = max(interval.busy_s, min(self._idle_s, self._wait_max_s) - rested_s)
        was_woken = self._watch.wait(min(wait_s, most_s))
        # A topic that stays quiet is asked less and less often.
        if not was_woken and not is_steady:
            self._idle_s = min(self._idle_s * 1.5, max(interval.busy_s, interval.idle_s))
        return was_woken


class Fetcher:
    """Fetches for one consumer. Thread-safe; see `FetchBuffer` for `queue`.

    `changes` increases whenever a followed topic is created, deleted or gets more partitions.
    `lookup` has the cache of footers.
    """

    def __init__(
        self,
        store: Store,
        settings: FetchSettings,
        stored_offsets: StoredOffsets,
        clock: Clock,
        name: str,
        lookup: TopicLookup,
    ) -> None:
        self._store = store
        self._settings = settings
        self._stored_offsets = stored_offsets
        self._clock = clock
        self._name = name
        self._lookup = lookup
        self._changed = clock.condition()
        self.queue = FetchBuffer(settings.bytes_max, self._changed)
        self.changes = 0
        self._topics: dict[str, TopicFetcher] = {}
        self._epochs = 0
        self._closed = False
        self._is_running = False
        self._thread: Thread | None = None

    @cached_property
    def _watch(self) -> Watch:
        """Opened with the thread: a consumer that only refuses wrong calls touches no store."""
        return self._store.watch()

    # --- what the consumer calls ---

    def begin(self) -> None:
        """Start the fetch thread unless it is running.

        Call this after the consumer holds a reference to the fetcher: otherwise an interrupted
        start leaves a thread that nothing ends.
        """
        if self._thread is None:
            self._watch.wake()  # opens it, before two threads use it
            self._thread = self._clock.start_thread(self._run, f"deltaq-fetch-{self._name}")

    def follow(self, topics: Iterable[str], may_create: Container[str] = ()) -> None:
        """Follow exactly these topics. The positions of all other topics are dropped.

        A missing topic is created if it is in `may_create` and the settings have a plan.
        """
        with self._changed:
            self._follow(set(topics), may_create)
        self._watch.wake()

    def follow_also(self, topics: Iterable[str]) -> None:
        """Follow these topics, too, until `follow` is called next. Creates none."""
        with self._changed:
            self._follow(self._topics.keys() | set(topics), ())
        self._watch.wake()

    def _follow(self, wanted: set[str], may_create: Container[str]) -> None:
        if wanted == self._topics.keys():
            return
        # First: after an interrupt, a repeated call may find nothing left to do.
        self._count_change()
        for topic in sorted(self._topics.keys() - wanted):
            del self._topics[topic]
        for topic in sorted(wanted - self._topics.keys()):
            self._watch.add(names.topic_log(topic))
            self._topics[topic] = self._topic_fetcher(
                topic, self._settings.plan if topic in may_create else None
            )

    def _topic_fetcher(self, topic: str, plan: NewTopicPlan | None) -> TopicFetcher:
        store, clock, settings = self._store, self._clock, self._settings
        return TopicFetcher(
            TopicTail(topic_reader(store, topic, clock), store, clock),
            OffsetReset(topic, settings.reset, self._stored_offsets, self.queue.put),
            ReadAhead(store, clock, self._lookup.layouts, settings.read_bytes_max),
            self.queue,
            self._changed,
            clock,
            self._count_change,
            plan,
            report_end=settings.report_end,
        )

    def _count_change(self) -> None:
        self.changes += 1
        self.queue.wake()

    def _ask_anew(self, topics: Iterable[TopicFetcher]) -> None:
        """A wait begins, or was ended early: what was read before is old."""
        with self._changed:
            for topic in topics:
                topic.tail.ask_anew()

    def assign(self, positions: Mapping[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Fetch exactly these partitions of followed topics from the given offsets. Returns their
        new epochs.
        """
        with self._changed:
            for followed in self._topics.values():
                followed.positions.clear()
            epochs = {
                (topic, partition): self._set(topic, partition, offset)
                for (topic, partition), offset in positions.items()
            }
        self._watch.wake()
        return epochs

    def seek(self, topic: str, partition: int, offset: int, topic_id: str | None = None) -> int:
        """Continue at `offset`. Returns the partition's new epoch.

        `topic_id` is the topic that the offset is from. If the name now belongs to another topic,
        that topic is read from its beginning.
        """
        with self._changed:
            live = self.seen(topic)
            if topic_id is not None and (live is None or live.head.topic_id != topic_id):
                offset = OFFSET_BEGINNING
            epoch = self._set(topic, partition, offset)
        self._watch.wake()
        return epoch

    def _set(self, topic: str, partition: int, offset: int) -> int:
        self._epochs += 1
        if (followed := self._topics.get(topic)) is not None:
            before = followed.positions.get(partition)
            paused = before is not None and before.paused
            followed.positions[partition] = FetchPosition(offset, self._epochs, paused)
            followed.tail.ask_anew()
        return self._epochs

    def pause(self, topic: str, partition: int, paused: bool) -> None:
        """Stop or start fetching a partition."""
        with self._changed:
            if (
                followed := self._topics.get(topic)
            ) is not None and partition in followed.positions:
                followed.positions[partition].paused = paused
        self._watch.wake()

    def drop(self, topic: str, partition: int) -> None:
        """Stop fetching a partition and forget its position."""
        with self._changed:
            if (followed := self._topics.get(topic)) is not None:
                followed.positions.pop(partition, None)

    def seen(self, topic: str) -> LiveTopic | None:
        """A followed topic as last read by the thread; None if it does not exist or has not been
        read yet.
        """
        with self._changed:
            followed = self._topics.get(topic)
            return None if followed is None else followed.tail.live

    def partition_counts(self) -> dict[str, PartitionCount | None]:
        """The size of every followed topic: 0 partitions for one that does not exist, None before
        it was read.
        """
        with self._changed:
            return {topic: followed.size for topic, followed in self._topics.items()}

    def progress(self) -> dict[str, TopicProgress]:
        """How far fetching has come, by topic. Does no I/O."""
        with self._changed:
            return {topic: followed.progress() for topic, followed in self._topics.items()}

    def close(self) -> None:
        """End the thread and wait for it."""
        thread = self.abandon()
        if thread is not None:
            self._watch.wake()
            thread.join()

    def abandon(self) -> Thread | None:
        """Let the thread end soon, and return it. Does not wake its watch: a finalizer may call
        this in that very thread while it waits there.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        return self._thread

    # --- the thread ---

    def _run(self) -> None:
        with self._changed:
            if self._is_running:
                return  # an interrupted `begin` has already started a thread
            self._is_running = True
        timer = PollTimer(self._store, self._watch, self._settings.wait_max_s, self._clock)
        while not self._closed:
            with self._changed:
                topics = list(self._topics.values())
            found = False
            for topic in topics:
                found = topic.advance() or found
            with self._changed:
                # The application takes records more slowly than they are fetched: the budget of
                # bytes is used up.
                while self.queue.room <= 0 and not self._closed:
                    self._changed.wait(1.0)
            rested_s = 0.0
            if not found:  # otherwise there is no wait
                self._ask_anew(topics)
                rested_s = max((topic.tail.rested_s for topic in topics), default=0.0)
            if timer.wait(found, rested_s):
                self._ask_anew(topics)
        self._watch.close()

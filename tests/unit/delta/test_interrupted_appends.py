"""An append whose process stood still with the commit in hand, while maintenance moved files and
cleaned the log.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deltaq.errors import OutcomeUnknown
from deltaq.maintenance.file_compaction import FileRewrite, cut
from deltaq.maintenance.orphan_files import OrphanFileRemover
from deltaq.maintenance.retention import plan_deletion
from deltaq.maintenance.rewrite import Rewriter
from deltaq.names import log_entry, orphan_scan_key, orphan_scans_folder
from deltaq.store import MemoryStore, Store
from deltaq.testing import FaultyStore, ManualClock
from deltaq.topics.log import Appended, StalePlan, TopicLog
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.state import PendingSegment
from deltaq.work import finish
from tests.doubles.written_topic import RowToWrite, WrittenTopic, seen_by_consumers

NOTHING_MERGED = 1000


class SleepingStore(FaultyStore):
    """The process stands still while it creates `key`: before that, or before it has its answer.

    As over a network, the store does not look at the entry before.
    """

    def __init__(
        self, inner: Store, key: str, *, created: bool, meanwhile: Callable[[], None]
    ) -> None:
        super().__init__(inner)
        self._key = key
        self._created = created
        self._meanwhile = meanwhile

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        is_it, self._key = key == self._key, "" if key == self._key else self._key
        if is_it and not self._created:
            self._meanwhile()
        super().create(key, data, "" if is_it else after)
        if is_it and self._created:
            self._meanwhile()


@pytest.fixture
def topic() -> WrittenTopic:
    topic = WrittenTopic(MemoryStore("test"), ManualClock(auto_advance=True), partitions=2)
    topic.append(RowToWrite(b"first"))
    return topic


def others_go_on(topic: WrittenTopic, merge_files: int) -> None:
    """Four more entries at least, some merges, and a log that begins behind the slot that was aimed
    at.
    """
    for number in range(4):
        topic.append(RowToWrite(b"other %d" % number))
    maintenance = topic.maintenance(
        merge_files=merge_files, keep_entries_min=1, keep_entries_max=1, checkpoint_interval=1
    )
    maintenance.run()
    assert isinstance(topic.clock, ManualClock)
    topic.clock.advance(61)
    maintenance.run()
    assert not any(
        entry.key.endswith("2.json") for entry in topic.store.list(f"{topic.log.folder}_delta_log/")
    )


def appended(
    topic: WrittenTopic, *segments: PendingSegment, created: bool, meanwhile: Callable[[], None]
) -> list[int]:
    """Commit into slot 2, and sleep over it; the first offsets of what was committed."""
    store = SleepingStore(
        topic.store,
        log_entry(f"{topic.log.folder}_delta_log/", 2),
        created=created,
        meanwhile=meanwhile,
    )
    log = TopicLog(store, "t", topic.clock)
    log.load()
    done = log.append(
        lambda: segments, topic.log.live_head.topic_id, topic.clock.monotonic() + 3600
    )
    assert isinstance(done, Appended)
    return [file.batches[0].base_offset for file in done.files]


def values(topic: WrittenTopic) -> list[bytes]:
    return [value for _, _, _, _, value, _ in seen_by_consumers(topic.store)]


@pytest.mark.fault("M7", "C4")
def test_a_merged_append_whose_entry_was_cleaned_up_is_not_repeated(topic):
    mine = topic.upload(RowToWrite(b"mine"))
    with pytest.raises(OutcomeUnknown):
        appended(topic, mine, created=True, meanwhile=lambda: others_go_on(topic, 2))
    assert values(topic).count(b"mine") == 1


@pytest.mark.fault("M7", "C4")
def test_an_append_into_a_reopened_slot_is_repeated_if_others_have_its_offsets(topic):
    mine = topic.upload(RowToWrite(b"mine"))
    assert appended(
        topic, mine, created=False, meanwhile=lambda: others_go_on(topic, NOTHING_MERGED)
    ) == [5]
    assert values(topic).count(b"mine") == 1


@pytest.mark.fault("M7", "C4")
def test_an_append_into_a_reopened_slot_is_repeated_if_its_offsets_were_unused(topic):
    mine = topic.upload(RowToWrite(b"mine", partition=1))
    assert appended(topic, mine, created=False, meanwhile=lambda: others_go_on(topic, 2)) == [0]
    assert values(topic).count(b"mine") == 1


@pytest.mark.fault("M7", "C4")
def test_an_append_whose_offsets_are_in_merged_files_stays_unknown(topic):
    mine = topic.upload(RowToWrite(b"mine"))
    with pytest.raises(OutcomeUnknown):
        appended(topic, mine, created=False, meanwhile=lambda: others_go_on(topic, 2))
    assert values(topic).count(b"mine") == 0


@pytest.mark.fault("M7")
def test_an_append_with_one_expired_file_is_reported_as_a_whole(topic):
    mine = [topic.upload(RowToWrite(b"expires")), topic.upload(RowToWrite(b"stays", partition=1))]

    def meanwhile() -> None:
        topic.log.catch_up()
        trimmed = plan_deletion(topic.log.index, topic.log.live_head, {0: 2})
        topic.log.retain(lambda _: trimmed, topic.clock.monotonic() + 60)
        others_go_on(topic, NOTHING_MERGED)

    assert appended(topic, *mine, created=True, meanwhile=meanwhile) == [1, 0]


@pytest.mark.fault("M3", "M7")
@pytest.mark.parametrize("created", [True, False], ids=["was in the topic", "never was"])
def test_a_possibly_committed_file_of_a_merge_is_left_to_the_orphan_file_remover(topic, created):
    topic.append(RowToWrite(b"second"))
    puts = []

    def meanwhile() -> None:
        topic.log.catch_up()
        trimmed = plan_deletion(topic.log.index, topic.log.live_head, {0: 2})
        topic.log.retain(lambda _: trimmed, topic.clock.monotonic() + 60)
        others_go_on(topic, NOTHING_MERGED)

    class NotedStore(SleepingStore):
        def put(self, key: str, data: bytes | memoryview) -> None:
            puts.append(key)
            super().put(key, data)

    key = log_entry(f"{topic.log.folder}_delta_log/", 3)
    store = NotedStore(topic.store, key, created=created, meanwhile=meanwhile)
    log = MaintenanceLog(store, "t", topic.clock)
    log.load()
    files = tuple(sorted(log.index.files.values(), key=lambda file: file.segment.version))
    plan = FileRewrite(files, cut(files, log.live_head, 2**30))
    assert finish(Rewriter(store, log, topic.clock).rewrite(plan)) == StalePlan(may_have_stood=True)
    assert len(puts) == 1
    assert topic.store.get(puts[0]), "a reader may still use it"


@pytest.mark.fault("M4", "M5")
def test_an_orphan_scan_saved_long_after_its_listing_is_ignored(topic):
    clock = topic.clock
    assert isinstance(clock, ManualClock)
    topic.upload(RowToWrite(b"young"))
    key = orphan_scan_key(topic.log.folder, 1)
    asleep = SleepingStore(topic.store, key, created=False, meanwhile=lambda: clock.advance(31))
    log = topic.fresh_log()
    assert finish(OrphanFileRemover(asleep, log, clock).scan()) == 0
    assert not list(topic.store.list(orphan_scans_folder(topic.log.folder)))
    assert finish(OrphanFileRemover(topic.store, log, clock).scan()) == 1

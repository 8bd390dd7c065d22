"""Group commit between producers: which files they share, in which order, and what they report at
the deadline.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import pytest

from deltaq import Consumer, KafkaError, Producer, Topic, TopicPartition
from deltaq.clock import SYSTEM_CLOCK, SystemClock
from deltaq.delta.actions import Entry, parse_entry
from deltaq.maintenance.checkpoint import write_checkpoint
from deltaq.producer import batch_upload, group_commit
from deltaq.producer.batches import UploadFailed
from deltaq.producer.committer import Committer
from deltaq.producer.group_commit import GroupCommitPolicy
from deltaq.producer.sender import Sender
from deltaq.producer.uploader import BATCHES_AHEAD_MAX
from deltaq.store import MemoryStore, StoreUnavailable
from deltaq.testing import Fault, FaultyStore, Rule
from deltaq.topics.follower import topic_reader
from deltaq.topics.log import SHARED_FILES_BEHIND, Appended, AppendMode, TopicLog
from deltaq.topics.shared_files import (
    SharedFile,
    parse_shared_file,
    shared_file_path,
    writer_of,
)
from tests.doubles.reading import drain, eventually

DATA = "topics/*.parquet"
ENTRY = "topics/*_delta_log/*"
TOKEN = re.compile(r"\(token ([^)]+)\)")
EVER = None
SHORT_MS = 1000
"""A `message.timeout.ms` within which even a busy machine makes the first try."""
FOREVER = float("inf")


class HeldStore(FaultyStore):
    """Keeps back data files, by their number in the order in which they come, until they are let
    go.
    """

    def __init__(self, *held: int) -> None:
        super().__init__(MemoryStore("test"))
        self.gates = {number: threading.Event() for number in held}
        self.uploads = 0
        self.puts: list[str] = []

    def put(self, key, data):
        if key.endswith(".parquet"):
            self.puts.append(key)
            self.uploads += 1
            gate = self.gates.get(self.uploads)
            assert gate is None or gate.wait(60)
        super().put(key, data)


class Reports(list[tuple[Any, Any]]):
    """Collects (error, message)."""

    def __call__(self, error, message) -> None:
        self.append((error, message))

    @property
    def names(self) -> list[str | None]:
        return [None if error is None else error.name() for error, _ in self]

    @property
    def tokens(self) -> list[str]:
        return [
            found[1]
            for error, _ in self
            if error is not None and (found := TOKEN.search(error.str()))
        ]


@pytest.fixture(autouse=True)
def always_contended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that met another one stays contended, and does not wait."""
    monkeypatch.setattr(group_commit, "CONTENTION_S", 600.0)
    monkeypatch.setattr(group_commit, "LOAD_MIN", 0.0)
    monkeypatch.setattr(group_commit, "TIMEOUT_INTERVALS", 0.0)
    monkeypatch.setattr(group_commit, "INTERVAL_MAX_S", 0.0)


@contextmanager
def contended_producer(
    store: FaultyStore, reports: Reports | None = None, *, partitions: int = 1, **config: Any
) -> Iterator[Producer]:
    """A producer that has just met another one."""
    Topic("t", partitions=partitions, store=store.inner).create()
    conf = {"bootstrap.servers": "memory://unused", "linger.ms": 0, "deltaq.group.commit": "true"}
    with Producer(conf, store=store, on_delivery=reports, **config) as producer:
        producer.produce("t", "first")
        producer.flush(60)
        until_done(producer)
        policy_of(producer).peer_committed(SYSTEM_CLOCK.monotonic())
        yield producer


def until_done(producer: Producer) -> None:
    """Wait until the batches that were reported are forgotten, too: the sender does that right
    after the reports.
    """
    eventually(lambda: not writer_in(producer)._batches.open, "the end of the batches")


def writer_in(producer: Producer) -> Sender:
    return producer._handles["t"].sender


def policy_of(producer: Producer) -> GroupCommitPolicy:
    policy = writer_in(producer)._batches.group_commit
    assert policy is not None
    return policy


def entries(store: FaultyStore) -> list[Entry]:
    keys = [
        entry.key
        for entry in store.inner.list("topics/t/_delta_log/")
        if entry.key.endswith(".json")
    ]
    return [parse_entry(store.inner.get(key), version, key) for version, key in enumerate(keys)]


def shared_files_in(store: FaultyStore) -> list[SharedFile]:
    """The files that any writer may commit, committed or not, by their numbers."""
    keys = [entry.key.removeprefix("topics/t/") for entry in store.inner.list("topics/t/")]
    found = [file for key in keys if (file := parse_shared_file(key)) is not None]
    return sorted(found, key=lambda file: file.id.number)


def commits_of(store: FaultyStore, writer: str) -> list[str]:
    """What the entries of a writer were for, the first ones left out."""
    found = [entry.info for entry in entries(store)[2:] if writer_of(entry.txn_id) == writer]
    return [info.operation for info in found if info is not None]


def values(store: FaultyStore, count: int) -> list[bytes]:
    conf = {
        "bootstrap.servers": "memory://unused",
        "group.id": "reader",
        "enable.partition.eof": True,
    }
    with Consumer(conf, store=store.inner) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        messages = drain(consumer, count + 1)
    return [message.value() for message in messages if message.error() is None]


class Neighbour:
    """Another process that writes the topic, and commits the shared files that it finds."""

    def __init__(self, store: FaultyStore) -> None:
        self.log = TopicLog(store.inner, "t", indexed=True)
        self.log.load()

    def commit(self) -> int:
        """How many files of others are in one commit."""
        self.log.catch_up()
        appended = self.log.append(
            list, self.log.live_head.topic_id, FOREVER, how=AppendMode(with_peers=True)
        )
        assert isinstance(appended, Appended)
        return len(appended.files)

    def wins(self, store: FaultyStore, races: int = 1) -> None:
        """From now on, take so many slots just before `store` creates an entry in them."""
        create, left = store.create, list(range(races))

        def late(key: str, data: bytes | memoryview, after: str = "") -> None:
            if left:
                left.pop()
                self.commit()
            create(key, data, after)

        store.create = late  # type: ignore[method-assign]


# --- whether ---


def test_a_file_is_not_shared_if_entries_since_it_was_taken_were_skipped(monkeypatch):
    """A consumer of the process may load a checkpoint while the batch is encoded."""
    store, reports = FaultyStore(MemoryStore("test")), Reports()
    with contended_producer(store, reports) as producer:
        log = writer_in(producer).log

        def late(*arguments, **more):
            neighbour = Neighbour(store)
            neighbour.commit()
            write_checkpoint(store.inner, "topics/t/_delta_log/", neighbour.log.state)
            topic_reader(store, "t", SYSTEM_CLOCK).load()
            assert log.take_over()
            return shared_file_path(*arguments, **more)

        monkeypatch.setattr(batch_upload, "shared_file_path", late)
        producer.produce("t", "second")
        producer.flush(60)
        until_done(producer)
        assert log.pending_shared.paths == {}
    assert shared_files_in(store) == []
    assert reports.names == [None] * 2, "else its outcome would be unknown"


def test_contended_writers_share_files_and_any_committer_adds_them():
    store, reports = FaultyStore(MemoryStore("test")), Reports()
    with contended_producer(store, reports) as producer:
        for number in range(3):
            producer.produce("t", str(number))
            producer.flush(60)
        until_done(producer)
        assert writer_in(producer).log.pending_shared.paths == {}
    assert [file.id.number for file in shared_files_in(store)] == [0, 1, 2]
    assert reports.names == [None] * 4
    assert values(store, 4) == [b"first", b"0", b"1", b"2"]


@pytest.mark.parametrize("other", ["true", "auto"])
def test_a_producer_with_group_commit_off_disables_it_for_its_process(other):
    store = FaultyStore(MemoryStore("test"), trace=True)
    conf = {"bootstrap.servers": "memory://unused", "linger.ms": 0}
    refusing, more = (
        Producer(conf, store=store, deltaq_group_commit=word) for word in ("false", other)
    )
    with contended_producer(store) as producer, refusing, more:
        for one in (refusing, more, producer):
            one.produce("t", "v")
            one.flush(60)
        neighbour = Neighbour(store)
        assert neighbour.commit() == 0
        for one in (producer, more, refusing):
            one.produce("t", "v")
            one.flush(60)
    assert shared_files_in(store) == []
    assert not [step for step in store.trace if step.operation == "list" and "shared/" in step.key]


def test_on_a_local_disk_files_are_shared_only_if_enabled(tmp_path):
    def says(word: str) -> bool:
        with Producer({"bootstrap.servers": str(tmp_path)}, deltaq_group_commit=word) as producer:
            return producer._topics.settings.group_commit

    assert [says("auto"), says("true"), says("false")] == [False, True, False]


def test_on_a_remote_store_files_are_shared_unless_disabled():
    class Remote(MemoryStore):
        is_remote = True

    def says(word: str) -> bool:
        conf = {"bootstrap.servers": "memory://unused", "deltaq.group.commit": word}
        with Producer(conf, store=Remote("test")) as producer:
            return producer._topics.settings.group_commit

    assert [says("auto"), says("true"), says("false")] == [True, True, False]


# --- in which order ---


def came(store: HeldStore, uploads: int) -> bool:
    return store.uploads == uploads


def test_concurrently_uploaded_batches_are_added_in_order():
    store = HeldStore(2)
    with contended_producer(store, batch_num_messages=10, linger_ms=60_000) as producer:
        for at in range(3):
            for number in range(10 * at, 10 * at + 10):
                producer.produce("t", str(number))
            eventually(partial(came, store, at + 2))
        eventually(lambda: len(shared_files_in(store)) == 2)
        assert [(file.id.number, file.follows) for file in shared_files_in(store)] == [
            (1, True),
            (2, True),
        ]
        neighbour = Neighbour(store)
        assert neighbour.commit() == 0, "what comes before them is not there yet"
        store.gates[2].set()
        producer.flush(60)
    found = [(file.id.number, file.follows, file.segment.as_of) for file in shared_files_in(store)]
    assert found == [(0, False, 1), (1, True, 1), (2, True, 1)]
    assert values(store, 31) == [b"first", *(b"%d" % number for number in range(30))]


def test_a_file_after_an_unshared_one_is_not_shared():
    store = HeldStore(2)
    with contended_producer(store, batch_num_messages=10, linger_ms=60_000) as producer:
        policy = policy_of(producer)
        policy.peer_committed(float("-inf"))  # it takes itself for alone
        for number in range(10):
            producer.produce("t", str(number))
        eventually(lambda: store.uploads == 2)
        policy.peer_committed(SYSTEM_CLOCK.monotonic())
        for number in range(10, 20):
            producer.produce("t", str(number))
        eventually(lambda: store.uploads == 3)
        assert not any("shared/" in key for key in store.puts)
        store.gates[2].set()
        producer.flush(60)
    assert values(store, 21) == [b"first", *(b"%d" % number for number in range(20))]


# --- when time is over ---


@pytest.mark.fault("P9")
def test_an_unacknowledged_shared_file_is_revoked_before_it_is_reported_failed():
    store, reports = FaultyStore(MemoryStore("test")), Reports()
    with contended_producer(store, reports, message_timeout_ms=SHORT_MS) as producer:
        store.add(Rule("put", DATA, Fault.error_after(), times=EVER))
        producer.produce("t", "lost")
        producer.flush(60)
        until_done(producer)
        writer = writer_in(producer).log.writer
        assert writer_in(producer).log.pending_shared.paths == {}
    assert reports.names == [None, "_MSG_TIMED_OUT"]
    assert reports.tokens == [], "it is certain"
    assert len(shared_files_in(store)) == 1
    assert commits_of(store, writer) == ["FENCE"]
    assert Neighbour(store).commit() == 0
    assert values(store, 1) == [b"first"]


def test_a_shared_file_committed_by_a_peer_is_delivered_without_upload_answer():
    store, reports = FaultyStore(MemoryStore("test")), Reports()
    with contended_producer(store, reports, message_timeout_ms=SHORT_MS) as producer:
        store.add(Rule("put", DATA, Fault.error_after(), times=EVER))
        producer.produce("t", "kept")
        eventually(lambda: shared_files_in(store))
        assert Neighbour(store).commit() == 1
        producer.flush(60)
        writer = writer_in(producer).log.writer
    assert reports.names == [None, None]
    assert reports[1][1].offset() == 1
    assert commits_of(store, writer) == [], "there was nothing to revoke"
    assert values(store, 2) == [b"first", b"kept"]


class Synced(MemoryStore):
    """Notes the folders that are synced and the entries that are created. Syncs of the log fail a
    number of times.
    """

    def __init__(self) -> None:
        super().__init__("test")
        self.steps: list[str] = []
        self.failures = 0

    def sync(self, folder: str) -> None:
        super().sync(folder)
        if self.failures and folder.endswith("_delta_log/"):
            self.failures -= 1
            raise StoreUnavailable("sync", folder, "I/O error")
        self.steps.append(folder)

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        self.steps.append(key)
        super().create(key, data, after)


@pytest.mark.fault("P16")
@pytest.mark.parametrize("failures", [0, 1, 7])
def test_files_of_and_commits_by_peers_are_synced_before_they_are_relied_on(failures):
    synced = Synced()
    store, reports = FaultyStore(synced), Reports()
    with contended_producer(store, reports, message_timeout_ms=20_000) as producer:
        neighbour, create = Neighbour(store), store.create

        def lose_the_race(key, data, after=""):
            del store.create
            del synced.steps[:]
            assert neighbour.commit() == 1
            synced.failures = failures
            create(key, data, after)

        store.create = lose_the_race  # type: ignore[method-assign]
        producer.produce("t", "kept")
        producer.flush(60)
    assert reports.names == [None, None]
    assert synced.failures == 0
    (file,) = shared_files_in(store)
    folder = f"topics/t/{file.segment.path}".rpartition("/")[0] + "/"
    entry = "topics/t/_delta_log/00000000000000000002.json"
    steps = [step for step in synced.steps if step.startswith("topics/")]
    assert steps[:2] == [folder, entry]
    assert "topics/t/_delta_log/" in steps[2:]


@pytest.mark.fault("P9")
@pytest.mark.parametrize("is_taken", [False, True])
def test_a_shared_file_that_cannot_be_revoked_is_unknown_and_can_be_resolved(is_taken):
    store, reports = FaultyStore(MemoryStore("test")), Reports()
    with contended_producer(store, reports, message_timeout_ms=SHORT_MS) as producer:
        store.add(Rule("put", DATA, Fault.error_after(), times=EVER))
        store.add(Rule("create", ENTRY, Fault.error_before(), times=EVER))
        store.add(Rule("get", ENTRY, Fault.error_before(), times=EVER))
        producer.produce("t", "lost")
        producer.flush(60)
        assert reports.names == [None, "_MSG_TIMED_OUT"]
        (token,) = reports.tokens
        store.clear()
        if is_taken:
            assert Neighbour(store).commit() == 1
        assert producer.resolve("t", token) == is_taken
    assert Neighbour(store).commit() == 0
    assert values(store, 1 + is_taken) == [b"first", b"lost"][: 1 + is_taken]


@pytest.mark.fault("P9")
def test_an_unanswered_commit_is_looked_up_at_its_deadline():
    store, reports = FaultyStore(MemoryStore("test")), Reports()
    with contended_producer(store, reports, message_timeout_ms=SHORT_MS) as producer:
        store.add(
            Rule("create", ENTRY, Fault.error_after(), times=1),
            Rule("get", ENTRY, Fault.error_before(), times=EVER),
        )
        producer.produce("t", "kept")
        eventually(lambda: len(entries(store)) == 3)
        SYSTEM_CLOCK.sleep(1.2 * SHORT_MS / 1000)
        store.clear()
        producer.flush(60)
    assert reports.names == [None, None]
    assert values(store, 2) == [b"first", b"kept"]


def test_a_refused_upload_fails_at_once_without_a_revocation():
    store, reports = FaultyStore(MemoryStore("test")), Reports()
    with contended_producer(store, reports) as producer:
        store.add(Rule("put", DATA, Fault.refused(), times=1))
        producer.produce("t", "lost")
        producer.flush(60)
        until_done(producer)
        writer = writer_in(producer).log.writer
        assert writer_in(producer).log.pending_shared.paths == {}
    assert reports[1][0].code() == KafkaError._TRANSPORT
    assert reports.tokens == []
    assert commits_of(store, writer) == []


def test_a_batch_purged_during_its_upload_is_not_awaited():
    store, reports = HeldStore(2), Reports()
    with contended_producer(store, reports) as producer:
        producer.produce("t", "dropped")
        eventually(lambda: store.uploads == 2)
        producer.purge()
        producer.flush(60)
        store.gates[2].set()
        eventually(lambda: shared_files_in(store))
        writer = writer_in(producer)
        eventually(lambda: writer.log.pending_shared.paths == {})
        producer.produce("t", "next")
        producer.flush(60)
    assert reports.names == [None, "_PURGE_INFLIGHT", None]
    assert [file.follows for file in shared_files_in(store)] == [False, False]
    assert values(store, 2) == [b"first", b"next"]


def test_a_writer_that_lost_the_race_shares_its_unshared_files():
    store, reports = FaultyStore(MemoryStore("test")), Reports()
    with contended_producer(store, reports) as producer:
        policy_of(producer).peer_committed(float("-inf"))  # it takes itself for alone
        Neighbour(store).wins(store)
        producer.produce("t", "late")
        producer.flush(60)
    assert reports.names == [None, None]
    assert len(shared_files_in(store)) == 1
    assert values(store, 2) == [b"first", b"late"]


def test_a_writer_that_lost_two_races_shares_its_files_on_a_log_of_low_utilisation(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(group_commit, "LOAD_MIN", float("inf"))
    store, reports = FaultyStore(MemoryStore("test")), Reports()
    with contended_producer(store, reports) as producer:
        Neighbour(store).wins(store, races=2)
        producer.produce("t", "late")
        producer.flush(60)
    assert reports.names == [None, None]
    assert len(shared_files_in(store)) == 1
    assert values(store, 2) == [b"first", b"late"]


def test_batches_taken_while_an_earlier_one_is_uploaded_again_are_shared_too():
    store, reports = HeldStore(3), Reports()
    with contended_producer(store, reports, batch_num_messages=1) as producer:
        policy_of(producer).peer_committed(float("-inf"))  # it takes itself for alone
        neighbour = Neighbour(store)
        neighbour.wins(store)
        producer.produce("t", "late")
        eventually(partial(came, store, 3))
        producer.produce("t", "next")
        eventually(lambda: shared_files_in(store))
        assert neighbour.commit() == 0, "what comes before it is not there yet"
        store.gates[3].set()
        producer.flush(60)
    assert reports.names == [None] * 3
    assert [(file.id.number, file.follows) for file in shared_files_in(store)] == [
        (0, False),
        (1, True),
    ]
    assert values(store, 3) == [b"first", b"late", b"next"]


def test_a_shared_file_too_old_for_the_listings_of_peers_does_not_wait_for_them(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(group_commit.GroupCommitPolicy, "leader_timeout_s", lambda *_, **__: 600.0)
    store, reports = FaultyStore(MemoryStore("test")), Reports()
    with contended_producer(store, reports) as producer:
        producer.produce("t", "overlooked")
        eventually(lambda: shared_files_in(store))
        neighbour = Neighbour(store)
        for _ in range(SHARED_FILES_BEHIND + 1):
            assert isinstance(
                neighbour.log.append(list, neighbour.log.live_head.topic_id, FOREVER), Appended
            )
        assert producer.flush(30) == 0
        assert commits_of(store, writer_in(producer).log.writer) == ["WRITE"]
    assert reports.names == [None, None]


def test_a_look_far_behind_finds_files_that_the_usual_listing_misses():
    store, reports = FaultyStore(MemoryStore("test")), Reports()
    with contended_producer(store, reports) as producer:
        store.add(Rule("create", ENTRY, Fault.error_before(), times=EVER))
        producer.produce("t", "fell behind")
        eventually(lambda: shared_files_in(store))
        neighbour = Neighbour(store)
        topic_id = neighbour.log.live_head.topic_id
        for _ in range(SHARED_FILES_BEHIND + 1):
            neighbour.log.append(list, topic_id, FOREVER)
        assert neighbour.commit() == 0
        found = neighbour.log.append(
            list, topic_id, FOREVER, how=AppendMode(with_peers=True, far_behind=True)
        )
        assert isinstance(found, Appended)
        assert found.peer_files == 1
        assert producer.flush(30) == 0
    assert reports.names == [None, None]


def test_a_lost_race_of_group_commit_is_followed_by_no_pause():
    class Hurried(SystemClock):
        pauses: ClassVar[list[float]] = []

        def sleep(self, seconds):
            self.pauses.append(seconds)

    store = FaultyStore(MemoryStore("test"))
    Topic("t", store=store.inner).create()
    log, neighbour = TopicLog(store, "t", Hurried()), Neighbour(store)
    log.load()
    for _ in range(3):  # after the first one it knows that there are others
        neighbour.wins(store)
        found = log.append(list, log.live_head.topic_id, FOREVER, how=AppendMode(with_peers=True))
        assert isinstance(found, Appended)
        assert found.lost_races == 1
    assert Hurried.pauses == []


def test_a_file_that_peers_cannot_commit_does_not_wait_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, reports = FaultyStore(MemoryStore("test")), Reports()
    with contended_producer(store, reports, partitions=100, linger_ms=60_000) as producer:
        monkeypatch.setattr(
            group_commit.GroupCommitPolicy, "leader_timeout_s", lambda *_, **__: 600.0
        )
        for partition in range(100):
            producer.produce("t", "wide", partition=partition)  # too many to be named in an file
        assert producer.flush(30) == 0
    assert reports.names == [None] * 101
    assert shared_files_in(store) == []


def test_a_commit_waiting_under_contention_leaves_when_contention_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class HeldLog(FaultyStore):
        gate = threading.Event()

        def create(self, key, data, after=""):
            assert self.gate.wait(60)
            super().create(key, data, after)

    store = HeldLog(MemoryStore("test"))
    store.gate.set()
    with contended_producer(store) as producer:
        store.gate.clear()
        uploads = writer_in(producer)._uploads
        producer.produce("t", "on its way")
        eventually(lambda: uploads._batches.open, "the first")
        producer.produce("t", "waits for that")
        eventually(lambda: uploads._waits_for_commit, "the wait")
        monkeypatch.setattr(group_commit, "CONTENTION_S", 0.0)
        store.gate.set()
        eventually(lambda: producer.poll(0) is not None and not len(producer), "both")
    assert values(store, 3) == [b"first", b"on its way", b"waits for that"]


def test_a_produce_call_waiting_for_room_goes_on_when_lost_uploads_are_given_up():
    store, reports = FaultyStore(MemoryStore("test")), Reports()
    limits = {"batch_num_messages": 1, "message_timeout_ms": SHORT_MS, "linger_ms": 5}
    with contended_producer(store, reports, **limits) as producer:
        store.add(
            Rule("put", DATA, Fault.error_before(), EVER),
            Rule("create", ENTRY, Fault.slow(), times=1),
        )
        batches, sent = writer_in(producer)._batches, 0
        while len(batches.waiting) < BATCHES_AHEAD_MAX or not all(
            isinstance(batch.state, UploadFailed) for batch in batches.waiting
        ):
            producer.produce("t", "lost")
            sent += 1
            SYSTEM_CLOCK.sleep(0.02)
        assert store.blocked == 1, "the first to be given up"
        store.clear()
        store.release()
        eventually(lambda: producer.poll(0) is not None and not len(producer), "each is told")
    assert len(reports) == 1 + sent
    assert reports.names.count("_MSG_TIMED_OUT") > BATCHES_AHEAD_MAX


@pytest.mark.parametrize(
    ("store", "settings"),
    [
        (MemoryStore("test"), {"deltaq.group.commit": "false"}),
        (MemoryStore("test"), {}),  # a store of this machine
    ],
    ids=["switched off", "local"],
)
def test_none_of_its_code_runs_for_a_message_while_group_commit_is_off(
    store, settings, monkeypatch
):
    called: list[str] = []
    for name, member in vars(GroupCommitPolicy).items():
        if callable(member):
            monkeypatch.setattr(
                GroupCommitPolicy, name, lambda *_, of=name, **__: called.append(of)
            )
    for name in ("_await_leader", "_share_again"):
        monkeypatch.setattr(Committer, name, lambda *_, of=name, **__: called.append(of))
    monkeypatch.setattr(TopicLog, "_shared_by_peers", lambda *_: called.append("_shared_by_peers"))
    conf = {"bootstrap.servers": "memory://unused", "linger.ms": 0, **settings}
    reports = Reports()
    with (
        Producer(conf, store=store, on_delivery=reports) as producer,
        Producer(conf, store=store) as other,
    ):
        for number in range(5):
            producer.produce("t", str(number))
            other.produce("t", str(number))
            producer.flush(60)
    assert reports.names == [None] * 5
    assert called == []

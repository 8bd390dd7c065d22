"""Files that any writer may commit: their names, and the rules by which they may be added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq import OutcomeUnknown
from deltaq.delta.actions import CommitInfo, Entry, encode_entry
from deltaq.delta.known_log import LogState
from deltaq.delta.schema import delta_schema
from deltaq.delta.slot_proof import HEAD_PROOF_S
from deltaq.maintenance.checkpoint import encode_checkpoint
from deltaq.names import checkpoint_file, log_entry, log_start_marker
from deltaq.store import MemoryStore, Store
from deltaq.testing import Fault, FaultyStore, ManualClock, Rule
from deltaq.topics.columns import table_schema
from deltaq.topics.log import Appended, AppendMode, AppendOutcome, CommittedByPeer, TopicLog
from deltaq.topics.shared_files import (
    SharedFile,
    SharedFileId,
    WriterHistory,
    parse_shared_file,
    shared_file_path,
)
from deltaq.topics.state import PendingSegment, TopicHead, appended

WRITER, OTHER = "0123456789abcdef", "fedcba9876543210"
TOPIC_ID = "5898bb7a1f1e439a9098cd76c8c5f14a"
HEAD = TopicHead(TOPIC_ID, (0, 0), (0, 0), 0)
FOREVER = float("inf")


def segment(
    as_of: int = 0, partition_rows: tuple[tuple[int, int], ...] = ((0, 3),)
) -> PendingSegment:
    rows = sum(count for _, count in partition_rows)
    return PendingSegment(
        "",
        1426,
        rows,
        2**32 - 1,
        884,
        7,
        partition_rows,
        1_795_258_300_133,
        1_795_258_300_140,
        1,
        True,
        as_of,
    )


def shared(
    number: int = 0, as_of: int = 0, *, writer: str = WRITER, follows: bool = False, **changed
) -> SharedFile:
    pending = segment(as_of, changed.get("partition_rows", ((0, 3),)))
    path = shared_file_path(
        SharedFileId(writer, number), pending, changed.get("topic_id", TOPIC_ID), follows=follows
    )
    found = parse_shared_file(path or "")
    assert found is not None
    return found


numbers = st.integers(0, 2**40)


@given(
    numbers, numbers, st.integers(0, 2**32 - 1), numbers, st.booleans(), st.booleans(),
    st.lists(st.integers(1, 1000), min_size=1, max_size=20),
)  # fmt: skip
def test_the_name_of_a_shared_file_has_all_fields_of_its_add(
    number, size, crc32, as_of, timed, follows, counts
):
    partition_rows = tuple((2 * partition, count) for partition, count in enumerate(counts))
    pending = replace(segment(as_of, partition_rows), size=size, crc32=crc32, timed=timed)
    path = shared_file_path(
        SharedFileId(WRITER, number % 10**12), pending, TOPIC_ID, follows=follows
    )
    assert path is not None
    assert len(path.rpartition("/")[2]) <= 255
    found = parse_shared_file(path)
    assert found is not None
    assert found.id == SharedFileId(WRITER, number % 10**12)
    assert (found.segment, found.follows) == (replace(pending, path=path), follows)


def test_a_file_whose_fields_do_not_fit_into_a_name_is_not_shared():
    partition_rows = tuple((partition, 1000) for partition in range(100))
    assert (
        shared_file_path(
            SharedFileId(WRITER, 0), segment(0, partition_rows), TOPIC_ID, follows=False
        )
        is None
    )


@given(st.data())
def test_a_changed_name_is_no_shared_file(data):
    path = shared(12, 34).segment.path
    at = data.draw(st.integers(0, len(path) - 1))
    changed = path[:at] + data.draw(st.sampled_from("0aZ-_/.f")) + path[at + 1 :]
    assert parse_shared_file(changed) is None or changed == path


@pytest.mark.parametrize(
    "path", ["", "c6122fd253ab4b4eb9f0b70a925483cb.parquet", "shared/x.parquet", "shared/", "ü"]
)
def test_other_names_are_no_shared_files(path):
    assert parse_shared_file(path) is None


# --- what may be added
# -----------------------------------------------------------------------------------------------


def entry(version: int, writer: str, *files: SharedFile) -> Entry:
    _, actions = appended(HEAD, version, [one.segment for one in files], 0, log_append_time=False)
    info = CommitInfo(writer + "0" * 16, 0, "WRITE")
    return Entry(version, info, tuple(actions))


def takable(
    history: WriterHistory,
    *files: SharedFile,
    version: int = 5,
    head: TopicHead = HEAD,
    own: str = OTHER,
) -> list[int]:
    paths = [one.path for one in history.takable(files, head, version, own)]
    return [one.id.number for path in paths if (one := parse_shared_file(path)) is not None]


def test_shared_files_are_committed_once_in_the_order_of_their_writer():
    history = WriterHistory()
    both = shared(1, 3, follows=True), shared(0, 2)
    assert takable(history, *both) == [0, 1]
    history = history.after(entry(4, OTHER, both[1]))
    assert takable(history, *both) == [1]
    history = history.after(entry(5, OTHER, both[0]))
    assert takable(history, *both) == []


def test_a_shared_file_waits_for_its_predecessor():
    assert takable(WriterHistory(), shared(1, 3, follows=True)) == []
    assert takable(WriterHistory(), shared(1, 3)) == [1], (
        "its writer knew what became of the one before"
    )


def test_a_shared_file_with_a_committed_successor_is_skipped():
    history = WriterHistory()
    history = history.after(entry(4, OTHER, shared(8, 3)))
    assert takable(history, shared(7, 3)) == []


def test_an_entry_of_a_writer_revokes_its_earlier_shared_files():
    history = WriterHistory()
    history = history.after(entry(4, WRITER))
    assert takable(history, shared(0, 3)) == []
    assert takable(history, shared(1, 4)) == [1]


def test_shared_files_possibly_added_before_the_snapshot_are_skipped():
    assert takable(WriterHistory(4, 4), shared(0, 3), shared(1, 4)) == [1]
    assert takable(WriterHistory(), shared(0, 6)) == [], (
        "its writer knows entries that we do not know"
    )


@pytest.mark.parametrize(
    "head",
    [
        replace(HEAD, topic_id="another"),
        replace(HEAD, deleted=True),
        replace(HEAD, min_upload_version=4),
        replace(HEAD, next_offsets=(0,), start_offsets=(0,)),
    ],
    ids=["another life", "deleted", "void", "a partition too many"],
)
def test_the_topic_settings_can_disable_group_commit(head):
    about = shared(0, 3, partition_rows=((1, 2),))
    assert takable(WriterHistory(), about) == [0]
    assert takable(WriterHistory(), about, head=head) == []


def test_a_history_of_too_many_writers_is_cleared_and_conservative_then(monkeypatch):
    monkeypatch.setattr("deltaq.topics.shared_files.WRITERS_MAX", 3)
    history = WriterHistory()
    for version in range(8):
        history = history.after(entry(version, f"{version:016x}"))
    assert history.since == 3
    assert takable(history, shared(0, 2), version=7) == []


# --- in a log
# --------------------------------------------------------------------------------------------------


class Peers:
    """Two positions in one topic's log, and shared files that are put there by hand."""

    def __init__(self) -> None:
        self.store = MemoryStore("test")
        self.clock = ManualClock(auto_advance=True)
        self.ours, self.theirs = (
            TopicLog(self.store, "t", self.clock, indexed=True) for _ in range(2)
        )
        self.topic_id = self.ours.create(1, delta_schema(table_schema(None)), {}, FOREVER).topic_id
        self.theirs.load()
        self.numbers = iter(range(100))

    def share(self, log: TopicLog, *, follows: bool = False) -> PendingSegment:
        pending = segment(log.version)
        path = shared_file_path(
            SharedFileId(log.writer, next(self.numbers)), pending, self.topic_id, follows=follows
        )
        assert path is not None
        log.pending_shared.expect(path, log.version)
        self.store.put(log.folder + path, b"." * pending.size)
        return replace(pending, path=path)

    def append(self, log: TopicLog, *segments: PendingSegment, shared: bool = True) -> list[str]:
        appended = self.try_append(log, *segments, shared=shared)
        assert isinstance(appended, Appended)
        return [file.path for file in appended.files]

    def try_append(
        self, log: TopicLog, *segments: PendingSegment, shared: bool = True
    ) -> AppendOutcome:
        return log.append(lambda: list(segments), self.topic_id, FOREVER, how=AppendMode(shared))


def test_a_committer_adds_shared_files_of_peers_and_their_writers_learn_of_it():
    peers = Peers()
    first, second, mine = (
        peers.share(peers.theirs),
        peers.share(peers.theirs, follows=True),
        peers.share(peers.ours),
    )
    assert peers.append(peers.ours, mine) == [mine.path, first.path, second.path]
    outcome = peers.try_append(peers.theirs, first, second)
    assert isinstance(outcome, CommittedByPeer)
    offsets = [outcome.committed[one.path].batches[0].base_offset for one in (first, second)]
    assert offsets == [3, 6]
    assert peers.theirs.version == peers.ours.version == 1, "nothing was written"


def test_an_append_of_a_transaction_or_a_sole_writer_adds_no_shared_files():
    peers = Peers()
    peers.share(peers.theirs)
    assert peers.append(peers.ours, shared=False) == []


def test_a_file_that_follows_one_which_was_never_shared_waits_for_its_writer():
    assert takable(WriterHistory(), shared(0, 3, follows=True)) == []
    assert takable(WriterHistory(), shared(0, 3)) == [0]


def test_a_shared_file_resolved_as_not_committed_is_never_added_later():
    peers = Peers()
    lost = peers.share(peers.theirs)
    token = peers.theirs.shared_file_token(lost)
    assert token is not None
    assert TopicLog(peers.store, "t", peers.clock).resolve(token, FOREVER) is None
    assert peers.append(peers.ours) == []
    assert TopicLog(peers.store, "t", peers.clock).resolve(token, FOREVER) is None


def test_a_shared_file_committed_by_a_peer_is_resolved_as_committed():
    peers = Peers()
    lost = peers.share(peers.theirs)
    peers.append(peers.ours)
    files = TopicLog(peers.store, "t", peers.clock).resolve(
        peers.theirs.shared_file_token(lost) or "", FOREVER
    )
    assert files is not None
    assert [file.path for file in files] == [lost.path]


def test_a_shared_file_cannot_be_resolved_if_later_entries_are_gone():
    peers = Peers()
    lost = peers.share(peers.theirs)
    peers.append(peers.ours, shared=False)
    peers.store.put("topics/t/_deltaq/log_start/00000000000000000002", b"")
    with pytest.raises(OutcomeUnknown):
        peers.ours.resolve(peers.theirs.shared_file_token(lost) or "", peers.clock.monotonic() + 5)


def test_a_shared_file_cannot_be_resolved_if_an_entry_is_missing():
    peers = Peers()
    lost = peers.share(peers.theirs)
    peers.append(peers.ours, shared=False)
    token = peers.theirs.shared_file_token(lost) or ""
    away = FaultyStore(
        peers.store, Rule("get", "*_delta_log/00000000000000000001.json", Fault.missing(), nth=2)
    )
    with pytest.raises(OutcomeUnknown):
        TopicLog(away, "t", peers.clock).resolve(token, peers.clock.monotonic() + 5)
    assert TopicLog(away, "t", peers.clock).resolve(token, FOREVER) is None


def cleaned_up(peers: Peers, start: int) -> None:
    """The log begins at version `start`, and has a checkpoint at its end."""
    log = TopicLog(peers.store, "t", peers.clock)
    log.load()
    state = log.state
    peers.store.put(
        checkpoint_file(f"{log.folder}_delta_log/", state.version), encode_checkpoint(state)
    )
    peers.store.create(log_start_marker(log.folder, start), b"")
    for version in range(start):
        peers.store.delete(log_entry(f"{log.folder}_delta_log/", version))


@pytest.mark.fault("C4")
def test_a_shared_file_is_resolved_by_the_entries_from_the_log_start():
    peers = Peers()
    lost = peers.share(peers.theirs)
    for _ in range(3):
        peers.append(peers.ours, shared=False)
    cleaned_up(peers, 1)
    token = peers.theirs.shared_file_token(lost) or ""
    assert TopicLog(peers.store, "t", peers.clock).resolve(token, FOREVER) is None


@pytest.mark.fault("C4")
@pytest.mark.parametrize("has_it", [True, False], ids=["with the file", "without the file"])
@pytest.mark.parametrize("start", [2, 3])
def test_a_shared_file_is_not_resolved_by_an_entry_in_a_cleaned_up_slot(start, has_it):
    peers = Peers()
    lost = peers.share(peers.theirs)
    for _ in range(3):
        peers.append(peers.ours, shared=False)
    cleaned_up(peers, start)
    _, actions = appended(
        peers.ours.live_head, 1, [lost] if has_it else [], 0, log_append_time=False
    )
    for version in range(1, start):
        ghost = encode_entry(CommitInfo(peers.clock.unique_id(), 0, "WRITE"), actions)
        peers.store.create(log_entry(f"{peers.ours.folder}_delta_log/", version), ghost)
    with pytest.raises(OutcomeUnknown, match="cleaned up"):
        TopicLog(peers.store, "t", peers.clock).resolve(
            peers.theirs.shared_file_token(lost) or "", FOREVER
        )


class AwayStore(FaultyStore):
    """A remote store. The process stands still just before that creates `key`; meanwhile the world
    goes on.
    """

    is_remote = True

    def __init__(self, inner: Store, key: str, meanwhile: Callable[[], None]) -> None:
        super().__init__(inner)
        self._key = key
        self._meanwhile = meanwhile

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        if key == self._key:
            self._key = ""
            self._meanwhile()
        super().create(key, data)


def away(peers: Peers, meanwhile: Callable[[], object]) -> TopicLog:
    """A writer that stands still before it fills slot 1, for so long that the slot is cleaned
    up.
    """

    def others_go_on() -> None:
        meanwhile()
        for _ in range(3):
            peers.append(peers.theirs, shared=False)
        cleaned_up(peers, 3)
        peers.clock.advance(HEAD_PROOF_S + 1)

    store = AwayStore(peers.store, log_entry("topics/t/_delta_log/", 1), others_go_on)
    log = TopicLog(store, "t", peers.clock, indexed=True)
    log.load()
    return log


@pytest.mark.fault("C4")
def test_a_file_of_a_peer_in_the_table_does_not_prove_its_committers_entry():
    peers = Peers()
    theirs = peers.share(peers.theirs)
    log = away(peers, lambda: peers.append(peers.theirs, theirs, shared=False))
    mine = replace(segment(), path="mine.parquet")
    with pytest.raises(OutcomeUnknown):
        peers.append(log, mine)
    peers.theirs.catch_up()
    assert theirs.path in peers.theirs.index.files
    assert mine.path not in peers.theirs.index.files


@pytest.mark.fault("C4")
def test_a_shared_file_in_the_table_does_not_prove_its_writers_own_commit():
    peers = Peers()
    log = away(peers, lambda: peers.append(peers.theirs))
    mine = peers.share(log)
    outcome = peers.try_append(log, mine)
    peers.theirs.catch_up()
    assert outcome == CommittedByPeer({mine.path: peers.theirs.index.files[mine.path]}, frozenset())
    assert log.version == peers.theirs.version, "nothing was written"


def test_a_revoked_shared_file_is_not_committed_by_peers():
    peers = Peers()
    revoked = peers.share(peers.theirs)
    assert peers.theirs.revoke([revoked], FOREVER) == CommittedByPeer({}, frozenset())
    assert peers.append(peers.ours) == []
    behind = peers.share(peers.theirs)
    assert peers.append(peers.ours) == [behind.path]


def test_a_shared_file_committed_before_its_revocation_has_its_offsets():
    peers = Peers()
    taken, left = peers.share(peers.theirs), peers.share(peers.theirs, follows=True)
    peers.store.delete(peers.ours.folder + left.path)  # it is not there yet
    assert peers.append(peers.ours) == [taken.path]
    outcome = peers.theirs.revoke([taken, left], FOREVER)
    assert {path: file.batches[0].base_offset for path, file in outcome.committed.items()} == {
        taken.path: 0
    }
    peers.store.put(peers.ours.folder + left.path, b"." * left.size)
    assert peers.append(peers.ours) == []


def test_nothing_is_revoked_if_all_files_are_committed():
    peers = Peers()
    taken = peers.share(peers.theirs)
    peers.append(peers.ours)
    peers.theirs.catch_up()
    assert list(peers.theirs.revoke([taken], FOREVER).committed) == [taken.path]
    assert peers.theirs.version == 1, "nothing was written"


def skip_to(log: TopicLog, other: TopicLog) -> None:
    """Move a position without its reading the entries."""
    history = WriterHistory(other.version, other.version)
    at = other.delta_log.at
    log.delta_log.at = LogState(at.table, replace(at.view, history=history))


def test_a_shared_file_below_the_log_start_cannot_be_revoked():
    peers = Peers()
    lost = peers.share(peers.theirs)
    peers.append(peers.ours)
    skip_to(peers.theirs, peers.ours)
    peers.theirs.pending_shared.committed.clear()
    assert peers.theirs.revoke([lost], FOREVER) == CommittedByPeer({}, frozenset({lost.path}))


def test_missed_entries_leave_the_outcome_unknown():
    peers = Peers()
    lost = peers.share(peers.theirs)
    peers.append(peers.ours)
    skip_to(peers.theirs, peers.ours)
    peers.theirs.pending_shared.committed.clear()
    assert peers.theirs.committed_by_peer([lost]) == CommittedByPeer({}, frozenset({lost.path}))

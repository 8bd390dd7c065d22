"""The simulation notices defects: each mutation of deltaq fails the checks of some seed."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from deltaq.consumer.topic_fetcher import TopicFetcher
from deltaq.delta.actions import CommitInfo
from deltaq.delta.entries import LogEntries
from deltaq.delta.log import DeltaLog
from deltaq.delta.persistent_map import PersistentMap
from deltaq.delta.slot_proof import SlotProof
from deltaq.errors import Unavailable
from deltaq.maintenance import file_compaction, key_compaction, plan
from deltaq.maintenance.log_cleanup import LogCleanup
from deltaq.maintenance.retention import plan_retention
from deltaq.maintenance.rewrite import Rewriter
from deltaq.producer.batches import InFlightBatches, ProduceBatch
from deltaq.producer.committer import Committer
from deltaq.topics import shared_files, view
from deltaq.topics.follower import TopicFollower
from deltaq.topics.log import CommittedByPeer, TopicLog
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.rewrites import renewed, rewritten
from deltaq.topics.shared_files import WriterHistory, WriterSeen
from tests.depth import fifth
from tests.simulation.noticing import expect_notice
from tests.simulation.scenario import Scenario, scenario_of


def does_not_recognise_its_own_entry(patch: pytest.MonkeyPatch) -> None:
    """Takes its own entry in a refused slot for that of another writer, and writes the same files
    again.
    """
    read_slot = DeltaLog._read_slot

    def blind(self, *arguments):
        entry = read_slot(self, *arguments)
        return (
            None
            if entry is None
            else replace(
                entry, info=replace(entry.info or CommitInfo("", 0, ""), txn_id="another writer")
            )
        )

    patch.setattr(DeltaLog, "_read_slot", blind)


def reports_an_unknown_outcome_as_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        DeltaLog, "_gave_up", lambda self, outcome, token: Unavailable("no answer in time")
    )


def trusts_slots_reopened_by_clean_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlotProof, "holds_for", lambda self, version: True)
    # The check of the entry before a commit notices most freed slots, too.
    patch.setattr(DeltaLog, "_is_in_place", lambda self, token, maybe: True)


def takes_the_slot_of_an_archived_entry(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogEntries, "is_archived", lambda self, version: False)


def reads_what_is_in_the_slot_of_an_archived_entry(patch: pytest.MonkeyPatch) -> None:
    def fetch(self, version):
        found = self._fetch(self.key(version), version)
        return found or self._fetch(self._archived_key(version), version)

    patch.setattr(LogEntries, "fetch", fetch)


def drops_a_record_of_each_file(patch: pytest.MonkeyPatch) -> None:
    hand_over = TopicFetcher._hand_over

    def careless(self, live, positions, parts):
        parts = [
            replace(part, arrow=part.rows.slice(0, max(1, len(part) - 1)), plain=None)
            for part in parts
        ]
        hand_over(self, live, positions, parts)

    patch.setattr(TopicFetcher, "_hand_over", careless)


def shares_an_index_without_the_files_of_the_newest_entry(patch: pytest.MonkeyPatch) -> None:
    """Readers see the version that the process has read, and the files of the version before it."""
    publish = TopicFollower._publish

    def hasty(self, end_poll):
        before = self.progress.view
        publish(self, end_poll)
        view = self.progress.view
        if before.version >= 0 and view is not before:
            self.progress = replace(self.progress, view=replace(view, index=before.index))

    patch.setattr(TopicFollower, "_publish", hasty)


def removes_orphans_without_voiding(patch: pytest.MonkeyPatch) -> None:
    """A writer can commit its file after it was removed as an orphan."""
    patch.setattr(
        MaintenanceLog, "raise_min_upload_version", lambda self, min_upload_version, deadline: None
    )


def merges_files_already_merged(patch: pytest.MonkeyPatch) -> None:
    """Checks neither whether the files are still in the topic, nor whether readers accept the
    entry.
    """

    def rewrite(self, inputs, outputs, deadline, before):
        def actions(state, head, now_ms):
            return [*rewritten(inputs, outputs, now_ms), renewed(head, now_ms)]

        self._maintain("OPTIMIZE", actions, deadline)

    patch.setattr(MaintenanceLog, "rewrite", rewrite)
    patch.setattr(view, "check_files", lambda *arguments: None)
    patch.setattr(view, "check_rewrite", lambda *arguments: None)


def cleans_up_the_log_without_grace(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogCleanup, "_is_old_enough", lambda self, start: start > 0)


def starts_partitions_after_a_file_that_stays(patch: pytest.MonkeyPatch) -> None:
    def too_far(index, head, *arguments):
        trimmed = plan_retention(index, head, *arguments)
        if trimmed is None:
            return None
        following = (
            index.find(partition, start) for partition, start in enumerate(trimmed.start_offsets)
        )
        starts = tuple(
            start if batch is None else batch.next_offset
            for start, batch in zip(trimmed.start_offsets, following, strict=True)
        )
        return replace(trimmed, start_offsets=starts)

    patch.setattr(plan, "plan_retention", too_far)


def loses_a_record_of_each_merge(patch: pytest.MonkeyPatch) -> None:
    read = Rewriter._read

    def careless(self, *arguments):
        rows = yield from read(self, *arguments)
        return {
            partition: [part.slice(0, max(1, part.num_rows - 1)) for part in parts]
            for partition, parts in rows.items()
        }

    patch.setattr(Rewriter, "_read", careless)


def leaves_a_batch_out_of_each_merge(patch: pytest.MonkeyPatch) -> None:
    """Readers refuse that, so it must not even be written."""
    cut = file_compaction.cut
    patch.setattr(file_compaction, "cut", lambda files, *others: cut(files[:-1], *others))


def merges_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    read = Rewriter._read

    def backwards(self, *arguments):
        rows = yield from read(self, *arguments)
        return {partition: parts[::-1] for partition, parts in rows.items()}

    patch.setattr(Rewriter, "_read", backwards)


def keeps_the_oldest_record_of_each_key(patch: pytest.MonkeyPatch) -> None:
    def oldest(table: pa.Table) -> pa.Table:
        grouped = (
            table.filter(pc.is_valid(table["key"]))
            .group_by("key", use_threads=False)
            .aggregate([("offset", "min")])
        )
        return pa.table({"key": grouped["key"], "offset": grouped["offset_min"]})

    def kept(part, newest, *, drop_tombstones):
        known = newest[part.partition]
        at = pc.index_in(
            part.rows.column("_key"),
            value_set=known.column("key").combine_chunks(),
            skip_nulls=True,
        )
        first = known.column("offset").combine_chunks().take(at)
        return part.rows.filter(
            pc.fill_null(pc.less_equal(part.rows.column("_offset"), first), True)
        )

    patch.setattr(key_compaction, "_newest_of_each", oldest)
    patch.setattr(key_compaction, "_kept", kept)


def ignores_files_committed_by_peers(patch: pytest.MonkeyPatch) -> None:
    """Passes a slot without reading its files, and commits them again."""
    after = WriterHistory.after
    patch.setattr(
        WriterHistory, "after", lambda self, entry: after(self, replace(entry, actions=()))
    )


def commits_shared_files_from_before_its_first_entry(patch: pytest.MonkeyPatch) -> None:
    takable = WriterHistory.takable

    def careless(self, *arguments):
        return takable(replace(self, since=-1), *arguments)

    patch.setattr(WriterHistory, "takable", careless)


def commits_revoked_shared_files(patch: pytest.MonkeyPatch) -> None:
    takable = WriterHistory.takable

    def careless(self, *arguments):
        writers = PersistentMap[WriterSeen]()
        for writer, seen in self.writers.items():
            writers.put(writer, seen._replace(committed=-1), None)
        return takable(replace(self, writers=writers), *arguments)

    patch.setattr(WriterHistory, "takable", careless)


def commits_shared_files_out_of_order(patch: pytest.MonkeyPatch) -> None:
    takable = WriterHistory.takable

    def careless(self, shared, *arguments):
        return takable(self, [replace(file, follows=False) for file in shared], *arguments)

    patch.setattr(WriterHistory, "takable", careless)


def commits_voided_shared_files(patch: pytest.MonkeyPatch) -> None:
    takable = WriterHistory.takable
    patch.setattr(
        WriterHistory,
        "takable",
        lambda self, shared, head, *more: takable(
            self, shared, replace(head, min_upload_version=0), *more
        ),
    )


def commits_shared_files_of_a_deleted_topic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shared_files, "topic_mark", lambda _: bytes(8))


def reports_an_open_shared_file_as_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Committer, "_unknown", lambda self, batch, error: Unavailable("no answer in time")
    )


def reports_a_failure_without_revoking(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicLog, "revoke", lambda self, segments, deadline: self._outcome(segments))


def reports_a_failure_though_a_peer_committed(patch: pytest.MonkeyPatch) -> None:
    revoke = TopicLog.revoke

    def careless(self, *arguments):
        revoke(self, *arguments)
        return CommittedByPeer({}, frozenset())

    patch.setattr(TopicLog, "revoke", careless)


def revokes_under_another_writer(patch: pytest.MonkeyPatch) -> None:
    revoke = TopicLog.revoke

    def careless(self, *arguments):
        mine, self.writer = self.writer, "0" * 16
        try:
            return revoke(self, *arguments)
        finally:
            self.writer = mine

    patch.setattr(TopicLog, "revoke", careless)


def shares_a_file_without_its_predecessor(patch: pytest.MonkeyPatch) -> None:
    """Of several that are uploaded at once, any may be added first."""
    place = InFlightBatches.place
    patch.setattr(
        InFlightBatches, "place", lambda self, as_of, follows: place(self, as_of, follows=False)
    )


def shares_a_file_behind_an_unshared_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProduceBatch, "others_will_see", True)


def commits_its_own_file_twice(patch: pytest.MonkeyPatch) -> None:
    """Commits a file that a peer has committed already."""
    patch.setattr(TopicLog, "committed_by_peer", lambda self, segments: None)
    patch.setattr(view, "check_files", lambda *arguments: None)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutation", "kind", "last"),
    fifth(
        [
            (ignores_files_committed_by_peers, "no faults", 3),
            (commits_shared_files_from_before_its_first_entry, "suspensions", 9),
            (commits_revoked_shared_files, "lossy network", 3),
            (commits_shared_files_out_of_order, "lossy network", 14),
            (commits_voided_shared_files, "maintenance", 3),
            (commits_shared_files_of_a_deleted_topic, "mixed", 17),
            (reports_an_open_shared_file_as_failure, "lossy network", 2),
            (reports_a_failure_without_revoking, "lossy network", 2),
            (reports_a_failure_though_a_peer_committed, "lossy network", 6),
            (revokes_under_another_writer, "lossy network", 3),
            (shares_a_file_without_its_predecessor, "lossy network", 3),
            (shares_a_file_behind_an_unshared_one, "lossy network", 32),
            (commits_its_own_file_twice, "no faults", 4),
        ]
    ),
)
def test_a_broken_group_commit_is_noticed(mutation, kind, last, monkeypatch):
    expect_notice(
        mutation, last, lambda seed: contended(seed, kind, eager_group_commit=True), monkeypatch
    )


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutation", "last"),
    fifth(
        [
            (removes_orphans_without_voiding, 221),
            (merges_files_already_merged, 3),
            (cleans_up_the_log_without_grace, 1),
            (starts_partitions_after_a_file_that_stays, 0),
            (loses_a_record_of_each_merge, 0),
            (leaves_a_batch_out_of_each_merge, 3),
            (merges_in_the_wrong_order, 4),
            (keeps_the_oldest_record_of_each_key, 1),
        ]
    ),
)
def test_broken_maintenance_is_noticed(mutation, last, monkeypatch):
    expect_notice(mutation, last, lambda seed: contended(seed, "maintenance"), monkeypatch)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutation", "kind", "last"),
    fifth(
        [
            (does_not_recognise_its_own_entry, "lossy network", 14),
            (reports_an_unknown_outcome_as_failure, "lossy network", 16),
            (trusts_slots_reopened_by_clean_up, "suspensions", 0),
        ]
    ),
)
def test_a_broken_client_is_noticed(mutation, kind, last, monkeypatch):
    expect_notice(mutation, last, lambda seed: contended(seed, kind), monkeypatch)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutation", "last"),
    [(takes_the_slot_of_an_archived_entry, 0), (reads_what_is_in_the_slot_of_an_archived_entry, 0)],
)
def test_a_broken_log_archive_is_noticed(mutation, last, monkeypatch):
    expect_notice(mutation, last, archiving, monkeypatch)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutation", "last"),
    fifth(
        [
            (drops_a_record_of_each_file, 4),
            (shares_an_index_without_the_files_of_the_newest_entry, 42),
        ]
    ),
)
def test_a_broken_reader_is_noticed(mutation, last, monkeypatch):
    expect_notice(
        mutation, last, lambda seed: replace(contended(seed, "no faults"), readers=4), monkeypatch
    )


def archiving(seed: int) -> Scenario:
    """Many writers of a partition on a store with a log archive, some of which are suspended."""
    scenario = contended(seed, "maintenance")
    return replace(
        scenario,
        remote=False,
        maintenance=replace(scenario.maintenance, listed_bytes_max=200, archive_interval=1),
    )


def contended(seed: int, kind: str, *, eager_group_commit: bool = False) -> Scenario:
    """Many writers of one partition, and no group."""
    scenario = replace(scenario_of(seed, kind), partitions=1, producers=4, members=0)
    if eager_group_commit:
        scenario = replace(
            scenario, eager_group_commit=True, recreates=kind == "mixed", batch_messages=2
        )
    if kind == "maintenance":
        scenario = replace(scenario, maintainers=2, orphan=True)
    return scenario

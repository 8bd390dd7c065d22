"""The simulation finds what it is for: no deltaq with a defect in the way of a record gets through it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from deltaq.consumer.tail import TopicTail
from deltaq.consumer.topic_fetcher import TopicFetcher
from deltaq.delta.actions import CommitInfo
from deltaq.delta.log import DeltaLog
from deltaq.delta.slot_proof import SlotProof
from deltaq.errors import Unavailable
from deltaq.groups import log as group_log
from deltaq.groups import state as group_state
from deltaq.groups.membership import Membership
from deltaq.maintenance import file_compaction, key_compaction, plan
from deltaq.maintenance.log_cleanup import LogCleanup
from deltaq.maintenance.retention import plan_retention
from deltaq.maintenance.rewrite import Rewriter
from deltaq.producer.batches import InFlightBatches, ProduceBatch
from deltaq.producer.committer import Committer
from deltaq.testing.simulation.scheduler import SimulationError
from deltaq.topics import log as topic_log
from deltaq.topics import shared_files
from deltaq.topics.log import CommittedByPeer, TopicLog
from deltaq.topics.rewrites import renewed, rewritten
from deltaq.topics.shared_files import SharedFileTracker
from tests.simulation.play import play
from tests.simulation.script import Script, script_of

SEEDS_MAX = 200
"""Any change in what is drawn plays other stories. Most mutations are noticed by the tenth seed, some only by the
eightieth. So each has the seed that noticed it last, which is tried first."""


def does_not_recognise_its_own_entry(patch: pytest.MonkeyPatch) -> None:
    """Takes a slot that refused it for somebody else's, and writes the same files again."""
    look = DeltaLog._read_slot

    def blind(self, *arguments):
        entry = look(self, *arguments)
        return (
            None
            if entry is None
            else replace(entry, info=replace(entry.info or CommitInfo("", 0, ""), txn_id="somebody else"))
        )

    patch.setattr(DeltaLog, "_read_slot", blind)


def calls_what_is_unknown_a_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeltaLog, "_gave_up", lambda self, cause, token, maybe: Unavailable("no answer in time"))


def believes_slots_that_clean_up_has_re_opened(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlotProof, "holds_for", lambda self, version: True)
    # The check of the entry before a commit notices most freed slots, too.
    patch.setattr(DeltaLog, "_check_in_place", lambda self, token, *, maybe: None)


def forgets_a_record_of_each_file(patch: pytest.MonkeyPatch) -> None:
    hand_over = TopicFetcher._hand_over

    def careless(self, live, cursors, parts):
        parts = [replace(part, rows=part.rows.slice(0, max(1, part.rows.num_rows - 1))) for part in parts]
        hand_over(self, live, cursors, parts)

    patch.setattr(TopicFetcher, "_hand_over", careless)


def does_not_publish_what_it_read_before_an_error(patch: pytest.MonkeyPatch) -> None:
    """Keeps in mind the version it has read, not the one it has made known."""
    advance = TopicTail.advance

    def forgetful(self, *, needs_end):
        try:
            return advance(self, needs_end=needs_end)
        except Unavailable:
            self.published = self.log.version
            raise

    patch.setattr(TopicTail, "advance", forgetful)


def lets_anybody_commit(patch: pytest.MonkeyPatch) -> None:
    """Commits of members that were put out of the group count too."""
    commit_actions = group_state.commit_actions

    def lax(state, head, group, member_id, *rest):
        return commit_actions(state, head, group, next(iter(head.members), None), *rest)

    patch.setattr(group_log, "commit_actions", lax)
    # A member that was silent for its session ends it by itself, so its commits would not reach the log.
    patch.setattr(Membership, "_is_silent", lambda self: False)
    patch.setattr(Membership, "session", property(lambda self: self._session))


def sweeps_without_a_word(patch: pytest.MonkeyPatch) -> None:
    """Whoever has uploaded a file that is swept up commits it all the same."""
    patch.setattr(TopicLog, "raise_min_upload_version", lambda self, min_upload_version, deadline: None)


def merges_what_others_have_merged(patch: pytest.MonkeyPatch) -> None:
    """Does not look whether the files are still there, nor whether the entry is one that readers take."""

    def rewrite(self, inputs, outputs, deadline, before):
        def actions(state, head, now_ms):
            return [*rewritten(inputs, outputs, now_ms), renewed(head, now_ms)]

        self._maintain("OPTIMIZE", actions, deadline)

    patch.setattr(TopicLog, "rewrite", rewrite)
    patch.setattr(topic_log, "check_files", lambda *arguments: None)
    patch.setattr(topic_log, "check_rewrite", lambda *arguments: None)


def cleans_the_log_up_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogCleanup, "_is_old_enough", lambda self, folder, start: start > 0)


def lets_partitions_start_behind_a_file_that_stays(patch: pytest.MonkeyPatch) -> None:
    def too_far(index, head, *arguments):
        trimmed = plan_retention(index, head, *arguments)
        if trimmed is None:
            return None
        following = (index.find(partition, start) for partition, start in enumerate(trimmed.start_offsets))
        starts = tuple(
            start if batch is None else batch.next_offset
            for start, batch in zip(trimmed.start_offsets, following, strict=True)
        )
        return replace(trimmed, start_offsets=starts)

    patch.setattr(plan, "plan_retention", too_far)


def loses_a_record_of_each_merge(patch: pytest.MonkeyPatch) -> None:
    read = Rewriter._read

    def careless(self, *arguments):
        rows = read(self, *arguments)
        return {
            partition: [part.slice(0, max(1, part.num_rows - 1)) for part in parts] for partition, parts in rows.items()
        }

    patch.setattr(Rewriter, "_read", careless)


def leaves_a_batch_out_of_each_merge(patch: pytest.MonkeyPatch) -> None:
    """Readers refuse that, so it must not even be written."""
    cut = file_compaction.cut
    patch.setattr(file_compaction, "cut", lambda files, *others: cut(files[:-1], *others))


def merges_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    read = Rewriter._read
    patch.setattr(Rewriter, "_read", lambda self, *all: {n: parts[::-1] for n, parts in read(self, *all).items()})


def keeps_the_oldest_record_of_each_key(patch: pytest.MonkeyPatch) -> None:
    def oldest(table: pa.Table) -> pa.Table:
        grouped = (
            table.filter(pc.is_valid(table["key"])).group_by("key", use_threads=False).aggregate([("offset", "min")])
        )
        return pa.table({"key": grouped["key"], "offset": grouped["offset_min"]})

    def kept(part, newest, *, drop_tombstones):
        known = newest[part.partition]
        at = pc.index_in(part.rows.column("_key"), value_set=known.column("key").combine_chunks(), skip_nulls=True)
        first = known.column("offset").combine_chunks().take(at)
        return part.rows.filter(pc.fill_null(pc.less_equal(part.rows.column("_offset"), first), True))

    patch.setattr(key_compaction, "_newest_of_each", oldest)
    patch.setattr(key_compaction, "_kept", kept)


def does_not_read_what_others_took_along(patch: pytest.MonkeyPatch) -> None:
    """Goes past a slot without a look at the files in it, and takes them along again."""
    note = SharedFileTracker.note
    patch.setattr(SharedFileTracker, "note", lambda self, entry: note(self, replace(entry, actions=())))


def takes_along_what_was_there_before_its_knowledge_begins(patch: pytest.MonkeyPatch) -> None:
    takable = SharedFileTracker.takable

    def careless(self, *arguments):
        since, self.since = self.since, -1
        found = list(takable(self, *arguments))
        self.since = since
        return found

    patch.setattr(SharedFileTracker, "takable", careless)


def takes_along_what_its_writer_has_given_up(patch: pytest.MonkeyPatch) -> None:
    note = SharedFileTracker.note

    def careless(self, entry):
        note(self, entry)
        self._committed.clear()

    patch.setattr(SharedFileTracker, "note", careless)


def takes_along_what_follows_something_else(patch: pytest.MonkeyPatch) -> None:
    takable = SharedFileTracker.takable

    def careless(self, offers, *arguments):
        return takable(self, [replace(offer, follows=False) for offer in offers], *arguments)

    patch.setattr(SharedFileTracker, "takable", careless)


def takes_along_what_a_sweep_has_voided(patch: pytest.MonkeyPatch) -> None:
    takable = SharedFileTracker.takable
    patch.setattr(
        SharedFileTracker,
        "takable",
        lambda self, offers, head, *more: takable(self, offers, replace(head, min_upload_version=0), *more),
    )


def takes_along_what_was_meant_for_an_earlier_life(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shared_files, "topic_mark", lambda _: bytes(8))


def calls_what_others_may_commit_a_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "_unknown", lambda self, flight, error: Unavailable("no answer in time"))


def calls_a_failure_what_it_has_not_withdrawn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicLog, "revoke", lambda self, segments, deadline: self._outcome(segments))


def calls_a_failure_what_others_added_before_it_was_withdrawn(patch: pytest.MonkeyPatch) -> None:
    withdraw = TopicLog.revoke

    def careless(self, *arguments):
        withdraw(self, *arguments)
        return CommittedByPeer({}, frozenset())

    patch.setattr(TopicLog, "revoke", careless)


def withdraws_in_the_name_of_somebody_else(patch: pytest.MonkeyPatch) -> None:
    withdraw = TopicLog.revoke

    def careless(self, *arguments):
        mine, self.writer = self.writer, "0" * 16
        try:
            return withdraw(self, *arguments)
        finally:
            self.writer = mine

    patch.setattr(TopicLog, "revoke", careless)


def does_not_say_that_something_comes_before(patch: pytest.MonkeyPatch) -> None:
    """Of several that are uploaded at once, any may be added first."""
    place = InFlightBatches.place
    patch.setattr(InFlightBatches, "place", lambda self, as_of, follows: place(self, as_of, follows=False))


def offers_what_is_behind_something_that_others_do_not_see(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProduceBatch, "others_will_see", True)


def does_not_recognise_its_own_file(patch: pytest.MonkeyPatch) -> None:
    """Commits a file that somebody else has committed already."""
    patch.setattr(TopicLog, "committed_by_peer", lambda self, segments: None)
    patch.setattr(topic_log, "check_files", lambda *arguments: None)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutation", "kind", "last"),
    [
        (does_not_read_what_others_took_along, "all goes well", 0),
        (takes_along_what_was_there_before_its_knowledge_begins, "sleepers", 5),
        (takes_along_what_its_writer_has_given_up, "storm", 3),
        (takes_along_what_follows_something_else, "storm", 2),
        (takes_along_what_a_sweep_has_voided, "upkeep", 72),
        (takes_along_what_was_meant_for_an_earlier_life, "a bit of all", 3),
        (calls_what_others_may_commit_a_failure, "storm", 3),
        (calls_a_failure_what_it_has_not_withdrawn, "storm", 3),
        (calls_a_failure_what_others_added_before_it_was_withdrawn, "storm", 6),
        (withdraws_in_the_name_of_somebody_else, "storm", 3),
        (does_not_say_that_something_comes_before, "storm", 2),
        (offers_what_is_behind_something_that_others_do_not_see, "storm", 209),
        (does_not_recognise_its_own_file, "all goes well", 0),
    ],
)
def test_a_group_commit_that_does_not_get_through(mutation, kind, last, monkeypatch):
    expect_notice(mutation, last, lambda seed: crowd(seed, kind, company=True), monkeypatch)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutation", "last"),
    [
        (sweeps_without_a_word, 3),
        (merges_what_others_have_merged, 0),
        (cleans_the_log_up_at_once, 1),
        (lets_partitions_start_behind_a_file_that_stays, 0),
        (loses_a_record_of_each_merge, 0),
        (leaves_a_batch_out_of_each_merge, 1),
        (merges_in_the_wrong_order, 0),
        (keeps_the_oldest_record_of_each_key, 0),
    ],
)
def test_maintenance_that_does_not_get_through(mutation, last, monkeypatch):
    expect_notice(mutation, last, lambda seed: crowd(seed, "upkeep"), monkeypatch)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutation", "kind", "last"),
    [
        (does_not_recognise_its_own_entry, "storm", 6),
        (calls_what_is_unknown_a_failure, "storm", 16),
        (believes_slots_that_clean_up_has_re_opened, "sleepers", 5),
        (forgets_a_record_of_each_file, "all goes well", 0),
        (does_not_publish_what_it_read_before_an_error, "storm", 8),
    ],
)
def test_a_deltaq_that_does_not_get_through(mutation, kind, last, monkeypatch):
    expect_notice(mutation, last, lambda seed: crowd(seed, kind), monkeypatch)


@pytest.mark.timeout(900)
def test_a_group_whose_commits_anybody_makes_does_not_get_through(monkeypatch):
    def members(seed: int) -> Script:
        # Of one partition, one of whom oversleeps: nobody else makes the play any longer.
        return replace(script_of(seed, "sleepers"), partitions=1, producers=1, readers=0, members=4, maintainers=0)

    expect_notice(lets_anybody_commit, 8, members, monkeypatch)


def crowd(seed: int, kind: str, *, company: bool = False) -> Script:
    """Many who write to one partition, and members of whom somebody is always there to be fenced."""
    script = replace(script_of(seed, kind), partitions=1, producers=4, members=3)
    if company:
        script = replace(script, company=True, members=0, lives=kind == "a bit of all", batch_messages=2)
    if kind == "upkeep":
        script = replace(script, members=0, maintainers=2, orphan=True)
    return script


def expect_notice(
    mutation: Callable[[pytest.MonkeyPatch], None],
    last: int,
    script: Callable[[int], Script],
    patch: pytest.MonkeyPatch,
) -> None:
    """Some seed notices the mutation, and nothing without it."""
    mutation(patch)
    logging.disable(logging.CRITICAL)
    try:
        noticed = next((seed for seed in (last, *range(SEEDS_MAX)) if problems(seed, script(seed))), None)
        assert noticed is not None, f"{SEEDS_MAX} seeds did not notice"
        patch.undo()
        assert not problems(noticed, script(noticed)), f"seed {noticed} is not about the mutation"
    finally:
        logging.disable(logging.NOTSET)


def problems(seed: int, script: Script) -> str:
    try:
        return play(seed, script).problems
    except (SimulationError, AssertionError) as error:
        return str(error)

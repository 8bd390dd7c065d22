"""One hand-made history per anomaly, found by its name and no other; and histories that must not alarm.

The partition is T unless a test says otherwise. Every call takes one second on the clock.
"""

from __future__ import annotations

import pytest

from deltaq.clock import SystemClock
from deltaq.testing.checker import check_history, report
from deltaq.testing.history import History, Invocation, Partition

T = ("t", 0)
U = ("t", 1)
X = ("x", 0)


class TickingClock(SystemClock):
    """Every look at it takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now


class Story(History):
    """A history told in short sentences."""

    def __init__(self) -> None:
        super().__init__(TickingClock())

    def sends(self, process: str, value: object, offset: int | None = None, at: Partition = T) -> None:
        self.send(process, at[0], value).ok(partition=at[1], offset=offset)

    def log(self, *values: object, at: Partition = T) -> None:
        """The values are acknowledged at the offsets 0, 1, 2, ..."""
        for offset, value in enumerate(values):
            self.sends("producer", value, offset, at)

    def polls(
        self, process: str, *records: tuple[int, object], at: Partition = T, tail: tuple[Partition, ...] = ()
    ) -> None:
        self.poll(process).ok([(*at, offset, value) for offset, value in records], at_tail=tail)

    def commits(self, process: str, position: int, group: str = "g", at: Partition = T) -> None:
        self.commit(process, group, {at: position}).ok()

    def names(self, **options: object) -> list[str]:
        """The names of all anomalies; each also makes a readable line."""
        found = check_history(self.operations, **options)  # type: ignore[arg-type]
        assert all(anomaly.name in report(found) for anomaly in found)
        return [anomaly.name for anomaly in found]


def test_a_history_in_which_all_is_well_has_no_anomaly():
    story = Story()
    story.log("a", "b", "c")
    story.assign("c1", {T: 0}, group="g")
    story.polls("c1", (0, "a"), (1, "b"))
    story.commits("c1", 2)
    story.polls("c1", (2, "c"), tail=(T,))
    story.unassign("c1", [T])
    story.assign("c2", [T], group="g")
    story.polls("c2", (2, "c"), tail=(T,))
    story.commits("c2", 3)
    assert story.names(drained=True) == []
    assert report(check_history(story.operations)) == "no anomalies"


# What was sent, and what of it was read


def test_an_acknowledged_value_that_a_consumer_passed_and_nobody_read_is_lost():
    story = Story()
    story.log("a", "b", "c")
    story.assign("c1", {T: 0})
    story.polls("c1", (0, "a"))
    story.polls("c1", (2, "c"))
    assert story.names() == ["lost-write", "poll-skip"]


def test_values_below_the_highest_that_was_read_are_lost_once_all_was_drained():
    """The offset of c is only known from the poll."""
    story = Story()
    story.sends("p1", "a", 0)
    story.sends("p1", "b", 1)
    story.sends("p1", "d", 3)
    story.send("p2", "t", "c").info()
    story.polls("c1", (2, "c"))
    assert story.names() == []
    assert story.names(drained=True) == ["lost-write", "lost-write", "unseen"]


def test_a_value_whose_offset_another_took_over_is_lost():
    story = Story()
    story.log("a")
    story.sends("p1", "b", 0)
    story.polls("c1", (0, "b"))
    assert story.names() == ["inconsistent-offsets", "lost-write"]


def test_a_value_that_only_an_aborted_transaction_read_is_not_delivered():
    story = Story()
    story.log("a", "b")
    story.begin_transaction("c1")
    story.polls("c1", (0, "a"))
    story.abort_transaction("c1").ok()
    story.polls("c2", (1, "b"))
    assert story.names(drained=True) == ["lost-write"]


def test_a_value_that_was_acknowledged_and_never_read_is_unseen_by_the_end_only():
    story = Story()
    story.log("a", "b")
    story.polls("c1", (0, "a"))
    assert story.names() == []
    assert story.names(drained=True) == ["unseen"]


def test_a_value_of_unknown_place_that_was_acknowledged_and_never_read_is_unseen():
    story = Story()
    story.send("p1", "t", "a").ok()
    assert story.names(drained=True) == ["unseen"]


def test_what_retention_or_compaction_may_remove_is_neither_lost_nor_unseen_nor_skipped():
    story = Story()
    story.log("a", "b", "c")
    story.assign("c1", {T: 0})
    story.polls("c1", (2, "c"))
    assert "lost-write" in story.names(drained=True)
    assert story.names(drained=True, expendable={"a", "b"}) == []
    assert story.names(drained=True, expendable={"a"}) == ["lost-write", "poll-skip"]


def test_a_value_that_is_acknowledged_at_one_offset_and_read_at_another_is_a_duplicate():
    story = Story()
    story.sends("p1", "a", 1)
    story.send("p2", "t", "b").info()
    story.polls("c1", (2, "b"), (3, "a"))
    assert story.names(drained=True) == ["duplicate"]


def test_a_value_in_two_partitions_is_a_duplicate():
    story = Story()
    story.send("p1", "t", "a").info()
    story.polls("c1", (0, "a"))
    story.polls("c1", (0, "a"), at=U)
    assert story.names() == ["duplicate"]


def test_every_value_of_two_confused_offsets_is_a_duplicate():
    story = Story()
    for value in range(10):
        story.sends(f"p{value}", value, 0)
        story.polls(f"c{value}", (1, value))
    assert story.names() == ["inconsistent-offsets"] * 2 + ["duplicate"] * 10


def test_the_offset_of_a_failed_send_is_no_place():
    story = Story()
    story.sends("p1", "a", 1)
    story.begin_transaction("p2")
    story.sends("p2", "b", 2)
    story.abort_transaction("p2").ok()
    story.polls("c1", (11, "a"), (12, "b"))
    assert story.names() == ["duplicate", "aborted-read"]


def test_two_values_acknowledged_at_one_offset_are_inconsistent():
    story = Story()
    story.sends("p1", 641, 537)
    story.sends("p2", 645, 537)
    assert story.names() == ["inconsistent-offsets"]


def test_a_send_of_unknown_outcome_conflicts_only_if_it_is_proven_to_have_happened():
    story = Story()
    story.begin_transaction("p1")
    story.send("p1", "t", 1).info(partition=0, offset=0)
    story.send("p1", "t", -1).info()
    story.commit_transaction("p1").info()
    story.sends("p2", 2, 0)
    assert story.names() == []
    story.polls("c1", (5, -1), at=U)
    assert story.names() == ["inconsistent-offsets"]


def test_reading_the_value_of_a_failed_send_is_an_aborted_read():
    story = Story()
    story.send("p1", "t", "a").fail("no")
    story.polls("c1", (0, "a"))
    assert story.names() == ["aborted-read"]


@pytest.mark.parametrize("end", ["abort", "abort-unknown", "commit-fails", "never", "crash", "next"])
def test_reading_the_value_of_a_transaction_that_did_not_commit_is_an_aborted_read(end: str):
    story = Story()
    story.begin_transaction("p1")
    story.sends("p1", "a")
    match end:
        case "abort":
            story.abort_transaction("p1").ok()
        case "abort-unknown":
            story.abort_transaction("p1").info()
        case "commit-fails":
            story.commit_transaction("p1").fail("fenced")
        case "crash":
            story.crash("p1")
        case "next":
            story.begin_transaction("p1")
            story.commit_transaction("p1").ok()
    assert story.names(drained=True) == []
    story.polls("c1", (0, "a"))
    assert story.names(drained=True) == ["aborted-read"]


def test_a_transaction_that_reads_its_own_value_reads_it_too_early():
    story = Story()
    story.begin_transaction("p1")
    story.sends("p1", "a", 0)
    story.polls("p1", (0, "a"))
    story.commit_transaction("p1").ok()
    assert story.names() == ["precommitted-read"]


def test_a_value_that_anybody_reads_before_its_transaction_is_asked_to_commit_is_read_too_early():
    story = Story()
    story.begin_transaction("p1")
    story.sends("p1", "a")
    story.polls("c1", (0, "a"))
    story.commit_transaction("p1").ok()
    assert story.names() == ["precommitted-read"]


def test_a_value_read_while_its_transaction_commits_is_no_anomaly():
    story = Story()
    story.begin_transaction("p1")
    story.sends("p1", "a")
    committing = story.commit_transaction("p1")
    story.polls("c1", (0, "a"))
    committing.ok()
    assert story.names(drained=True) == []


def test_a_value_that_nobody_sent_is_found():
    story = Story()
    story.polls("c1", (0, "changed"))
    story.polls("c2", (0, "changed"))
    assert story.names() == ["unsent-read"]


def test_a_value_that_is_read_before_it_was_sent_is_found():
    story = Story()
    story.polls("c1", (0, "a"))
    story.log("a")
    assert story.names() == ["unsent-read"]


def test_a_send_of_unknown_outcome_may_appear_once_or_never():
    story = Story()
    story.send("p1", "t", "a").info("timed out")
    story.send("p1", "t", "b").info("timed out")
    story.send("p1", "t", "c")
    story.polls("c1", (0, "b"))
    assert story.names(drained=True) == []
    story.polls("c2", (0, "b"), (1, "b"))
    assert story.names(drained=True) == ["duplicate"]


def test_a_transaction_of_unknown_outcome_is_torn_if_only_a_part_of_it_is_ever_read():
    story = Story()
    story.begin_transaction("p1")
    story.sends("p1", "a")
    story.sends("p1", "b", at=U)
    story.commit_transaction("p1").info("timed out")
    assert story.names(drained=True) == []
    story.polls("c1", (0, "a"))
    assert story.names() == []
    assert story.names(drained=True) == ["torn-transaction"]


def test_a_transaction_is_torn_if_a_part_is_passed_over():
    """The offset that an unknown transaction had been given counts once a part of it was read."""
    story = Story()
    story.begin_transaction("p1")
    story.sends("p1", "a")
    story.send("p1", "t", "b").info(partition=1, offset=0)
    story.commit_transaction("p1").info("timed out")
    story.send("p2", "t", "c").info()
    story.assign("c2", {U: 0})
    story.polls("c2", (1, "c"), at=U)
    assert story.names(gaps=True) == []
    story.polls("c1", (0, "a"))
    assert story.names(gaps=True) == ["torn-transaction", "poll-skip"]


def test_a_transaction_is_torn_if_the_tail_is_claimed_without_a_part_of_it():
    story = Story()
    story.begin_transaction("p1")
    story.sends("p1", "a")
    story.send("p1", "t", "b").ok(partition=1)
    committing = story.commit_transaction("p1")
    story.polls("c1", (0, "a"))
    story.assign("c2", {U: 0})
    story.polls("c2", at=U, tail=(U,))
    story.polls("c2", (0, "b"), at=U, tail=(U,))
    committing.ok()
    assert story.names(drained=True) == ["torn-transaction"]


def test_a_committed_transaction_of_which_a_part_is_missing_is_torn_and_the_part_lost():
    story = Story()
    story.begin_transaction("p1")
    story.sends("p1", "a", 0)
    story.sends("p1", "b", 0, at=U)
    story.commit_transaction("p1").ok()
    story.polls("c1", (0, "a"))
    assert story.names(drained=True) == ["unseen", "torn-transaction"]


def test_a_commit_that_is_tried_again_after_an_unknown_outcome_counts_by_its_last():
    story = Story()
    story.begin_transaction("p1")
    story.sends("p1", "a", 0)
    story.commit_transaction("p1").info()
    story.commit_transaction("p1").ok()
    story.polls("c1", (0, "a"))
    assert story.names(drained=True) == []


def test_a_value_that_is_sent_twice_makes_a_history_unusable():
    story = Story()
    story.send("p1", "t", "a").fail()
    story.sends("p1", "a")
    with pytest.raises(ValueError, match="unique"):
        check_history(story.operations)


# The order of sends


def test_a_process_whose_later_value_lies_first_sent_out_of_order():
    story = Story()
    story.sends("p1", "c", 3)
    story.sends("p1", "a", 1)
    assert story.names() == ["nonmonotonic-send"]


def test_the_order_of_sends_counts_even_if_the_first_was_never_acknowledged():
    story = Story()
    story.send("p1", "t", "a").info("timed out")
    story.send("p1", "t", "b").info("timed out")
    story.polls("c1", (0, "b"), (1, "a"))
    assert story.names() == ["nonmonotonic-send"]


def test_sends_of_two_processes_or_before_and_after_a_crash_have_no_order():
    story = Story()
    story.sends("p1", "b", 1)
    story.sends("p2", "a", 0)
    story.sends("p1", "d", 3)
    story.crash("p1")
    story.sends("p1", "c", 2)
    assert story.names() == []


def test_a_transaction_whose_later_value_lies_first_has_sent_out_of_order():
    story = Story()
    story.begin_transaction("p1")
    story.send("p1", "t", "d").info()
    story.send("p1", "t", "b").info()
    story.commit_transaction("p1").ok()
    story.sends("p2", "c", 1)
    story.polls("c1", (0, "b"), (1, "c"), (2, "d"))
    assert story.names(isolated_writes=False) == ["int-nonmonotonic-send"]


def test_another_record_between_two_of_a_transaction_is_found_unless_it_is_allowed():
    """The place of c is known from the poll only."""
    story = Story()
    story.begin_transaction("p1")
    story.sends("p1", "a", 1)
    story.sends("p1", "c")
    story.commit_transaction("p1").ok()
    story.send("p2", "t", "b").info()
    story.polls("c1", (2, "b"), (3, "c"))
    assert story.names() == ["int-send-skip"]
    assert story.names(isolated_writes=False) == []


# The order of polls


def test_a_consumer_that_passes_over_a_record_skips():
    story = Story()
    story.log("a", "b", "c")
    story.polls("c1", (0, "a"))
    story.polls("c2", (1, "b"))
    story.polls("c1", (2, "c"))
    assert story.names() == ["poll-skip"]


def test_an_offset_of_which_nobody_knows_anything_is_a_gap_only_where_there_may_be_gaps():
    story = Story()
    story.send("p1", "t", "a").info()
    story.send("p1", "t", "b").info()
    story.send("p1", "t", "c").info()
    story.polls("c1", (0, "a"))
    story.polls("c1", (2, "b"), (4, "c"))
    assert story.names() == ["poll-skip", "int-poll-skip"]
    assert story.names(gaps=True) == []
    story.sends("p2", "new", 3)
    assert story.names(gaps=True) == ["int-poll-skip", "lost-write"][::-1]


def test_a_consumer_that_goes_back_is_not_monotonic():
    story = Story()
    story.log("a", "b", "c")
    story.polls("c1", (0, "a"), (1, "b"))
    story.polls("c1", (1, "b"), (2, "c"))
    assert story.names(drained=True) == ["nonmonotonic-poll"]


def test_a_poll_that_passes_over_a_record_skips_within():
    story = Story()
    story.log("a", "b", "c")
    story.polls("c1", (0, "a"), (2, "c"))
    story.polls("c2", (1, "b"))
    assert story.names() == ["int-poll-skip"]


def test_a_poll_that_goes_back_is_not_monotonic_within():
    story = Story()
    story.log("a", "b", "c")
    story.polls("c1", (2, "c"), (0, "a"))
    story.polls("c2", (1, "b"), (2, "c"), (2, "c"))
    assert story.names() == ["int-nonmonotonic-poll"] * 2


def test_polls_of_one_transaction_count_as_one():
    story = Story()
    story.log("a", "b", "c", "d")
    story.begin_transaction("c1")
    story.polls("c1", (0, "a"))
    story.polls("c1", (2, "c"))
    story.polls("c1", (1, "b"))
    story.commit_transaction("c1").ok()
    story.polls("c1", (3, "d"))
    assert story.names() == ["int-poll-skip", "int-nonmonotonic-poll", "poll-skip"]


@pytest.mark.parametrize("how", ["assign", "seek", "crash", "subscribe", "other process"])
def test_a_jump_is_legal_after_what_makes_it_so(how: str):
    story = Story()
    story.log("a", "b", "c", "d")
    story.polls("c1", (1, "b"))
    match how:
        case "assign":
            story.assign("c1", {T: 0, U: 0})
        case "seek":
            story.seek("c1", {T: None})
        case "crash":
            story.crash("c1")
        case "subscribe":
            story.subscribe("c1", "g")
    story.polls("c2" if how == "other process" else "c1", (0, "a"))
    assert story.names() == []


def test_assigning_or_seeking_another_partition_does_not_make_a_jump_legal():
    story = Story()
    story.log("a", "b", "c")
    story.polls("c1", (0, "a"))
    story.assign("c1", {U: 0})
    story.seek("c1", {X: 0})
    story.polls("c1", (2, "c"))
    assert story.names(expendable={"b"}) == []
    assert story.names() == ["lost-write", "poll-skip"]


def test_a_consumer_that_does_not_start_where_it_was_told_is_found():
    story = Story()
    story.log("a", "b", "c", "d")
    story.polls("c9", (0, "a"), (1, "b"), (2, "c"), (3, "d"))
    story.assign("c1", {T: 1})
    story.polls("c1", (2, "c"))
    story.seek("c1", {T: 1})
    story.polls("c1", (0, "a"))
    assert story.names() == ["poll-skip", "nonmonotonic-poll"]


def test_what_an_aborted_transaction_read_must_be_read_again():
    story = Story()
    story.log(*range(6))
    story.polls("c1", (0, 0))
    for undo in (story.abort_transaction, story.commit_transaction):
        story.begin_transaction("c1")
        story.polls("c1", (1, 1), (2, 2))
        undo("c1").fail() if undo == story.commit_transaction else undo("c1").ok()
    story.begin_transaction("c1")
    story.polls("c1", (1, 1), (2, 2))
    story.commit_transaction("c1").ok()
    assert story.names() == []
    story.begin_transaction("c1")
    story.polls("c1", (3, 3), (4, 4))
    story.abort_transaction("c1").ok()
    story.polls("c1", (5, 5))
    story.polls("c2", *enumerate(range(6)))
    assert story.names() == ["poll-skip"]


def test_after_a_transaction_of_unknown_outcome_both_ways_are_right():
    for start in (1, 2):
        story = Story()
        story.log(*range(4))
        story.polls("c1", (0, 0))
        story.begin_transaction("c1")
        story.polls("c1", (1, 1))
        story.commit_transaction("c1").info()
        story.polls("c1", *((offset, offset) for offset in range(start, 4)))
        assert story.names(drained=True) == []


def test_a_poll_at_the_tail_without_what_was_acknowledged_before_lags():
    story = Story()
    story.assign("c1", {T: 0})
    story.polls("c1", tail=(T,))
    polling = story.poll("c1")
    story.log("a")
    polling.ok(at_tail=[T])
    assert story.names() == []
    story.polls("c1", tail=(T,))
    assert story.names() == ["realtime-lag"]


def test_a_poll_at_the_tail_without_what_somebody_had_read_lags():
    story = Story()
    story.send("p1", "t", "a").info()
    story.assign("c1", {T: 0})
    story.polls("c1", tail=(T,))
    story.polls("c2", (0, "a"))
    story.polls("c1", tail=(T,))
    assert story.names() == ["realtime-lag"]


def test_a_topic_that_was_created_again_is_another_one():
    story = Story()
    story.log("a", "b", at=("t#1", 0))
    story.assign("c1", {("t#1", 0): 0})
    story.polls("c1", (0, "a"), (1, "b"), at=("t#1", 0))
    story.log("c", at=("t#2", 0))
    story.polls("c1", (0, "c"), at=("t#2", 0))
    assert story.names(drained=True) == []


# Groups


def group_that_has_read(*values: object, committed: int) -> Story:
    """c1 of group g owns T, has read the values and committed."""
    story = Story()
    story.log(*values)
    story.assign("c1", [T], group="g")
    story.polls("c1", *enumerate(values))
    story.commits("c1", committed)
    return story


@pytest.mark.parametrize(("start", "names"), [(1, ["nonmonotonic-poll"]), (2, []), (3, ["poll-skip"])])
def test_the_next_owner_starts_at_the_committed_position(start: int, names: list[str]):
    story = group_that_has_read("a", "b", "c", "d", committed=2)
    story.crash("c1")
    story.assign("c2", [T], group="g")
    story.polls("c2", (start, "abcd"[start]))
    assert story.names() == names


@pytest.mark.parametrize(("start", "names"), [(1, ["nonmonotonic-poll"]), (2, []), (3, ["poll-skip"])])
def test_the_next_owner_is_judged_by_where_it_says_that_it_starts(start: int, names: list[str]):
    story = group_that_has_read("a", "b", "c", "d", committed=2)
    story.crash("c1")
    story.assign("c2", {T: start}, group="g")
    story.polls("c2", (start, "abcd"[start]))
    assert story.names() == names


def test_a_commit_of_unknown_outcome_leaves_the_next_owner_two_starts():
    for start, names in ((1, ["nonmonotonic-poll"]), (2, []), (4, []), (5, ["poll-skip"])):
        story = group_that_has_read(*"abcdef", committed=2)
        story.commit("c1", "g", {T: 4}).info()
        story.crash("c1")
        story.assign("c2", [T], group="g")
        story.polls("c2", (start, "abcdef"[start]))
        assert story.names() == names, start


def test_without_a_commit_a_member_starts_at_the_beginning_or_says_that_it_does_not():
    story = Story()
    story.log("a", "b")
    story.polls("c9", (0, "a"))
    story.assign("c1", [T], group="g")
    story.seek("c1", {T: 1})
    story.polls("c1", (1, "b"))
    assert story.names() == []
    story.assign("c2", [T], group="h")
    story.polls("c2", (1, "b"))
    assert story.names() == ["poll-skip"]


def test_a_group_that_committed_what_it_never_read_skips():
    story = group_that_has_read("a", "b", committed=4)
    story.sends("producer", "c", 2)
    story.sends("producer", "d", 3)
    story.sends("producer", "e", 4)
    story.polls("c9", (2, "c"), (3, "d"))
    story.crash("c1")
    story.assign("c2", [T], group="g")
    story.polls("c2", (4, "e"))
    assert story.names() == ["poll-skip"]


def test_a_poll_that_never_ended_may_have_handed_out_what_was_committed():
    story = group_that_has_read("a", "b", committed=2)
    story.sends("producer", "c", 2)
    story.sends("producer", "d", 3)
    story.poll("c1")
    story.commits("c1", 3)
    story.crash("c1")
    story.assign("c2", [T], group="g")
    story.polls("c2", (3, "d"))
    assert story.names() == []


def test_positions_that_a_transaction_commits_count_when_it_does():
    for ending, start in (("ok", 2), ("fail", 0)):
        story = Story()
        story.log("a", "b", "c")
        story.assign("c1", [T], group="g")
        story.begin_transaction("c1")
        story.polls("c1", (0, "a"), (1, "b"))
        story.commits("c1", 2)
        end: Invocation = story.commit_transaction("c1")
        end.ok() if ending == "ok" else end.fail()
        story.crash("c1")
        for member, first in (("c2", start), ("c3", 2 - start)):
            story.assign(member, [T], group="g")
            story.polls(member, *((offset, "abc"[offset]) for offset in range(first, 3)))
        assert story.names() == (["nonmonotonic-poll"] if ending == "ok" else ["poll-skip"])


def test_a_committed_position_that_moves_back_is_found():
    story = group_that_has_read("a", "b", "c", committed=3)
    story.commits("c1", 2)
    assert story.names() == ["commit-regression"]


def test_a_committed_position_may_move_back_when_it_is_meant_to():
    story = group_that_has_read("a", "b", "c", committed=3)
    story.commit("admin", "g", {T: 1}, is_reset=True).ok()
    story.commits("c1", 3)
    story.seek("c1", {T: 0})
    story.polls("c1", (0, "a"))
    story.commits("c1", 1)
    assert story.names() == []


def test_commits_that_overlap_have_no_order():
    story = group_that_has_read("a", "b", "c", committed=1)
    first = story.commit("c1", "g", {T: 3})
    second = story.commit("c1", "g", {T: 2})
    first.ok()
    second.ok()
    assert story.names() == []


def test_a_committed_position_that_is_looked_up_and_too_low_moved_back():
    story = group_that_has_read("a", "b", "c", committed=2)
    story.committed("c1", "g").ok(positions={T: 2})
    story.commit("c1", "g", {T: 3}).info()
    story.committed("c1", "g").ok(positions={T: 3})
    story.committed("c1", "g").ok(positions={T: 2})
    assert story.names() == []
    story.committed("c1", "g").ok(positions={T: None})
    assert story.names() == ["commit-regression"]


def test_two_owners_that_both_commit_are_found():
    story = group_that_has_read("a", "b", committed=1)
    story.assign("c2", [T], group="g")
    story.polls("c2", (1, "b"))
    story.commits("c2", 2)
    assert story.names() == []
    story.commits("c1", 2)
    assert story.names() == ["two-owners"]


def test_an_owner_that_was_replaced_and_is_refused_is_no_anomaly():
    story = group_that_has_read("a", "b", committed=1)
    story.assign("c2", [T], group="g")
    story.polls("c2", (1, "b"))
    story.commits("c2", 2)
    story.commit("c1", "g", {T: 2}).fail("fenced")
    story.commit("c1", "g", {T: 2}).info("timed out")
    story.unassign("c1", [T])
    assert story.names() == []


def test_owners_of_other_partitions_or_groups_do_not_disturb_each_other():
    story = group_that_has_read("a", "b", committed=1)
    story.assign("c2", [T], group="h")
    story.assign("c3", [U], group="g")
    story.polls("c2", (0, "a"))
    story.commits("c2", 1, group="h")
    story.commits("c3", 0, at=U)
    story.commits("c1", 2)
    assert story.names() == []


# Transactions that come before each other


def test_transactions_that_lie_in_opposite_orders_in_two_partitions_are_a_cycle_unless_it_is_allowed():
    story = Story()
    for process in ("p1", "p2"):
        story.begin_transaction(process)
    story.sends("p1", "a", 0)
    story.sends("p1", "b", 1, at=U)
    story.sends("p2", "c", 1)
    story.sends("p2", "d", 0, at=U)
    for process in ("p1", "p2"):
        story.commit_transaction(process).ok()
    assert story.names() == ["G0"]
    assert story.names(isolated_writes=False) == []


def test_the_order_of_transactions_in_two_topics_may_differ():
    story = Story()
    for process in ("p1", "p2"):
        story.begin_transaction(process)
    story.sends("p1", "a", 0)
    story.sends("p1", "b", 1, at=X)
    story.sends("p2", "c", 1)
    story.sends("p2", "d", 0, at=X)
    for process in ("p1", "p2"):
        story.commit_transaction(process).ok()
    assert story.names() == []


def test_transactions_that_have_read_each_other_are_a_cycle():
    story = Story()
    for process in ("p1", "p2"):
        story.begin_transaction(process)
    story.sends("p1", "a", 0)
    story.sends("p2", "b", 0, at=X)
    one, two = story.poll("p1"), story.poll("p2")
    ends = [story.commit_transaction(process) for process in ("p1", "p2")]
    for end in ends:
        end.ok()
    one.ok([(*X, 0, "b")])
    two.ok([(*T, 0, "a")])
    assert story.names(isolated_writes=False) == ["G1c"]


def test_a_transaction_that_has_read_another_and_lies_before_it_is_in_a_cycle_unless_it_is_allowed():
    story = Story()
    for process in ("p1", "p2"):
        story.begin_transaction(process)
    story.sends("p1", "a", 0)
    story.sends("p1", "c", 2, at=U)
    committing = story.commit_transaction("p1")
    story.polls("p2", (0, "a"))
    story.sends("p2", "b", 1, at=U)
    for end in (committing, story.commit_transaction("p2")):
        end.ok()
    assert story.names() == ["G1c"]
    assert story.names(isolated_writes=False) == []


def test_a_chain_of_transactions_that_read_one_another_is_no_cycle():
    story = Story()
    story.log(0)
    for number in range(1, 50):
        story.begin_transaction("p1")
        story.polls("p1", (number - 1, number - 1))
        story.sends("p1", number, number)
        story.commit_transaction("p1").ok()
    story.polls("p1", (49, 49))
    assert story.names(drained=True) == []


# Records and positions of one transaction


@pytest.mark.parametrize(
    ("ending", "is_read", "now", "names"),
    [
        ("info", True, 2, []),
        ("info", True, 1, ["torn-transaction"]),
        ("info", False, 1, []),
        ("info", False, 2, ["torn-transaction"]),
        ("abort", False, 1, []),
        ("abort", False, 2, ["torn-transaction"]),
    ],
)
def test_records_and_positions_of_a_transaction_take_effect_together(
    ending: str, is_read: bool, now: int, names: list[str]
):
    story = group_that_has_read("a", "b", committed=1)
    story.begin_transaction("c1")
    story.commits("c1", 2)
    story.sends("c1", "output", at=X)
    if ending == "abort":
        story.abort_transaction("c1").ok()
    else:
        story.commit_transaction("c1").info()
    if is_read:
        story.polls("c2", (0, "output"), at=X)
    story.committed("c2", "g").ok(positions={T: now})
    assert story.names(drained=True) == names

"""The order of what one process sends, of what it polls, and of transactions: each breach is found
by its name.
"""

from __future__ import annotations

import pytest

from tests.checker import check_history
from tests.doubles.stories import Story, T, U, X


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


def test_an_unseen_offset_is_a_gap_only_where_gaps_are_allowed():
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


@pytest.mark.parametrize(
    "how", ["assign", "unassign", "unassign all", "seek", "crash", "subscribe", "other process"]
)
def test_a_jump_is_legal_after_what_makes_it_so(how: str):
    story = Story()
    story.log("a", "b", "c", "d")
    story.polls("c1", (1, "b"))
    match how:
        case "assign":
            story.assign("c1", {T: 0, U: 0})
        case "unassign":
            story.unassign("c1", [T])
        case "unassign all":
            story.unassign("c1")
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
    story.unassign("c1", [U])
    story.polls("c1", (2, "c"))
    assert story.names(expendable={"b"}) == []
    assert story.names() == ["lost-write", "poll-skip"]


def test_a_consumer_that_starts_at_a_wrong_offset_is_found():
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


def test_a_poll_at_the_tail_without_records_read_by_others_lags():
    story = Story()
    story.send("p1", "t", "a").info()
    story.assign("c1", {T: 0})
    story.polls("c1", tail=(T,))
    story.polls("c2", (0, "a"))
    story.polls("c1", tail=(T,))
    assert story.names() == ["realtime-lag"]


@pytest.mark.parametrize("records_assignments", [True, False])
def test_a_member_at_the_tail_that_has_read_nothing_lags_unless_its_group_has_committed_that_far(
    records_assignments: bool,
):
    story = Story()
    story.log("a")
    if records_assignments:
        story.assign("c1", [T], group="g")
    else:
        story.subscribe("c1", "g")
    story.polls("c1", tail=(T,))
    assert story.names() == ["realtime-lag"]
    story.crash("c1")
    if records_assignments:
        story.assign("c1", [T], group="g")
    else:
        story.subscribe("c1", "g")
    story.commits("c2", 1)  # c1 may read this position
    story.polls("c1", tail=(T,))
    assert story.names() == ["realtime-lag"]  # the one of before


def test_a_topic_that_was_created_again_is_another_one():
    story = Story()
    story.log("a", "b", at=("t#1", 0))
    story.assign("c1", {("t#1", 0): 0})
    story.polls("c1", (0, "a"), (1, "b"), at=("t#1", 0))
    story.log("c", at=("t#2", 0))
    story.polls("c1", (0, "c"), at=("t#2", 0))
    assert story.names(drained=True) == []


# Transactions that come before each other


def test_transactions_that_lie_in_opposite_orders_in_two_partitions_are_a_cycle_unless_it_is_allowed():  # noqa: E501
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


def test_a_cycle_is_shown_step_by_step_without_what_does_not_belong_to_it():
    """p1 read p3, p2 read p1, p3 read p2; p4 read them all."""
    story = Story()
    names = ("p1", "p2", "p3")
    for process in (*names, "p4"):
        story.begin_transaction(process)
    for offset, process in enumerate(names):
        story.sends(process, process, offset, at=X)
    polls = [story.poll(process) for process in (*names, "p4")]
    ends = [story.commit_transaction(process) for process in (*names, "p4")]
    for end in ends:
        end.ok()
    everything = [(*X, offset, process) for offset, process in enumerate(names)]
    for poll, read in zip(
        polls, (everything[2:], everything[:1], everything[1:2], everything), strict=True
    ):
        poll.ok(read)
    (cycle,) = check_history(story.operations)
    assert cycle.name == "G1c"
    steps = cycle.what.removeprefix("each of them comes before the other: ").split("; ")
    assert sorted(steps) == [
        "'p1' at x[0]@0 was read by p2",
        "'p2' at x[0]@1 was read by p3",
        "'p3' at x[0]@2 was read by p1",
    ]
    assert {operation.process for operation in cycle.operations} == set(names)


def test_a_transaction_that_has_read_another_and_lies_before_it_is_in_a_cycle_unless_it_is_allowed():  # noqa: E501
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

"""Where a member of a group starts, what is committed, and who may commit: each breach is found by
its name.
"""

from __future__ import annotations

import pytest

from tests.checker.history import Invocation
from tests.doubles.stories import Story, T, U, X, group_that_has_read


@pytest.mark.parametrize(
    ("start", "names"), [(1, ["nonmonotonic-poll"]), (2, []), (3, ["poll-skip"])]
)
def test_the_next_owner_starts_at_the_committed_position(start: int, names: list[str]):
    story = group_that_has_read("a", "b", "c", "d", committed=2)
    story.crash("c1")
    story.assign("c2", [T], group="g")
    story.polls("c2", (start, "abcd"[start]))
    assert story.names() == names


@pytest.mark.parametrize(
    ("start", "names"), [(1, ["nonmonotonic-poll"]), (2, []), (3, ["poll-skip"])]
)
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


def test_the_poll_in_which_a_member_joins_counts_as_read_by_the_group():
    story = Story()
    story.log("a", "b", "c", "d")
    story.assign("c1", [T], group="g")
    story.polls("c1", (0, "a"))
    story.commits("c1", 1)
    story.crash("c1")
    joining = story.poll("c2")
    story.assign("c2", [T], group="g")
    joining.ok([(*T, 1, "b"), (*T, 2, "c")])
    story.commits("c2", 3)
    story.crash("c2")
    story.assign("c3", [T], group="g")
    story.polls("c3", (3, "d"))
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


def test_a_member_that_gets_its_partition_back_starts_where_it_committed():
    story = group_that_has_read("a", "b", "c", committed=2)
    story.unassign("c1", [T])
    story.assign("c1", [T], group="g")
    story.polls("c1", (2, "c"))
    assert story.names() == []


@pytest.mark.parametrize(
    ("start", "names"),
    [(1, ["nonmonotonic-poll"]), (2, []), (4, []), (5, ["lost-write", "poll-skip"])],
)
@pytest.mark.parametrize("commits", [(2, 4), (4, 2)])
def test_a_commit_between_assignment_and_first_read_leaves_two_starts(
    commits: tuple[int, int], start: int, names: list[str]
):
    story = Story()
    story.log(*"abcdef")
    story.assign("c1", [T], group="g")
    story.polls("c1", *enumerate("abcd"))
    story.commits("c1", commits[0])
    story.assign("c2", [T], group="g")
    story.commit("c1", "g", {T: commits[1]}, is_reset=True).ok()
    story.polls("c2", *((offset, "abcdef"[offset]) for offset in range(start, 6)))
    assert story.names() == names


@pytest.mark.parametrize(("start", "names"), [(0, []), (2, []), (3, ["poll-skip"])])
def test_a_subscriber_that_does_not_say_what_it_was_assigned_starts_no_later_than_committed(
    start: int, names: list[str]
):
    story = group_that_has_read(*"abcd", committed=2)
    story.subscribe("c2", "g")
    story.polls("c2", (start, "abcd"[start]))
    assert story.names() == names


@pytest.mark.parametrize(("process", "is_reset"), [("admin", True), ("admin", False), ("c1", True)])
def test_a_group_may_be_moved_on_beyond_what_it_has_read(process: str, is_reset: bool):
    story = Story()
    story.log(*"abcd")
    story.polls("c9", *enumerate("abcd"))
    story.assign("c1", [T], group="g")
    story.polls("c1", (0, "a"))
    story.commit(process, "g", {T: 3}, is_reset=is_reset).ok()
    story.crash("c1")
    story.assign("c2", [T], group="g")
    story.polls("c2", (3, "d"))
    assert story.names() == []


@pytest.mark.parametrize("to", [3, None])
def test_a_member_that_seeks_takes_its_group_with_it(to: int | None):
    story = Story()
    story.log(*"abcd")
    story.polls("c9", *enumerate("abcd"))
    story.assign("c1", [T], group="g")
    story.polls("c1", (0, "a"))
    story.seek("c1", {T: to})
    story.commits("c1", 3)
    story.crash("c1")
    story.assign("c2", [T], group="g")
    story.polls("c2", (3, "d"))
    assert story.names() == []


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


@pytest.mark.parametrize("ending", ["crash", "next transaction", "none"])
@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_commit_of_unknown_outcome_is_possible_until_it_is_resolved(
    ending: str, in_transaction: bool
):
    """c1 does not learn what became of its commit of 4; then c2 commits 3; may c3 start at 4?"""
    story = group_that_has_read(*"abcde", committed=2)
    if in_transaction:
        story.begin_transaction("c1")
        story.commits("c1", 4)
        story.commit_transaction("c1").info()
    else:
        story.commit("c1", "g", {T: 4})
    if ending == "crash":
        story.crash("c1")
    elif ending == "next transaction":
        story.begin_transaction("c1")
    story.assign("c2", [T], group="g")
    story.polls("c2", (2, "c"))
    story.commits("c2", 3)
    story.unassign("c2")
    story.assign("c3", [T], group="g")
    story.polls("c3", (4, "e"))
    is_resolved = ending == ("next transaction" if in_transaction else "crash")
    assert story.names() == (["poll-skip"] if is_resolved else [])


def test_what_is_committed_while_positions_are_looked_up_may_be_in_the_answer_or_not():
    for answer, names in ((1, ["commit-regression"]), (2, []), (3, [])):
        story = group_that_has_read("a", "b", "c", committed=2)
        asking = story.committed("c9", "g")
        story.commits("c1", 3)
        asking.ok(positions={T: answer})
        assert story.names() == names


def test_a_position_may_go_back_only_once_for_each_seek_and_not_in_the_next_life_of_a_process():
    story = group_that_has_read("a", "b", "c", committed=3)
    story.seek("c1", {T: 0})
    story.commits("c1", 2)
    story.commits("c1", 1)
    story.seek("c1", {T: 0})
    story.crash("c1")
    story.commits("c1", 0)
    assert story.names() == ["commit-regression"] * 2


def test_a_commit_may_go_back_to_where_another_of_unknown_outcome_went_on_purpose():
    for position, names in ((1, []), (0, ["commit-regression"])):
        story = group_that_has_read("a", "b", "c", committed=3)
        story.commit("admin", "g", {T: 1}, is_reset=True).info()
        story.commits("c1", position)
        assert story.names() == names


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


def test_a_partition_without_a_living_owner_for_longer_than_the_bound_is_found():
    # C1 begins and ends its last operation at 9 and 10 s.
    story = group_that_has_read("a", "b", committed=1)
    story.crash("c1")
    for _ in range(4):
        story.poll("c9").ok()
    story.assign("c2", [T], group="g")  # at 20 s
    assert story.names() == []
    assert story.names(unowned_s=10) == []
    assert story.names(unowned_s=9) == ["unowned"]


def test_an_owner_that_stands_still_does_not_count_until_it_shows_life_again():
    story = group_that_has_read("a", "b", committed=1)
    for _ in range(4):
        story.poll("c9").ok()
    story.commits("c1", 2)  # after 9 s without a sign
    assert story.names(unowned_s=9) == []
    assert story.names(unowned_s=8.5) == ["unowned"]


def test_another_owner_fills_the_time_in_which_the_first_one_stands_still():
    story = group_that_has_read("a", "b", committed=1)
    story.poll("c9").ok()
    story.assign("c2", [T], group="g")
    for _ in range(4):
        story.poll("c2").ok()
    story.unassign("c1", [T])
    assert story.names(unowned_s=4) == []


def test_no_owner_is_missed_before_the_first_and_after_the_last_one():
    story = Story()
    for _ in range(4):
        story.poll("c9").ok()
    story.assign("c1", [T], group="g")
    story.unassign("c1", [T])
    for _ in range(4):
        story.poll("c9").ok()
    assert story.names(unowned_s=2) == []


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

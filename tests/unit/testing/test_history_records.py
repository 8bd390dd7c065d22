"""One hand-made history per anomaly of what was sent and read, found by its name; and what must not
alarm.
"""

from __future__ import annotations

import pytest

from tests.checker import check_history, report
from tests.doubles.stories import Story, T, U


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


def test_an_acknowledged_value_that_was_passed_and_never_read_is_lost():
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


def test_an_anomaly_shows_the_operations_that_prove_it():
    story = Story()
    story.send("p1", "t", "a").info("timed out")
    story.assign("c1", {T: 0})
    story.polls("c2", (0, "a"))
    story.polls("c1", tail=(T,))
    sent, _, read, lagging = story.operations
    (anomaly,) = check_history(story.operations)
    assert (anomaly.name, anomaly.partition, anomaly.operations) == (
        "realtime-lag",
        T,
        (sent, read, lagging),
    )
    text = report([anomaly] * 7)
    assert text.startswith(
        "7 realtime-lag\nrealtime-lag in t[0]: 'a' was at 0 before the poll began"
    )
    assert all(str(operation) in text for operation in (sent, read, lagging))
    assert text.endswith("... and 2 more realtime-lag")


def test_two_values_acknowledged_at_one_offset_are_inconsistent():
    story = Story()
    story.sends("p1", 641, 537)
    story.sends("p2", 645, 537)
    assert story.names() == ["inconsistent-offsets"]
    story.sends("p2", 646, 537)
    assert story.names() == ["inconsistent-offsets", "nonmonotonic-send"]


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


@pytest.mark.parametrize(
    "end", ["abort", "abort-unknown", "commit-fails", "never", "crash", "next"]
)
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


def test_a_value_read_before_the_commit_of_its_transaction_is_too_early():
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


def test_a_value_that_was_never_sent_is_found():
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

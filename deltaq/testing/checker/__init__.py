"""Finds in a recorded history what a log must never do.

`check_history` explains what it looks for. It is pure, and takes about as long as the history is: some seconds for
100,000 sends and as many polls.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable

from deltaq.testing.checker.anomaly import Anomaly, report
from deltaq.testing.checker.cycles import cycles
from deltaq.testing.checker.facts import Rules, gather
from deltaq.testing.checker.halves import halves
from deltaq.testing.checker.owners import two_owners
from deltaq.testing.checker.polls import Replay
from deltaq.testing.checker.sends import disordered_sends, mixed_sends
from deltaq.testing.checker.visibility import misplaced, missing, out_of_turn
from deltaq.testing.history import Operation

__all__ = ["Anomaly", "check_history", "report"]


def check_history(
    operations: Iterable[Operation],
    *,
    drained: bool = False,
    gaps: bool = False,
    isolated_writes: bool = True,
    expendable: Collection[Hashable] = (),
) -> list[Anomaly]:
    """Everything that is wrong with a history; `report` makes it a text. An empty list: nothing that it shows.

    Args:
        operations: what `History.operations` or `load_history` returns, in any order.
        drained: at the end, with all faults off, every partition was read from its beginning to its tail. Tells what is
            lost from what is only late.
        gaps: offsets may be missing without a reason. False, as deltaq promises it: they are 0, 1, 2, … in every
            partition, so a missing one is a record passed over, even if nobody knows of it. True for Kafka, whose
            transactions leave gaps.
        isolated_writes: a transaction's records lie together in each partition, and transactions come in the same order
            in all partitions of a topic. False for Kafka.
        expendable: values that retention or compaction may have removed: they may be missing, and passed over.

    What was sent, and what of it was read:
        lost-write: a value was acknowledged and never read, though a consumer passed its offset; if drained, though
            any consumer read a later offset.
        unseen: a value was acknowledged and not read by the end. Only if drained.
        duplicate: a value is at two offsets, of one partition or two. Reading one offset again is no duplicate.
        inconsistent-offsets: two values are at the same offset.
        aborted-read: a value was read whose send failed, or whose transaction failed or was never asked to commit.
        precommitted-read: a value was read before its transaction was asked to commit, or in that transaction.
        unsent-read: a value was read that nobody sent, or before it was sent.
        torn-transaction: a part of a transaction was read and another is missing: for good, as for `lost-write` and
            `unseen`, or when a poll claims the tail of another partition of the same topic (a transaction's records in
            one topic become visible at once). Or its records took effect and the positions that it commits did not, or
            the other way round, as `committed` says after all commits.

    The order of sends:
        nonmonotonic-send: a process sent one value after another into a partition, and it lies before that.
        int-nonmonotonic-send: the same, within one transaction.
        int-send-skip: another's record lies between two of a transaction. Only with `isolated_writes`.

    The order of polls, by process and partition. `assign`, `seek`, `crash` and `subscribe` begin anew:
        poll-skip: a poll passed over records, or a group's member started beyond what its group had committed, or
            beyond what its group had read.
        nonmonotonic-poll: a poll went back, or a group's member started before the committed position.
        int-poll-skip, int-nonmonotonic-poll: the same within one poll, or between polls of one transaction.
        realtime-lag: a poll claimed the tail of a partition but misses what had been acknowledged, or read by anybody,
            before it began.

    Transactions that come before each other, in circles:
        G0: in one partition of a topic the one lies first, in another the other. Only with `isolated_writes`.
        G1c: each has read what the other sent; or, with `isolated_writes`, it has read what the other sent, which comes
            after it in a partition of the same topic.

    Groups:
        commit-regression: a committed position moved back, without `is_reset` or a `seek` of the process that
            committed; or a committed position that was looked up is below what it must be.
        two-owners: two members owned a partition at the same time, and commits of both were accepted meanwhile.
            Overlap alone is no anomaly, as a member that was replaced may not know it yet.

    An `info` send may be found once or never. Values at several places or with unknown places are left out where the
    order of places matters.

    Raises:
        ValueError: a value was sent twice.
    """
    rules = Rules(drained, gaps, isolated_writes, frozenset(expendable))
    facts = gather(operations, rules)
    replay = Replay(facts)
    jumps = list(replay.anomalies())
    found = [*misplaced(facts), *out_of_turn(facts), *missing(facts, replay.passages)]
    found += disordered_sends(facts)
    if isolated_writes:
        found += mixed_sends(facts)
    return [*found, *jumps, *two_owners(facts), *halves(facts), *cycles(facts)]

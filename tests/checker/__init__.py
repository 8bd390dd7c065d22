"""The history checker: finds lost, duplicated, reordered and skipped records, and broken
transactions, in a history.

`check_history` is pure and documents all anomalies. Its running time grows about linearly with the
history: some seconds for 100,000 sends and as many polls.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable

from tests.checker.anomaly import Anomaly, report
from tests.checker.cycles import cycles
from tests.checker.facts import Rules, gather
from tests.checker.halves import halves
from tests.checker.history import Operation
from tests.checker.owners import two_owners, unowned
from tests.checker.polls import Replay
from tests.checker.sends import disordered_sends, mixed_sends
from tests.checker.visibility import misplaced, missing, out_of_turn

__all__ = ["Anomaly", "check_history", "report"]


def check_history(
    operations: Iterable[Operation],
    *,
    drained: bool = False,
    gaps: bool = False,
    isolated_writes: bool = True,
    expendable: Collection[Hashable] = (),
    unowned_s: float = math.inf,
) -> list[Anomaly]:
    """Return all anomalies in a history; an empty list if there are none. `report` formats them as
    text.

    Args:
        operations: those of `History.operations` or `load_history`, in any order.
        drained: at the end, with all faults off, every partition was read from its beginning to its
            tail. Only then can a lost value be distinguished from a late one.
        gaps: offsets may be missing. False for deltaq, where the offsets of every partition are 0,
            1, 2, …, so a missing one is a skipped record, even if no record with it is known. True
            for Kafka, whose transactions leave gaps.
        isolated_writes: a transaction's records are contiguous in each partition, and transactions
            are in the same order in all partitions of a topic. False for Kafka.
        expendable: values that retention or compaction may have removed. They may be missing and
            may be skipped.
        unowned_s: how long a partition of a group may be without an owner that shows life, between
            its first owner and its last one. Infinite for histories in which owners rest, or in
            which all members leave.

    Values sent and read:
        lost-write: a value was acknowledged but never read, though a consumer read past its offset;
            if `drained`, though any consumer read a later offset.
        unseen: a value was acknowledged but not read by the end. Only if `drained`.
        duplicate: a value is at two offsets, of one partition or two. Reading the same offset again
            is not a duplicate.
        inconsistent-offsets: two values are at the same offset.
        aborted-read: a value was read whose send failed, or whose transaction failed or was never
            asked to commit.
        precommitted-read: a value was read before its transaction was asked to commit, or in that
            transaction.
        unsent-read: a value was read that was never sent, or was read before it was sent.
        torn-transaction: a part of a transaction was read and another part is missing: either for
            good, as in `lost-write` and `unseen`, or from a poll that claims the tail of another
            partition of the same topic (a transaction's records in one topic become visible at
            once). Or only one of its records and its offset commits took effect, according to a
            `committed` query after all commits.

    Order of sends:
        nonmonotonic-send: a process sent one value after another to a partition, but it has the
            lower offset.
        int-nonmonotonic-send: the same, within one transaction.
        int-send-skip: a record of another sender is between two records of a transaction. Only with
            `isolated_writes`.

    Order of polls, by process and partition. `assign`, `seek`, `crash` and `subscribe` begin anew:
        poll-skip: a poll skipped records, or a group member started beyond the group's committed
            position, or beyond what the group had read.
        nonmonotonic-poll: a poll went back, or a group member started before the committed
            position.
        int-poll-skip, int-nonmonotonic-poll: the same within one poll, or between polls of one
            transaction.
        realtime-lag: a poll claimed the tail of a partition, but misses a record that had been
            acknowledged, or read by any process, before the poll began.

    Cycles of transactions:
        G0: two transactions are in one order in one partition of a topic, and in the other order in
            another partition. Only with `isolated_writes`.
        G1c: each has read a record of the other; or, with `isolated_writes`, one has read a record
            of the other, which comes after it in a partition of the same topic.

    Groups:
        commit-regression: a committed position moved back without `is_reset` or a `seek` by the
            process that committed; or a `committed` query returned a position that is too low.
        two-owners: two members owned a partition at the same time, and commits of both were
            accepted during that time. Overlap alone is not an anomaly, since a member that was
            replaced may not know it yet.
        unowned: for longer than `unowned_s`, no owner of a partition began or ended an operation.

    Across the hand-over of a partition these hold together: the next owner starts where the group
    has committed (`poll-skip`, `nonmonotonic-poll`), the former one cannot move that position
    (`two-owners`, `commit-regression`), and there is a next owner in time (`unowned`).

    The value of an `info` send may be found once or never. Values at several or unknown offsets are
    ignored where the order of offsets matters.

    Raises:
        ValueError: a value was sent twice.
    """
    rules = Rules(drained, gaps, isolated_writes, frozenset(expendable), unowned_s)
    facts = gather(operations, rules)
    replay = Replay(facts)
    jumps = list(replay.anomalies())
    found = [*misplaced(facts), *out_of_turn(facts), *missing(facts, replay.read_ranges)]
    found += disordered_sends(facts)
    if isolated_writes:
        found += mixed_sends(facts)
    return [*found, *jumps, *two_owners(facts), *unowned(facts), *halves(facts), *cycles(facts)]

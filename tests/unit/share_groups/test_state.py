"""What a share group knows of a partition, against a model that has a line for each record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.message import AcknowledgeType
from deltaq.names import TransactionKey
from deltaq.share_groups.exchange import PartitionId
from deltaq.share_groups.state import (
    Acknowledgement,
    DeliveryLimit,
    Failure,
    LastDelivery,
    OffsetSpan,
    PendingAcknowledgement,
    PendingTransaction,
    RecordLock,
    RecordState,
    SharePartition,
    Status,
    TakenRange,
    acknowledged,
    chosen,
    not_chosen,
    parse_partition,
    resolved,
    sent,
    taken,
    without_dead_letters,
    without_locks,
    without_removed,
)
from deltaq.share_groups.transaction_acknowledgements import (
    ShareAcknowledgements,
    acknowledged_by,
    pending_transactions,
    sent_partitions,
)

ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
ERRORS = "", "late", "torn"
LIMIT = 3
"""The delivery count limit."""


@dataclass(frozen=True)
class RecordLine:
    """One record in the model."""

    state: str = "new"
    deliveries: int = 0
    lock: tuple[str, int] | None = None
    visible_ms: int = 0
    failure: tuple[int, bool, str] | None = None
    pending: tuple[int, AcknowledgeType, int, str] | None = None


class Model:
    """A line for each offset below 60, changed one by one."""

    def __init__(self, *, has_dead_letters: bool) -> None:
        self.lines = {offset: RecordLine() for offset in range(60)}
        self.has_dead_letters = has_dead_letters

    def end(self, version: int, offset: int, error: str, *, is_rejected: bool) -> None:
        failure = version, is_rejected, error
        self.lines[offset] = (
            RecordLine("archiving", self.lines[offset].deliveries, failure=failure)
            if self.has_dead_letters
            else RecordLine("archived")
        )

    def give_back(self, version: int, offset: int, visible_ms: int = 0, error: str = "") -> None:
        line = self.lines[offset]
        if line.deliveries >= LIMIT:
            self.end(version, offset, error, is_rejected=False)
        else:
            self.lines[offset] = RecordLine("available", line.deliveries, visible_ms=visible_ms)

    def write(self, until: int) -> None:
        for offset, line in self.lines.items():
            if line.failure is not None and line.failure[0] <= until:
                self.lines[offset] = RecordLine("archived")

    def take(
        self,
        lock: tuple[str, int],
        until: int,
        most: int,
        locks: int,
        now: int,
        last: LastDelivery | None,
    ) -> list[int]:
        found: list[int] = []
        undecided = sum(
            line.state in ("available", "acquired", "archiving", "pending")
            for line in self.lines.values()
        )
        for offset, line in self.lines.items():
            is_due = line.state == "available" and line.visible_ms <= now
            is_new = line.state == "new" and undecided < locks
            if len(found) < most and offset < until and (is_due or is_new):
                is_alone = last is not None and line.deliveries + 1 >= last.number
                if is_alone and last is not None and (found or not last.may_be_taken):
                    continue
                undecided += is_new
                self.lines[offset] = RecordLine("acquired", line.deliveries + 1, lock)
                found.append(offset)
                if is_alone:
                    break
        return found

    def decide(
        self, lock: tuple[str, int], offset: int, deliveries: int, kind: AcknowledgeType
    ) -> bool:
        line = self.lines[offset]
        if not self.holds(lock[0], offset, deliveries) or line.pending is not None:
            return False
        self.apply(lock, offset, kind)
        return True

    def holds(self, owner: str, offset: int, deliveries: int) -> bool:
        line = self.lines[offset]
        return line.lock is not None and line.lock[0] == owner and line.deliveries == deliveries

    def send(
        self, number: int, owner: str, offset: int, deliveries: int, kind: AcknowledgeType
    ) -> bool:
        """To the transaction of this number; kinds and errors are those of `apply`."""
        line = self.lines[offset]
        if not self.holds(owner, offset, deliveries):
            return False
        if line.pending is not None:
            return line.pending[0] == number
        about = (offset % 3, ERRORS[offset % 3]) if kind in (RELEASE, REJECT) else (0, "")
        self.lines[offset] = replace(line, state="pending", pending=(number, kind, *about))
        return True

    def resolve(self, version: int, number: int, *, is_committed: bool) -> None:
        for offset, line in self.lines.items():
            if line.pending is not None and line.pending[0] == number:
                if is_committed:
                    self.apply(("", version), offset, line.pending[1])
                else:
                    self.give_back(version, offset)

    def apply(self, lock: tuple[str, int], offset: int, kind: AcknowledgeType) -> None:
        line = self.lines[offset]
        if kind is RENEW:
            self.lines[offset] = replace(line, lock=lock)
        elif kind is RELEASE:
            self.give_back(lock[1], offset, offset % 3, ERRORS[offset % 3])
        elif kind is REJECT:
            self.end(lock[1], offset, ERRORS[offset % 3], is_rejected=True)
        else:
            self.lines[offset] = RecordLine("acknowledged")

    def end_lock(self, version: int, lock: tuple[str, int]) -> None:
        for offset, line in self.lines.items():
            if line.lock == lock and line.pending is None:
                self.give_back(version, offset)

    def remove(self, log_start: int) -> None:
        for offset in range(log_start):
            if self.lines[offset].state in ("new", "available"):
                self.lines[offset] = RecordLine("archived")


def lines(partition: SharePartition) -> dict[int, RecordLine]:
    """The records as the model has them; what is below the start is finished."""
    found = {offset: RecordLine("finished") for offset in range(partition.start)}
    for span in partition.spans:
        status = span.status
        pending = status.pending and (status.pending[0].key.number, *status.pending[1:])
        for offset in range(span.first, span.end):
            found[offset] = RecordLine(
                status.state.name.lower(),
                status.deliveries,
                status.lock,
                status.visible_ms,
                status.failure,
                pending,
            )
    return found | {offset: RecordLine() for offset in range(partition.end, 60)}


def shown(model: Model) -> dict[int, RecordLine]:
    """The model with what is finished before the first other record shown as such."""
    found = dict(model.lines)
    for offset, line in model.lines.items():
        if line.state not in ("acknowledged", "archived"):
            break
        found[offset] = RecordLine("finished")
    return found


def offsets(ranges: Iterable[TakenRange | range]) -> list[int]:
    return [
        offset
        for each in ranges
        for offset in (each if isinstance(each, range) else range(each.first, each.end))
    ]


owners = st.sampled_from(["one", "two"])
small = st.integers(0, 12)
alone = st.none() | st.builds(LastDelivery, st.sampled_from([1, LIMIT]), st.booleans())
steps = st.one_of(
    st.tuples(st.just("take"), owners, st.integers(0, 50), small, small, st.integers(0, 3), alone),
    st.tuples(
        st.just("decide"),
        owners,
        st.lists(
            st.tuples(
                st.integers(0, 45),
                st.integers(1, 12),
                st.integers(1, LIMIT),
                st.sampled_from(AcknowledgeType),
            ),
            max_size=3,
        ),
    ),
    st.tuples(
        st.just("send"),
        owners,
        st.integers(1, 2),
        st.lists(
            st.tuples(
                st.integers(0, 45),
                st.integers(1, 12),
                st.integers(1, LIMIT),
                st.sampled_from([ACCEPT, RELEASE, REJECT]),
            ),
            max_size=3,
        ),
    ),
    st.tuples(st.just("resolve"), st.integers(1, 2), st.booleans()),
    st.tuples(st.just("end"), st.integers(0, 30)),
    st.tuples(st.just("remove"), st.integers(0, 30)),
    st.tuples(st.just("write"), st.integers(0, 30)),
)


def transaction(number: int) -> PendingTransaction:
    return PendingTransaction(TransactionKey(f"id {number}", 5, number), 1_000 * number)


def apart(decisions: Iterable[tuple[int, int, int, AcknowledgeType]]) -> list[Acknowledgement]:
    """Acknowledgements that do not overlap, the first ones of those that do."""
    free: set[int] = set()
    found = []
    for first, length, deliveries, kind in decisions:
        wanted = range(first, first + length)
        if free.isdisjoint(wanted):
            free |= {*wanted}
            # Each offset by itself where they are visible at different times.
            found += [
                Acknowledgement(at, at + 1, deliveries, kind, at % 3, ERRORS[at % 3])
                if kind in (RELEASE, REJECT)
                else Acknowledgement(first, first + length, deliveries, kind)
                for at in (wanted if kind in (RELEASE, REJECT) else [first])
            ]
    return found


@given(st.lists(steps, max_size=25), st.booleans())
def test_a_partition_is_what_the_same_steps_make_of_each_record(
    drawn: list[Any], has_dead_letters: bool
) -> None:
    partition, model = SharePartition(0), Model(has_dead_letters=has_dead_letters)
    locks: list[tuple[str, int]] = []
    for version, (step, *about) in enumerate(drawn):
        limited = DeliveryLimit(LIMIT, version if has_dead_letters else None)
        if step == "take":
            owner, until, most, limit, now, last = about
            lock = RecordLock(owner, version)
            locks.append(lock)
            partition, found = taken(partition, lock, until, most, limit, now, last)
            assert offsets(found) == model.take(lock, until, most, limit, now, last)
            for each in found:
                for offset in range(each.first, each.end):
                    assert model.lines[offset].deliveries == each.deliveries
        elif step == "decide":
            owner, decisions = about
            lock = RecordLock(owner, version)
            locks.append(lock)
            acks = apart(decisions)
            partition, applied = acknowledged(partition, lock, acks, limited)
            decided = {
                offset
                for ack in acks
                for offset in range(ack.first, ack.end)
                if model.decide(lock, offset, ack.deliveries, ack.type)
            }
            assert sorted(offsets(applied)) == sorted(decided)
        elif step == "send":
            owner, number, decisions = about
            acks = apart(decisions)
            partition, applied = sent(partition, owner, acks, transaction(number))
            counting = {
                offset
                for ack in acks
                for offset in range(ack.first, ack.end)
                if model.send(number, owner, offset, ack.deliveries, ack.type)
            }
            assert sorted(offsets(applied)) == sorted(counting)
        elif step == "resolve":
            number, is_committed = about
            key = transaction(number).key
            partition = resolved(partition, key, limited, is_committed=is_committed)
            model.resolve(version, number, is_committed=is_committed)
        elif step == "end" and locks:
            over = locks[about[0] % len(locks)]
            partition = without_locks(partition, {over}.__contains__, limited)
            model.end_lock(version, over)
        elif step == "remove":
            partition = without_removed(partition, about[0])
            model.remove(about[0])
        elif step == "write":
            partition = without_dead_letters(partition, about[0])
            model.write(about[0])
        assert lines(partition) == shown(model)
        assert parse_partition(partition.encoded()) == partition


LOCK = RecordLock("one", 7)
DELIVERIES = DeliveryLimit(LIMIT)
HELD = Status(RecordState.ACQUIRED, 1, LOCK)


def test_a_late_acknowledgement_of_an_earlier_delivery_is_refused() -> None:
    partition = SharePartition(0, (OffsetSpan(0, 2, replace(HELD, deliveries=2)),))
    after, applied = acknowledged(partition, LOCK, [Acknowledgement(0, 2, 1, ACCEPT)], DELIVERIES)
    assert (after, applied) == (partition, [])


def test_records_that_a_worker_does_not_know_yet_are_left_to_others() -> None:
    released = SharePartition(0, (OffsetSpan(0, 4, Status(RecordState.AVAILABLE, 1)),))
    after, found = taken(released, LOCK, 2, 10, 10, 0)
    assert found == [TakenRange(0, 2, 2)]
    assert (after.end, after.undecided) == (4, 4)


WAITING = replace(
    HELD,
    state=RecordState.PENDING,
    pending=PendingAcknowledgement(transaction(1), ACCEPT),
)


def test_a_record_that_was_acknowledged_stays_so_when_its_topic_removes_it() -> None:
    spans = OffsetSpan(0, 1, HELD), OffsetSpan(1, 2, Status(RecordState.ACKNOWLEDGED))
    assert without_removed(SharePartition(0, spans), 2) == SharePartition(0, spans)


def test_a_pending_record_outlasts_its_lock_its_topic_and_other_acknowledgements() -> None:
    partition = SharePartition(0, (OffsetSpan(0, 2, WAITING),))
    assert without_locks(partition, lambda _: True, DELIVERIES) == partition
    assert without_removed(partition, 2) == partition
    accepted = Acknowledgement(0, 2, 1, ACCEPT)
    assert acknowledged(partition, LOCK, [accepted], DELIVERIES) == (partition, [])
    assert sent(partition, "one", [accepted], transaction(2)) == (partition, [])
    assert sent(partition, "one", [accepted], transaction(1)) == (partition, [range(2)])
    assert sent(partition, "two", [accepted], transaction(1)) == (partition, [])
    later = replace(accepted, deliveries=2)
    assert sent(partition, "one", [later], transaction(1)) == (partition, [])
    assert [*partition.locks()] == [LOCK]
    assert partition.undecided == 2


def test_the_pending_records_of_several_partitions_are_those_of_one_transaction() -> None:
    later = PendingAcknowledgement(transaction(1)._replace(time_ms=7_000), REJECT)
    other = PendingAcknowledgement(transaction(2), REJECT)
    partitions = [
        SharePartition(0, (OffsetSpan(0, 2, WAITING),)),
        SharePartition(0, (OffsetSpan(0, 3, replace(WAITING, pending=later)),)),
        SharePartition(0, (OffsetSpan(0, 4, replace(WAITING, pending=other)),)),
    ]
    first = transaction(1).key
    for found in (partitions, [*reversed(partitions)]):
        assert pending_transactions(found) == {first: 1_000, transaction(2).key: 2_000}
    assert acknowledged_by(partitions, first) == {"accept": 2, "reject": 3}


def test_acknowledgements_of_a_partition_that_the_group_does_not_know_are_refused() -> None:
    """An administrator may have deleted the group since."""
    sending = ShareAcknowledgements({PartitionId("t", "id", 0): [Acknowledgement(0, 2, 1, ACCEPT)]})
    assert sent_partitions({}, sending, "one", transaction(1)) is None


def test_only_the_transaction_of_a_pending_record_decides_of_it() -> None:
    partition = SharePartition(0, (OffsetSpan(0, 2, WAITING),))
    for key in (
        transaction(2).key,
        transaction(1).key._replace(epoch=6),
        transaction(1).key._replace(number=2),
    ):
        assert resolved(partition, key, DELIVERIES, is_committed=True) == partition
    assert resolved(partition, transaction(1).key, DELIVERIES, is_committed=True).start == 2


FAILURE = Status(RecordState.ARCHIVING, 2, failure=Failure(7, is_rejected=True))


def test_records_that_await_the_dead_letter_topic_outlast_their_topic() -> None:
    partition = SharePartition(0, (OffsetSpan(0, 2, FAILURE), OffsetSpan(2, 3, HELD)))
    assert without_removed(partition, 5).spans[0] == OffsetSpan(0, 2, FAILURE)
    assert without_dead_letters(partition, 6) == partition
    assert without_dead_letters(partition, 7).start == 2


def test_only_free_records_are_chosen() -> None:
    done, free = Status(RecordState.ARCHIVED), Status(RecordState.AVAILABLE)
    spans = (
        OffsetSpan(0, 1, free),
        OffsetSpan(1, 2, done),
        OffsetSpan(2, 3, FAILURE),
        OffsetSpan(3, 4, HELD),
    )
    topics = {0: "a", 1: "a", 2: "a", 3: "a", 5: "b"}
    after = chosen(SharePartition(0, spans), topics, 9)
    for_a, for_b = (
        Status(RecordState.ARCHIVING, failure=Failure(9, is_rejected=False, error=topic))
        for topic in ("a", "b")
    )
    assert after.spans == (
        OffsetSpan(0, 1, for_a),
        *spans[1:],
        OffsetSpan(4, 5, free),
        OffsetSpan(5, 6, for_b),
    )
    assert [after.is_finished(offset) for offset in range(6)] == [False, True] + 4 * [False]


def test_what_is_given_up_is_what_this_entry_has_chosen() -> None:
    first = chosen(SharePartition(0), dict.fromkeys(range(4), "a"), 8)
    partition = chosen(without_dead_letters(first, 8), {4: "a", 5: "a"}, 9)
    after = not_chosen(partition, {3: 8, 4: 8, 5: 9, 6: 9})
    still = Status(RecordState.ARCHIVING, failure=Failure(9, is_rejected=False, error="a"))
    free = Status(RecordState.AVAILABLE)
    assert after == SharePartition(4, (OffsetSpan(4, 5, still), OffsetSpan(5, 6, free)))


def test_a_million_finished_records_leave_nothing() -> None:
    partition = SharePartition(0)
    for version in range(0, 1_000_000, 50_000):
        lock = RecordLock("one", version)
        partition, _ = taken(partition, lock, 1_000_000, 50_000, 50_000, 0)
        acks = [Acknowledgement(version, version + 50_000, 1, ACCEPT)]
        partition, _ = acknowledged(partition, lock, acks, DELIVERIES)
    assert partition == SharePartition(1_000_000)
    assert partition.encoded() == '{"start":1000000,"owners":[],"spans":[]}'


def test_spans_grow_with_undecided_records_and_not_with_finished_ones() -> None:
    partition, _ = taken(SharePartition(0), LOCK, 10_000, 10_000, 2_000, 0)
    assert partition.undecided == 2_000
    odd = [Acknowledgement(at, at + 1, 1, ACCEPT) for at in range(1, 2_000, 2)]
    partition, _ = acknowledged(partition, LOCK, odd, DELIVERIES)
    assert (partition.undecided, len(partition.spans)) == (1_000, 2_000)
    partition, _ = taken(partition, RecordLock("two", 8), 10_000, 10_000, 2_000, 0)
    assert (partition.undecided, partition.end) == (2_000, 3_000)
    assert len(partition.encoded()) < 40_000


@pytest.mark.parametrize(
    "text",
    [
        '{"start":-1,"owners":[],"spans":[]}',
        '{"start":0,"owners":[],"spans":[[0,0,1]]}',
        '{"start":0,"owners":[],"spans":[[1,2]]}',
        '{"start":0,"owners":[],"spans":[[1,3,1]]}',
        '{"start":0,"owners":[],"spans":[[1,3,1,7,2]]}',
        '{"start":0,"owners":[],"spans":[[1,3,1,7,1,0]]}',
        '{"start":0,"owners":[],"errors":[""],"spans":[[1,3,1,7,1,0]]}',
        '{"start":0,"owners":[],"errors":[1],"spans":[[1,3,1,7,1,0]]}',
        '{"start":0,"owners":[],"errors":["x"],"spans":[[1,3,1,7,1,0,0]]}',
        '{"start":0,"owners":[],"spans":[[1,0,1],[2,0,1]]}',
        '{"start":0,"owners":[],"spans":[[1,1,1,0,4]]}',
        '{"start":0,"owners":["a"],"spans":[[1,1,0,0,4]]}',
        '{"start":0,"owners":["a"],"spans":[[1,1,1,0]]}',
        '{"start":0,"owners":[],"spans":[[1,0,1,2,3]]}',
        '{"start":0,"owners":[],"spans":[[1,0,1],[1,4,2]]}',
        '{"start":0,"owners":["a"],"spans":[[1,5,1,0,4,0,1,0]]}',
        '{"start":0,"owners":["a"],"transactions":[["t",1,1,9]],"spans":[[1,5,1,0,4,1,1,0]]}',
        '{"start":0,"owners":["a"],"transactions":[["t",1,1,9]],"spans":[[1,5,1,1,4,0,1,0]]}',
        '{"start":0,"owners":["a"],"transactions":[["t",1,1,9]],"spans":[[1,5,0,0,4,0,1,0]]}',
        '{"start":0,"owners":["a"],"transactions":[["t",1,1,9]],"spans":[[1,5,1,0,4,0,4,0]]}',
        '{"start":0,"owners":["a"],"transactions":[["t",1,1,9]],"spans":[[1,5,1,0,4,0,1,0,0]]}',
        '{"start":0,"owners":["a"],"transactions":[["t",1,1]],"spans":[]}',
        '{"start":0,"owners":["a"],"transactions":[["t",1,-1,9]],"spans":[]}',
    ],
)
def test_a_damaged_state_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"number|status|finished|RecordState|text|unpack"):
        parse_partition(text)

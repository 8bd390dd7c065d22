"""Random histories of a log that does everything right are clean; with one anomaly planted, it is
found by its name.

The log, its group and its transactions are played by a model of a few lines, which shares nothing
with the checker.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checker import check_history, report
from tests.checker.history import History, Kind, Operation, Outcome, Partition, SeenRecord
from tests.doubles.stories import TickingClock

GROUP = "g"
PARTITIONS: tuple[Partition, ...] = (("t", 0), ("t", 1), ("x", 0))
PRODUCERS = ("p1", "p2")
MEMBERS = ("c1", "c2")


class World:
    """A log that keeps every promise, its clients, and the history of what they were told."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.history = History(TickingClock())
        self.values = itertools.count()
        self.logs: dict[Partition, list[int]] = {partition: [] for partition in PARTITIONS}
        self.late: dict[str, list[tuple[Partition, int]]] = {}
        self.committed: dict[Partition, int] = {}
        self.positions: dict[str, dict[Partition, int]] = {member: {} for member in MEMBERS}
        for partition in PARTITIONS:
            self.give(partition, random.choice(MEMBERS))

    def land(self, process: str) -> None:
        """What a process could not tell the outcome of happens now, if it ever does."""
        for partition, value in self.late.pop(process, []):
            self.logs[partition].append(value)

    def send(self) -> None:
        process, partition = self.random.choice(PRODUCERS), self.random.choice(PARTITIONS)
        self.land(process)
        value = next(self.values)
        sending = self.history.send(process, partition[0], value)
        match self.random.choice(["ok", "ok", "ok", "fail", "lost", "happened", "late", "endless"]):
            case "ok":
                self.logs[partition].append(value)
                sending.ok(partition=partition[1], offset=len(self.logs[partition]) - 1)
            case "fail":
                sending.fail("refused")
            case "lost":
                sending.info("timed out")
            case "happened":
                self.logs[partition].append(value)
                sending.info("timed out")
            case "late":
                self.late[process] = [(partition, value)]
                sending.info("timed out")
            case "endless":
                self.logs[partition].append(value)

    def poll(self, member: str | None = None) -> None:
        member = member or self.random.choice(MEMBERS)
        polling = self.history.poll(member)
        records, tails = [], []
        for partition, position in self.positions[member].items():
            end = (
                len(self.logs[partition])
                if self.random.random() < 0.5
                else position + self.random.randint(0, 3)
            )
            read = self.logs[partition][position:end]
            records += [(*partition, offset, value) for offset, value in enumerate(read, position)]
            self.positions[member][partition] += len(read)
            if position + len(read) == len(self.logs[partition]):
                tails.append(partition)
        polling.ok(records, at_tail=tails)

    def commit(self) -> None:
        member = self.random.choice(MEMBERS)
        positions = dict(self.positions[member])
        committing = self.history.commit(member, GROUP, positions)
        match self.random.choice(["ok", "ok", "fail", "lost", "happened"]):
            case "ok":
                self.committed.update(positions)
                committing.ok()
            case "fail":
                committing.fail("refused")
            case "lost":
                committing.info("timed out")
            case "happened":
                self.committed.update(positions)
                committing.info("timed out")

    def give(self, partition: Partition, member: str) -> None:
        start = self.committed.get(partition, 0)
        named = start if self.random.random() < 0.5 else None
        self.history.assign(member, {partition: named}, group=GROUP)
        self.positions[member][partition] = start

    def move(self) -> None:
        giver, partition = self.random.choice(MEMBERS), self.random.choice(PARTITIONS)
        if partition in self.positions[giver]:
            self.history.unassign(giver, [partition])
            del self.positions[giver][partition]
            self.give(partition, self.random.choice(MEMBERS))

    def crash(self, member: str | None = None) -> None:
        member = member or self.random.choice(MEMBERS)
        if self.random.random() < 0.5:
            self.history.poll(member)
        self.history.crash(member)
        held, self.positions[member] = self.positions[member], {}
        for partition in held:
            self.give(partition, self.random.choice(MEMBERS))

    def seek(self) -> None:
        member = self.random.choice(MEMBERS)
        for partition in self.positions[member]:
            to = self.random.randint(0, len(self.logs[partition]))
            self.history.seek(member, {partition: to})
            self.positions[member][partition] = to

    def transact(self) -> None:
        """Read, send what was read, commit: or not."""
        member = self.random.choice(MEMBERS)
        before = dict(self.positions[member])
        self.history.begin_transaction(member)
        for _ in range(self.random.randint(0, 2)):
            self.poll(member)
        sent: list[tuple[Partition, int]] = []
        for _ in range(self.random.randint(1, 5)):
            partition = self.random.choice(PARTITIONS)
            sent.append((partition, next(self.values)))
            self.history.send(member, partition[0], sent[-1][1], partition[1]).ok()
        positions = dict(self.positions[member])
        self.history.commit(member, GROUP, positions).ok()
        ending = self.random.choice(["ok", "ok", "abort", "lost", "happened", "crash"])
        if ending == "abort":
            self.history.abort_transaction(member).ok()
            self.positions[member] = before
            return
        committing = self.history.commit_transaction(member) if ending != "crash" else None
        if ending in {"ok", "happened"}:
            self.committed.update(positions)
            for partition, value in sent:
                self.logs[partition].append(value)
        if committing is not None and ending == "ok":
            committing.ok()
        elif committing is not None:
            committing.info("timed out")
        if ending != "ok":
            self.crash(member)

    def drain(self) -> None:
        """Everything is read once more, three records at a time."""
        for process in list(self.late):
            self.land(process)
        for partition, log in self.logs.items():
            self.history.assign("drain", {partition: 0})
            for start in range(0, len(log) + 1, 3):
                read = enumerate(log[start : start + 3], start)
                records = [(*partition, offset, value) for offset, value in read]
                self.history.poll("drain").ok(
                    records, at_tail=[partition] if start + 3 > len(log) else []
                )


def play(random: Random, steps: int) -> list[Operation]:
    """The history of a world. It begins with a bit of everything that a mutant needs."""
    world = World(random)
    history = world.history
    for partition in PARTITIONS:
        for process in (*PRODUCERS, *PRODUCERS):
            value = next(world.values)
            sending = history.send(process, partition[0], value)
            world.logs[partition].append(value)
            sending.ok(partition=partition[1], offset=len(world.logs[partition]) - 1)
    history.begin_transaction("p3")
    for partition in (PARTITIONS[0], PARTITIONS[0], PARTITIONS[0], PARTITIONS[1]):
        value = next(world.values)
        history.send("p3", partition[0], value).ok(
            partition=partition[1], offset=len(world.logs[partition])
        )
        world.logs[partition].append(value)
    history.commit_transaction("p3").ok()
    actions = (
        [world.send] * 4
        + [world.poll] * 4
        + [world.commit, world.move, world.crash, world.seek, world.transact]
    )
    for _ in range(steps):
        random.choice(actions)()
    world.drain()
    return history.operations


def stretched(operations: list[Operation], random: Random) -> list[Operation]:
    """The same, but every process waits longer for its answers: what different processes do
    overlaps.
    """
    following: dict[str, float] = {}
    longer = []
    for operation in reversed(operations):
        if operation.completed is not None:
            # The answer to a send does not hold up what its process does next.
            limit = (
                math.inf if operation.kind == "send" else following.get(operation.process, math.inf)
            )
            until = min(math.nextafter(limit, 0), operation.completed + 20)
            operation = replace(operation, completed=random.uniform(operation.completed, until))
        following[operation.process] = operation.invoked
        longer.append(operation)
    return longer[::-1]


@given(st.randoms(use_true_random=False), st.integers(0, 60), st.booleans())
def test_a_history_of_a_log_that_keeps_its_promises_is_clean(
    random: Random, steps: int, overlaps: bool
):
    operations = play(random, steps)
    found = check_history(stretched(operations, random) if overlaps else operations, drained=True)
    assert not found, report(found)


Event = tuple[str, Kind, dict[str, Any]]


@dataclass
class Mutant:
    """A history that is being spoilt."""

    random: Random
    operations: list[Operation]

    def some(self, kind: Kind, fits: Callable[[Operation], object] = bool) -> Operation:
        """An operation that was acknowledged."""
        return self.random.choice(
            [o for o in self.operations if o.kind == kind and o.outcome == "ok" and fits(o)]
        )

    def plain_send(self, fits: Callable[[Operation], object] = bool) -> Operation:
        return self.some("send", lambda o: o.process in PRODUCERS and fits(o))

    def change(self, old: Operation, *new: Operation) -> None:
        at = self.operations.index(old)
        self.operations[at : at + 1] = new

    def forget(self, value: object) -> None:
        """No poll has ever returned the value."""
        for operation in list(self.operations):
            if operation.kind == "poll":
                kept = tuple(record for record in operation.records if record.value != value)
                self.change(operation, replace(operation, records=kept))

    def insert(self, after: Operation, *events: Event) -> None:
        """Things that are done right after an operation, one after the other, and acknowledged."""
        time = math.nextafter(after.completed or after.invoked, math.inf)
        for process, kind, fields in events:
            ended = math.nextafter(time, math.inf)
            self.operations.append(Operation(process, kind, "ok", time, ended, **fields))
            time = math.nextafter(ended, math.inf)

    def end(self) -> Operation:
        return max(self.operations, key=lambda o: o.invoked)


def first_transaction(mutant: Mutant) -> tuple[list[Operation], Operation]:
    """Sends and end of the transaction that every history has."""
    ends = [o for o in mutant.operations if o.process == "p3"]
    return [o for o in ends if o.kind == "send"], ends[-1]


def lose(mutant: Mutant) -> None:
    mutant.forget(mutant.plain_send(lambda o: o.records[0].offset == 1).records[0].value)


def never_show(mutant: Mutant) -> None:
    mutant.insert(mutant.end(), ("p9", "send", {"records": (SeenRecord("t", None, None, "new"),)}))


def double(mutant: Mutant) -> None:
    poll = mutant.some("poll", lambda o: o.process == "drain" and o.records)
    first = poll.records[0]
    others = [
        r
        for o in mutant.operations
        if o.kind == "poll"
        for r in o.records
        if r.value != first.value
    ]
    other = mutant.random.choice(others)
    mutant.change(
        poll, replace(poll, records=(first._replace(value=other.value), *poll.records[1:]))
    )


def collide(mutant: Mutant) -> None:
    sent = mutant.plain_send()
    mutant.insert(sent, ("p9", "send", {"records": (sent.records[0]._replace(value="new"),)}))


def abort_late(mutant: Mutant) -> None:
    outcome: Outcome = "fail"
    target = mutant.random.choice([mutant.plain_send(), first_transaction(mutant)[1]])
    mutant.change(target, replace(target, outcome=outcome))


def show_early(mutant: Mutant) -> None:
    sent = mutant.random.choice(first_transaction(mutant)[0])
    mutant.insert(sent, ("c9", "poll", {"records": sent.records}))


def make_up(mutant: Mutant) -> None:
    mutant.operations.remove(mutant.plain_send())


def tear(mutant: Mutant) -> None:
    sends, end = first_transaction(mutant)
    mutant.change(end, replace(end, outcome="info"))
    mutant.forget(mutant.random.choice(sends).records[0].value)


def send_backwards(mutant: Mutant) -> None:
    one = mutant.plain_send(lambda o: o.records[0].offset in {0, 1})
    (two,) = (
        o
        for o in mutant.operations
        if o.kind == "send"
        and o.process == one.process
        and o.records[0][:3] == (*one.records[0][:2], (one.records[0].offset or 0) + 2)
    )
    mutant.change(one, replace(one, records=two.records))
    mutant.change(two, replace(two, records=one.records))


def send_backwards_within(mutant: Mutant) -> None:
    one, two = first_transaction(mutant)[0][:2]
    mutant.change(one, replace(one, records=two.records))
    mutant.change(two, replace(two, records=one.records))


def mix(mutant: Mutant) -> None:
    middle = first_transaction(mutant)[0][1]
    mutant.change(middle, replace(middle, process="p9"))


def skip_a_poll(mutant: Mutant) -> None:
    mutant.operations.remove(
        mutant.some(
            "poll", lambda o: o.process == "drain" and o.records[:1] and o.records[0][2] == 0
        )
    )


def repeat_a_poll(mutant: Mutant) -> None:
    poll = mutant.some("poll", lambda o: o.process == "drain" and o.records)
    mutant.insert(poll, ("drain", "poll", {"records": poll.records}))


def skip_within_a_poll(mutant: Mutant) -> None:
    poll = mutant.some("poll", lambda o: o.process == "drain" and len(o.records) == 3)
    mutant.change(poll, replace(poll, records=poll.records[::2]))


def go_back_within_a_poll(mutant: Mutant) -> None:
    poll = mutant.some("poll", lambda o: o.process == "drain" and len(o.records) == 3)
    mutant.change(poll, replace(poll, records=poll.records[::-1]))


def lag(mutant: Mutant) -> None:
    partition = mutant.random.choice(PARTITIONS)
    start = {"positions": ((partition, 0),)}
    mutant.insert(mutant.end(), ("c9", "assign", start), ("c9", "poll", {"at_tail": (partition,)}))


def commit_back(mutant: Mutant) -> None:
    partition = mutant.random.choice(PARTITIONS)
    commits: list[Event] = [
        ("c9", "commit", {"group": "h", "positions": ((partition, to),)}) for to in (3, 2)
    ]
    mutant.insert(mutant.random.choice(mutant.operations), *commits)


def share(mutant: Mutant) -> None:
    partition = mutant.random.choice(PARTITIONS)
    fields: dict[str, Any] = {"group": "h", "positions": ((partition, 0),)}
    events: list[Event] = [("c8", "assign", fields), ("c9", "assign", fields)]
    events += [("c9", "commit", fields), ("c8", "commit", fields)]
    mutant.insert(mutant.random.choice(mutant.operations), *events)


def abandon(mutant: Mutant) -> None:
    """A member owns a partition, and shows no life between its first event and one behind the
    end.
    """
    partition = mutant.random.choice(PARTITIONS)
    fields: dict[str, Any] = {"group": "h", "positions": ((partition, 0),)}
    mutant.insert(mutant.operations[0], ("c9", "assign", fields))
    mutant.insert(mutant.end(), ("c9", "commit", fields))


def cross(mutant: Mutant) -> None:
    """Two transactions behind the end of two partitions, in opposite orders."""
    events: list[Event] = []
    for process, places in (("p8", (1001, 1002)), ("p9", (1002, 1001))):
        events.append((process, "begin", {}))
        for number, offset in enumerate(places):
            events.append(
                (
                    process,
                    "send",
                    {"records": (SeenRecord("t", number, offset, (process, number)),)},
                )
            )
        events.append((process, "commit-transaction", {}))
    mutant.insert(mutant.end(), *events)


def look_at_each_other(mutant: Mutant) -> None:
    records = [SeenRecord("t", number, 1000, number + 10**6) for number in (0, 1)]
    events: list[Event] = []
    events += [(process, "begin", {}) for process in ("p8", "p9")]
    events += [
        (process, "send", {"records": (sent,)})
        for process, sent in zip(("p8", "p9"), records, strict=True)
    ]
    events += [
        (process, "poll", {"records": (sent,)})
        for process, sent in zip(("p9", "p8"), records, strict=True)
    ]
    events += [(process, "commit-transaction", {}) for process in ("p8", "p9")]
    mutant.insert(mutant.end(), *events)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        ("lost-write", lose),
        ("unseen", never_show),
        ("duplicate", double),
        ("inconsistent-offsets", collide),
        ("aborted-read", abort_late),
        ("precommitted-read", show_early),
        ("unsent-read", make_up),
        ("torn-transaction", tear),
        ("nonmonotonic-send", send_backwards),
        ("int-nonmonotonic-send", send_backwards_within),
        ("int-send-skip", mix),
        ("poll-skip", skip_a_poll),
        ("nonmonotonic-poll", repeat_a_poll),
        ("int-poll-skip", skip_within_a_poll),
        ("int-nonmonotonic-poll", go_back_within_a_poll),
        ("realtime-lag", lag),
        ("commit-regression", commit_back),
        ("two-owners", share),
        ("unowned", abandon),
        ("G0", cross),
        ("G1c", look_at_each_other),
    ],
)
@given(random=st.randoms(use_true_random=False), steps=st.integers(0, 40))
@settings(max_examples=25)
def test_an_anomaly_that_is_planted_is_found(
    name: str, spoil: Callable[[Mutant], None], random: Random, steps: int
):
    mutant = Mutant(random, play(random, steps))
    spoil(mutant)
    half_s = (mutant.operations[-1].invoked - mutant.operations[0].invoked) / 2
    found = check_history(mutant.operations, drained=True, unowned_s=half_s)
    assert name in {anomaly.name for anomaly in found}, report(found)

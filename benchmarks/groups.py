"""Consumer groups: how soon partitions are assigned and move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Event, Thread
from time import monotonic, monotonic_ns
from typing import Any
from uuid import uuid4

from benchmarks.client import START_TIMEOUT_S, Client, deltaq_client, kafka_client
from benchmarks.distribution import Percentiles, distribution
from benchmarks.finding import Table, Target, at_most, columns, known_cores
from benchmarks.machine import OthersLoad
from benchmarks.suite import Place


@dataclass(frozen=True, slots=True)
class GroupsPlan:
    """`rounds` of joins and leaves with each of the `strategies`; Kafka takes seconds for each, and
    has `kafka_rounds`.

    `takeovers`: how often a member with a session of `session_s` is killed.
    """

    rounds: int
    kafka_rounds: int
    strategies: tuple[str, ...]
    takeovers: int
    session_s: float


_STRATEGIES = ("range", "cooperative-sticky")
FULL_GROUPS = GroupsPlan(20, 10, _STRATEGIES, 3, 2.0)
QUICK_GROUPS = GroupsPlan(2, 1, _STRATEGIES, 1, 1.0)


PARTITIONS = 2
POLL_S = 0.01
EVENT_TIMEOUT_S = 60.0

CHANGES = (
    "first assignment",
    "hand-over to a member that joins",
    "hand-over from a member that closes",
)


@dataclass(frozen=True, slots=True)
class Happened:
    """What a member reports: `kind` is "subscribed", "closing", "assigned" or "record"; of which
    partitions, when.
    """

    kind: str
    at_ns: int
    partitions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OwnerChange:
    """From the call of `subscribe` or `close` to the new owner's `on_assign`, and to its first
    record.
    """

    name: str
    assigned_ns: int
    record_ns: int


@dataclass(frozen=True, slots=True)
class Changes:
    """All rounds of one kind of change."""

    client: str
    strategy: str
    name: str
    assigned: Percentiles
    record: Percentiles


@dataclass(frozen=True, slots=True)
class Takeover:
    """From the SIGKILL of a member to the `on_assign` with which the other one has its
    partition.
    """

    session_s: float
    seconds: float


def first_after(
    events: Sequence[Happened], kind: str, at_ns: int, partitions: frozenset[int] = frozenset()
) -> int:
    """When the first such event after a time happened that has one of the partitions, or any if
    none is given. Pure.

    LookupError if there is none.
    """
    for event in events:
        if (
            event.kind == kind
            and event.at_ns >= at_ns
            and (not partitions or partitions & set(event.partitions))
        ):
            return event.at_ns
    raise LookupError(f"no {kind} of {sorted(partitions)}")


# --- the process of a member
# ------------------------------------------------------------------------------------------


def _run_member(client: Client, topic: str, pipe: Connection) -> None:
    """Take commands until one is None: a configuration to subscribe with, or "close"."""
    consumer: Any = None
    unread: set[int] = set()

    def on_assign(_: object, assigned: Sequence[Any]) -> None:
        numbers = tuple(sorted(tp.partition for tp in assigned))
        unread.update(numbers)
        pipe.send(Happened("assigned", monotonic_ns(), numbers))

    with client.api.Consumer({**client.consumer_conf, "group.id": f"warm-{uuid4().hex}"}) as warm:
        # Code that is loaded at first use is not measured.
        warm.list_topics(topic, timeout=START_TIMEOUT_S)
    while True:
        if consumer is None or pipe.poll():
            command = pipe.recv()
            if command is None:
                break
            if command == "close":
                pipe.send(Happened("closing", monotonic_ns()))
                consumer.close()
                consumer = None
                continue
            unread.clear()
            consumer = client.api.Consumer({**client.consumer_conf, **command})
            pipe.send(Happened("subscribed", monotonic_ns()))
            consumer.subscribe([topic], on_assign=on_assign)
        message = consumer.poll(POLL_S)
        if message is not None and message.error() is None and message.partition() in unread:
            unread.discard(message.partition())
            pipe.send(Happened("record", monotonic_ns(), (message.partition(),)))


class MemberProcess:
    """A member's process, as seen by the benchmark."""

    def __init__(self, client: Client, topic: str) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.events: list[Happened] = []
        self.process = context.Process(
            target=_run_member, args=(client, topic, theirs), daemon=True
        )
        self.process.start()

    def tell(self, command: object) -> None:
        self._pipe.send(command)

    def await_event(
        self, kind: str, after_ns: int, partitions: frozenset[int] = frozenset()
    ) -> int:
        """When it happened. Raises TimeoutError."""
        give_up_at = monotonic() + EVENT_TIMEOUT_S
        while True:
            try:
                return first_after(self.events, kind, after_ns, partitions)
            except LookupError:
                if not self._pipe.poll(max(0.0, give_up_at - monotonic())):
                    raise TimeoutError(
                        f"a member has reported {self.events[-5:]}, and no {kind!r}"
                    ) from None
                self.events.append(self._pipe.recv())

    def owned(self) -> frozenset[int]:
        """The partitions of the last assignment."""
        return frozenset(
            next(
                (event.partitions for event in reversed(self.events) if event.kind == "assigned"),
                (),
            )
        )

    def end(self) -> None:
        if self.process.is_alive():
            self.tell(None)
        self.process.join()


@contextmanager
def _members(client: Client, topic: str) -> Iterator[tuple[MemberProcess, MemberProcess]]:
    """Two processes of members, and records for all partitions every few milliseconds."""
    client.create_topic(topic, PARTITIONS)
    stop = Event()
    producing = Thread(target=partial(_produce, client, topic, stop), daemon=True)
    both = MemberProcess(client, topic), MemberProcess(client, topic)
    producing.start()
    try:
        yield both
    finally:
        for member in both:
            member.end()
        stop.set()
        producing.join()


def _produce(client: Client, topic: str, stop: Event) -> None:
    with client.api.Producer({**client.conf, "linger.ms": 5}) as producer:
        while not stop.wait(0.01):
            for partition in range(PARTITIONS):
                producer.produce(topic, b"x" * 100, partition=partition)
            producer.poll(0)


# --- the measurements
# -------------------------------------------------------------------------------------------------


def measure_changes(client: Client, strategy: str, rounds: int) -> Iterator[Changes]:
    """Each change `rounds` times, each time in a new group."""
    found: list[OwnerChange] = []
    with _members(client, f"changes-{uuid4().hex[:12]}") as (first, second):
        for _ in range(rounds):
            found += _round(first, second, strategy)
    for name in CHANGES:
        same = [change for change in found if change.name == name]
        assigned, record = (distribution(times) for times in zip(*map(_times, same), strict=True))
        yield Changes(client.name, strategy, name, assigned, record)


def _times(change: OwnerChange) -> tuple[int, int]:
    return change.assigned_ns, change.record_ns


def _conf(strategy: str, **more: object) -> dict[str, object]:
    group = f"group-{uuid4().hex[:12]}"
    return {
        "group.id": group,
        "partition.assignment.strategy": strategy,
        "auto.offset.reset": "latest",
        **more,
    }


def _round(first: MemberProcess, second: MemberProcess, strategy: str) -> Iterator[OwnerChange]:
    conf, begun_ns, everything = _conf(strategy), monotonic_ns(), frozenset(range(PARTITIONS))
    yield _changed(
        CHANGES[0], first, begun_ns, lambda: first.tell(conf), "subscribed", first, everything
    )
    begun_ns = monotonic_ns()
    yield _changed(
        CHANGES[1], second, begun_ns, lambda: second.tell(conf), "subscribed", second, everything
    )
    moved = everything - second.owned()
    begun_ns = monotonic_ns()
    yield _changed(
        CHANGES[2], first, begun_ns, lambda: first.tell("close"), "closing", second, moved
    )
    close(second)


def close(member: MemberProcess) -> None:
    """Let a member close its consumer, and wait until it begins to."""
    begun_ns = monotonic_ns()  # before the command: the member may answer at once
    member.tell("close")
    member.await_event("closing", begun_ns)


def _changed(
    name: str,
    actor: MemberProcess,
    begun_ns: int,
    act: Callable[[], None],
    kind: str,
    owner: MemberProcess,
    partitions: frozenset[int],
) -> OwnerChange:
    """Let `actor` act, and wait until `owner` has been assigned one of the partitions and has a
    record of it.
    """
    act()
    acted_ns = actor.await_event(kind, begun_ns)
    assigned_ns = owner.await_event("assigned", acted_ns, partitions)
    record_ns = owner.await_event("record", assigned_ns, partitions)
    return OwnerChange(name, assigned_ns - acted_ns, record_ns - acted_ns)


def measure_takeovers(client: Client, session_s: float, times: int) -> list[Takeover]:
    """Kill one of two members, `times` times."""
    found = []
    everything = frozenset(range(PARTITIONS))
    session_ms = round(session_s * 1000)
    more = {"session.timeout.ms": session_ms, "heartbeat.interval.ms": session_ms // 4}
    for _ in range(times):
        with _members(client, f"takeover-{uuid4().hex[:12]}") as (first, second):
            conf, begun_ns = _conf("range", **more), monotonic_ns()
            _changed(
                "", first, begun_ns, partial(first.tell, conf), "subscribed", first, everything
            )
            begun_ns = monotonic_ns()
            _changed(
                "", second, begun_ns, partial(second.tell, conf), "subscribed", second, everything
            )
            moved = everything - second.owned()
            killed_ns = monotonic_ns()
            first.process.kill()
            assigned_ns = second.await_event("assigned", killed_ns, moved)
            found.append(Takeover(session_s, (assigned_ns - killed_ns) / 1e9))
            second.tell("close")
    return found


FIRST_AIM_MS = 300.0
HAND_OVER_AIM_MS = 1_000.0


@dataclass(frozen=True, slots=True)
class Groups:
    """The outcome of a plan. `judged` says whether assignments were measured on local disk, for
    which there are aims. `others` are the cores that other programs kept busy.
    """

    plan: GroupsPlan
    judged: bool
    changes: tuple[Changes, ...]
    takeovers: tuple[Takeover, ...]
    others: float | None

    @property
    def is_clean(self) -> bool:
        """True: a member without its partitions or its record has raised, and records are not
        compared here.
        """
        return True

    @property
    def others_cores(self) -> tuple[float, ...]:
        return known_cores([self.others])

    def ratio(self, one: Changes) -> float | None:
        """The median time until `on_assign` relative to Kafka's; None if Kafka was not measured."""
        same = (
            other
            for other in self.changes
            if (other.strategy, other.name) == (one.strategy, one.name)
        )
        theirs = next((other for other in same if other.client == "Kafka"), None)
        return None if theirs is None else one.assigned.p50 / theirs.assigned.p50

    def tables(self) -> Iterator[Table]:
        """Changes and takeovers."""
        yield self._change_table()
        yield Table(
            "Takeover of a killed member's partitions",
            ("session.timeout.ms", "seconds", "sessions"),
            tuple((f"{of.session_s * 1000:,.0f}", f"{of.seconds:.2f}", f"{of.seconds / of.session_s:.2f}")  # noqa: E501
                  for of in self.takeovers),
        )  # fmt: skip

    def targets(self) -> Iterator[Target]:
        """Times on local disk."""
        for one in self.changes:
            if self.judged and one.client == "deltaq":
                aim = FIRST_AIM_MS if one.name.startswith("first") else HAND_OVER_AIM_MS
                yield at_most(f"{one.name}, {one.strategy}, p50", aim, one.assigned.p50, " ms")

    def _change_table(self) -> Table:
        head = columns(
            "change | strategy | client | p50 | p95 | max | to Kafka's | first record p50 | "
            "p95 | rounds"
        )
        rows = []
        for one in sorted(
            self.changes, key=lambda one: (one.name, one.strategy, one.client != "deltaq")
        ):
            ratio = self.ratio(one) if one.client == "deltaq" else None
            times = (
                f"{time:,.0f}" for time in (one.assigned.p50, one.assigned.p95, one.assigned.max)
            )
            records = (f"{time:,.0f}" for time in (one.record.p50, one.record.p95))
            shown = "-" if ratio is None else f"{ratio:.2f}"
            rows.append(
                (
                    one.name,
                    one.strategy,
                    one.client,
                    *times,
                    shown,
                    *records,
                    str(one.assigned.count),
                )
            )
        return Table(
            "ms until `on_assign` of the new owner, and until its first record", head, tuple(rows)
        )


def measure_groups(plan: GroupsPlan, place: Place) -> Iterator[Groups]:
    """One outcome. Kafka takes part if `place` names a broker."""
    others, report, root = OthersLoad(), place.report, place.root
    changes = list(_changes(plan, place))
    report(f"groups, takeover of a session of {plan.session_s:g} s: {plan.takeovers} times")
    takeovers = measure_takeovers(deltaq_client(root), plan.session_s, plan.takeovers)
    yield Groups(plan, "://" not in root, tuple(changes), tuple(takeovers), others.cores())


def _changes(plan: GroupsPlan, place: Place) -> Iterator[Changes]:
    clients = [(deltaq_client(place.root), plan.rounds)]
    if place.kafka:
        clients.append((kafka_client(place.kafka), plan.kafka_rounds))
    for strategy in plan.strategies:
        for client, rounds in clients:
            place.report(f"groups, changes under {strategy}, {client.name}: {rounds} rounds")
            for change in measure_changes(client, strategy, rounds):
                place.report(
                    f"  {change.name}: p50 {change.assigned.p50:,.0f} ms, p95 "
                    f"{change.assigned.p95:,.0f} ms"
                )
                yield change

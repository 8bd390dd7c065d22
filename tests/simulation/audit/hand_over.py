"""Checks what the members of the group read against its log: where they start, what they commit,
when they stop.

The history checker knows the committed offsets only as far as clients know them; the log has each
one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.checker.history import Operation
from tests.simulation.audit.group import GroupAudit
from tests.simulation.audit.oracle import Place
from tests.simulation.audit.topic import Audit

__all__ = ["check_hand_overs", "check_once"]

STOP_S = 12.0
"""Simulated seconds after which a client returns no records of a partition that another one owns:
two sessions.
"""

Stream = tuple[str, int]
"""A topic id and a partition."""


@dataclass
class _Reading:
    """What one client reads: `assigned` has the time of the assignment of each partition that it
    has not read yet, `reached` the next offsets of each stream with the beginnings of their polls.
    """

    assigned: dict[Stream, float] = field(default_factory=dict)
    reached: dict[Stream, list[tuple[float, int]]] = field(
        default_factory=lambda: defaultdict(list)
    )


def check_hand_overs(operations: list[Operation], group: GroupAudit, audit: Audit) -> Iterator[str]:
    """Violations of: a member starts at the committed offset of each partition that it gets,
    commits no record that it has not read, and returns no record of a partition long after another
    client got it, and none of a topic that it has left out of its subscription.
    """
    clients = set(group.clients.values())
    reading: dict[str, _Reading] = defaultdict(_Reading)
    removed = frozenset().union(*(removal.values for removal in audit.removals))
    kept = {place for place, record in audit.records.items() if record.value not in removed}
    ids = {place.topic_id for place in audit.records}
    for operation in sorted(operations, key=_end):
        if operation.process not in clients or operation.completed is None:
            continue
        of_client = reading[operation.process]
        if operation.kind == "assign":
            of_client.assigned |= {
                (topic_id, partition): operation.invoked
                for (_, partition), _ in operation.positions
                for topic_id in ids
            }
        elif operation.kind == "poll":
            yield from _check_owner(operation, group)
            for topic, partition, offset, _ in operation.records:
                assert partition is not None
                assert offset is not None
                stream = topic.rpartition("#")[2], partition
                if (assigned := of_client.assigned.pop(stream, None)) is not None:
                    yield from _check_start(operation, stream, offset, assigned, group, kept)
                of_client.reached[stream].append((operation.invoked, offset + 1))
    yield from _check_commits(reading, group, kept)


def check_once(operations: list[Operation], group: GroupAudit) -> Iterator[str]:
    """Violations of: the members together return each record once."""
    clients, first = set(group.clients.values()), dict[Place, Operation]()
    for operation in operations:
        if operation.process in clients and operation.kind == "poll":
            for topic, partition, offset, _ in operation.records:
                place = Place(topic, partition or 0, offset or 0)
                if place in first:
                    yield f"{place} was returned twice:\n    {first[place]}\n    {operation}"
                first[place] = operation


def _end(operation: Operation) -> float:
    return operation.invoked if operation.completed is None else operation.completed


def _check_owner(poll: Operation, group: GroupAudit) -> Iterator[str]:
    for topic, partition in sorted(
        {(record.topic.partition("#")[0], record.partition or 0) for record in poll.records}
    ):
        moves = group.moves[topic, partition]
        for at, client in group.left_out[topic, partition]:
            is_back = any(at < got < _end(poll) and to == client for got, to in moves)
            if client == poll.process and at < _end(poll) and not is_back:
                yield (
                    f"{poll.process} has left {topic}[{partition}] out at {at:.6f}, and it returns "
                    f"{poll}"
                )
        begins = [at for at, client in moves if client == poll.process and at < _end(poll)]
        ends = [
            min(
                (later for later, other in moves if later > at and other != poll.process),
                default=float("inf"),
            )
            for at in begins
        ]
        if not any(end > poll.invoked - STOP_S for end in ends):
            yield (
                f"{topic}[{partition}] was taken from {poll.process} at {max(ends, default=0)}, and"
                f" it returns {poll}"
            )


def _check_start(
    poll: Operation,
    stream: Stream,
    offset: int,
    assigned: float,
    group: GroupAudit,
    kept: set[Place],
) -> Iterator[str]:
    committed = _committed(group, stream)
    before = [to for at, to, _ in committed if at < assigned][-1:] or [0]
    possible = before + [to for at, to, _ in committed if assigned <= at < _end(poll)]
    skipped = _kept_between(kept, stream, max(possible), offset)
    if offset < min(possible) or skipped:
        where = f"though the group had committed {sorted(set(possible))}"
        yield f"{poll.process}, assigned at {assigned:.6f}, starts at {offset}, {where}: {poll}"


def _check_commits(
    reading: dict[str, _Reading], group: GroupAudit, kept: set[Place]
) -> Iterator[str]:
    for app_id, committed in group.committed.items():
        _, topic_id, number = app_id.split("/")
        partition, before = int(number), 0
        for at, offset, client in committed:
            reached = max(
                [
                    before,
                    *(
                        to
                        for begun, to in reading[client].reached[topic_id, partition]
                        if begun < at
                    ),
                ]
            )
            if skipped := _kept_between(kept, (topic_id, partition), reached, offset):
                yield (
                    f"{client} commits {offset} of {app_id} at {at:.6f}, and has not read {skipped}"
                )
            before = offset


def _kept_between(kept: set[Place], stream: Stream, start: int, end: int) -> list[int]:
    """The offsets from `start` to `end` whose records maintenance never removed."""
    return [offset for offset in range(start, end) if Place(*stream, offset) in kept]


def _committed(group: GroupAudit, stream: Stream) -> list[tuple[float, int, str]]:
    topic_id, partition = stream
    return next(
        (
            committed
            for app_id, committed in group.committed.items()
            if app_id.endswith(f"/{topic_id}/{partition}")
        ),
        [],
    )

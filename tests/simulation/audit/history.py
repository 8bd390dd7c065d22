"""Checks the clients' history against the log, with the history checker and the known effects of
maintenance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from tests.checker import check_history, report
from tests.checker.history import Operation
from tests.simulation.audit.oracle import Place
from tests.simulation.audit.topic import Audit, Removal
from tests.simulation.scenario import TOPIC

__all__ = ["check_run", "topic_with_id"]


def topic_with_id(topic_id: str | None) -> str:
    """The name in histories of the topic with this id."""
    return f"{TOPIC}#{topic_id}"


def check_run(operations: list[Operation], audit: Audit, *, drained: bool) -> Iterator[str]:
    """Violations in a history and in the log itself. `drained`: at the end, everything was read."""
    yield from audit.problems
    logged = audit.places
    for value, found in logged.items():
        if len(found) > 1:
            yield f"{value!r} is in the log {len(found)} times: {found}"
    for operation in operations:
        (sent,) = operation.records if operation.kind == "send" else (None,)
        if sent is None:
            continue
        found = logged.get(sent.value, [])
        if operation.outcome == "ok" and (sent.partition, sent.offset) not in [
            (p.partition, p.offset) for p in found
        ]:
            yield f"was acknowledged, and is not in the log: {operation}"
        if operation.outcome == "fail" and found:
            yield f"was reported as failed, and is in the log: {operation}"
    named = _by_topic_id(operations, logged)
    # No reader may skip a record before maintenance has removed it, so check the history up to each
    # removal, too.
    for landed, gone in [*_until_each(audit.removals), (math.inf, _all(audit.removals))]:
        until = list(_until(named, landed, logged, gone))
        anomalies = check_history(until, drained=drained and landed == math.inf, expendable=gone)
        if anomalies:
            yield f"up to {landed:.6f} s: {report(anomalies)}"
            return


def _by_topic_id(operations: list[Operation], logged: Mapping[str, list[Place]]) -> list[Operation]:
    """The history with a separate topic name for each topic id, as the checker requires.

    Polls and commits name their topic id. An assignment applies to all of them.
    """
    topics = sorted(
        {topic_with_id(place.topic_id) for stored in logged.values() for place in stored}
    )

    def named(operation: Operation) -> Operation:
        records = tuple(
            record._replace(topic=topic_with_id(logged[record.value][0].topic_id))
            if record.value in logged
            else record
            for record in operation.records
        )
        positions = [
            ((name, number), offset)
            for (topic, number), offset in operation.positions
            for name in (topics if topic == TOPIC else [topic])
        ]
        return replace(operation, records=records, positions=tuple(positions))

    return [named(operation) for operation in operations]


def _until_each(removals: list[Removal]) -> Iterator[tuple[float, frozenset[str]]]:
    """The moment before each removal, with what was gone by then."""
    gone: frozenset[str] = frozenset()
    for removal in removals:
        yield removal.landed, gone
        gone |= removal.values


def _all(removals: list[Removal]) -> frozenset[str]:
    return frozenset().union(*(removal.values for removal in removals))


def _until(
    operations: list[Operation],
    moment: float,
    logged: Mapping[str, list[Place]],
    gone: frozenset[str],
) -> Iterator[Operation]:
    """What was known before a moment. Sends of `gone` values get the place that the log has,
    whatever was reported.
    """
    for operation in operations:
        if operation.invoked >= moment:
            continue
        if operation.kind == "send" and (value := operation.records[0].value) in gone:
            (place, *_) = logged[value]
            sent = operation.records[0]._replace(partition=place.partition, offset=place.offset)
            yield replace(operation, outcome="ok", records=(sent,))
        elif operation.completed is None or operation.completed < moment:
            yield operation
        else:
            sent_only = operation.records if operation.kind == "send" else ()
            asked = tuple(record._replace(offset=None) for record in sent_only)
            yield replace(operation, outcome="invoke", completed=None, records=asked)

"""Checks the clients' history against the log, with the history checker and the known effects of maintenance."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from deltaq.testing.checker import check_history, report
from deltaq.testing.history import Operation
from tests.simulation.audit import Audit, Departure
from tests.simulation.script import TOPIC
from tests.simulation.truth import Place

__all__ = ["judged", "life"]


def life(topic_id: str | None) -> str:
    """What one life of the topic is called in histories."""
    return f"{TOPIC}#{topic_id}"


def judged(operations: list[Operation], audit: Audit, *, drained: bool) -> Iterator[str]:
    """What is wrong with a history, and with the log itself. `drained`: at the end all was read."""
    yield from audit.problems
    truth = audit.places
    for value, found in truth.items():
        if len(found) > 1:
            yield f"{value!r} is in the log {len(found)} times: {found}"
    for operation in operations:
        (sent,) = operation.records if operation.kind == "send" else (None,)
        if sent is None:
            continue
        found = truth.get(sent.value, [])
        if operation.outcome == "ok" and (sent.partition, sent.offset) not in [(p.partition, p.offset) for p in found]:
            yield f"was acknowledged, and is not there: {operation}"
        if operation.outcome == "fail" and found:
            yield f"was told as failed, and is there: {operation}"
    named = _by_life(operations, truth)
    # Nobody may pass over a record before maintenance has let it go: so the history up to each of these moments too.
    for landed, gone in [*_until_each(audit.departures), (math.inf, _all(audit.departures))]:
        until = list(_until(named, landed, truth, gone))
        anomalies = check_history(until, drained=drained and landed == math.inf, expendable=gone)
        if anomalies:
            yield f"up to {landed:.6f} s: {report(anomalies)}"
            return


def _by_life(operations: list[Operation], truth: Mapping[str, list[Place]]) -> list[Operation]:
    """The history with each life of the topic under a name of its own, as the checker wants it.

    Polls and commits say themselves which life they mean. An assignment is good for all lives.
    """
    lives = sorted({life(place.topic_id) for stored in truth.values() for place in stored})

    def named(operation: Operation) -> Operation:
        records = tuple(
            record._replace(topic=life(truth[record.value][0].topic_id)) if record.value in truth else record
            for record in operation.records
        )
        positions = [
            ((name, number), offset)
            for (topic, number), offset in operation.positions
            for name in (lives if topic == TOPIC else [topic])
        ]
        return replace(operation, records=records, positions=tuple(positions))

    return [named(operation) for operation in operations]


def _until_each(departures: list[Departure]) -> Iterator[tuple[float, frozenset[str]]]:
    """The moment before each departure, with what was gone by then."""
    gone: frozenset[str] = frozenset()
    for departure in departures:
        yield departure.landed, gone
        gone |= departure.values


def _all(departures: list[Departure]) -> frozenset[str]:
    return frozenset().union(*(departure.values for departure in departures))


def _until(
    operations: list[Operation], moment: float, truth: Mapping[str, list[Place]], gone: frozenset[str]
) -> Iterator[Operation]:
    """What was known before a moment. Of what is `gone`, the log tells the place, whatever its sender was told."""
    for operation in operations:
        if operation.invoked >= moment:
            continue
        if operation.kind == "send" and (value := operation.records[0].value) in gone:
            (place, *_) = truth[value]
            sent = operation.records[0]._replace(partition=place.partition, offset=place.offset)
            yield replace(operation, outcome="ok", records=(sent,))
        elif operation.completed is None or operation.completed < moment:
            yield operation
        else:
            sent_only = operation.records if operation.kind == "send" else ()
            asked = tuple(record._replace(offset=None) for record in sent_only)
            yield replace(operation, outcome="invoke", completed=None, records=asked)

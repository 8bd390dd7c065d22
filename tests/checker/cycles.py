"""Checks that transactions are serializable: finds cycles of write order and of reads.

The order of writes is compared within one topic, since a transaction is one commit per topic, and
the commits to several topics are not atomic. Reads count across topics.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tests.checker.anomaly import Anomaly
from tests.checker.facts import Facts, Sent, Transaction
from tests.checker.history import Operation, Partition

__all__ = ["cycles"]

_Node = Transaction | Sent


@dataclass(slots=True)
class _Graph:
    """Edges from a node to those after it, each with a description, and whether it is a read
    edge.
    """

    edges: dict[_Node, dict[_Node, tuple[str, bool]]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def add(self, before: _Node, after: _Node, why: str, by_reading: bool) -> None:
        """Add an edge; a read edge replaces a write edge."""
        if before is not after and (by_reading or after not in self.edges[before]):
            self.edges[before][after] = why, by_reading

    def path(self, start: _Node, end: _Node, within: Collection[_Node]) -> list[_Node]:
        """The shortest path from `start` to `end`, which must exist."""
        came_from: dict[_Node, _Node | None] = {start: None}
        pending = deque([start])
        while end not in came_from:
            node = pending.popleft()
            for following in self.edges[node]:
                if following in within and following not in came_from:
                    came_from[following] = node
                    pending.append(following)
        way: list[_Node] = []
        step: _Node | None = end
        while step is not None:
            way.append(step)
            step = came_from[step]
        return way[::-1]


def cycles(facts: Facts) -> Iterator[Anomaly]:
    """Yields G0 and G1c, one for each strongly connected set of transactions."""
    reads, reads_of_topic = _reads(facts)
    reported: list[set[_Node]] = []
    for knot in _knots(reads):
        reported.append(set(knot))
        yield _anomaly(reads, knot, "G1c", by_reading=True)
    if not facts.rules.isolated_writes:
        return
    nodes = {transaction for transaction in facts.transactions if transaction.outcome != "fail"}
    for topic in dict.fromkeys(topic for topic, _ in facts.logs):
        readings = reads_of_topic.get(topic, _Graph())
        writes = _writes(facts, topic, {*nodes, *readings.edges})
        for knot in _knots(writes):
            reported.append(set(knot))
            yield _anomaly(writes, knot, "G0", by_reading=False)
        for before, followers in readings.edges.items():
            for after, (why, _) in followers.items():
                writes.add(before, after, why, True)
        for knot in _knots(writes):
            reading = any(
                writes.edges[node].get(to, ("", False))[1] for node in knot for to in knot
            )
            if reading and not any(other.issubset(knot) for other in reported):
                yield _anomaly(writes, knot, "G1c", by_reading=True)


def _reads(facts: Facts) -> tuple[_Graph, dict[str, _Graph]]:
    """Edges from the sender of a record to the transactions that read it: for all topics together,
    and by topic.
    """
    of_all, of_topic = _Graph(), defaultdict[str, _Graph](_Graph)
    for reader in facts.transactions:
        if reader.outcome == "fail":
            continue
        for poll in reader.polls:
            for record in poll.records:
                sent = facts.sends.get(record.value)
                if sent is not None and sent.outcome != "fail":
                    why = f"{record} was read by {reader.begin.process}"
                    of_all.add(sent.transaction or sent, reader, why, True)
                    of_topic[record.topic].add(sent.transaction or sent, reader, why, True)
    return of_all, of_topic


def _writes(facts: Facts, topic: str, nodes: Collection[_Node]) -> _Graph:
    """Edges between senders in the order of their first records in each partition of the topic."""
    first: dict[Partition, dict[_Node, tuple[int, Sent]]] = defaultdict(dict)
    for sent in facts.sends.values():
        node = sent.transaction or sent
        place = facts.only_place(sent.value) if node in nodes else None
        if place is not None and place[0][0] == topic:
            at = place[1], sent
            first[place[0]][node] = min(
                first[place[0]].get(node, at), at, key=lambda found: found[0]
            )
    graph = _Graph()
    for (name, number), found in first.items():
        before: tuple[int, Sent] | None = None
        for offset, sent in sorted(found.values(), key=lambda at: at[0]):
            if before is not None:
                why = (
                    f"{before[1].value!r} at {name}[{number}]@{before[0]} lies before "
                    f"{sent.value!r} at {offset}"
                )
                graph.add(before[1].transaction or before[1], sent.transaction or sent, why, False)
            before = offset, sent
    return graph


def _anomaly(graph: _Graph, knot: Collection[_Node], name: str, by_reading: bool) -> Anomaly:
    start, end = next(
        (node, to)
        for node in knot
        for to in graph.edges[node]
        if to in knot and graph.edges[node][to][1] >= by_reading
    )
    way = [start, *graph.path(end, start, knot)]
    steps = [graph.edges[node][to][0] for node, to in pairwise(way)]
    evidence: list[Operation] = []
    for node in way[:-1]:
        evidence += [node.operation] if isinstance(node, Sent) else [node.begin, *node.ends]
    return Anomaly(
        name, None, "each of them comes before the other: " + "; ".join(steps), tuple(evidence)
    )


def _knots(graph: _Graph) -> list[list[_Node]]:
    """Strongly connected components of more than one node (Tarjan's algorithm, without
    recursion).
    """
    found: list[list[_Node]] = []
    number: dict[_Node, int] = {}
    lowest: dict[_Node, int] = {}
    path: list[_Node] = []
    on_path: set[_Node] = set()
    for root in list(graph.edges):
        if root in number:
            continue
        calls = [(root, iter(graph.edges[root]))]
        while calls:
            node, following = calls[-1]
            if node not in number:
                number[node] = lowest[node] = len(number)
                path.append(node)
                on_path.add(node)
            after = next(following, None)
            if after is None:
                calls.pop()
                if calls:
                    lowest[calls[-1][0]] = min(lowest[calls[-1][0]], lowest[node])
                if lowest[node] == number[node]:
                    knot = {node}
                    while path[-1] is not node:
                        knot.add(path.pop())
                    path.pop()
                    on_path -= knot
                    if len(knot) > 1:
                        found.append(sorted(knot, key=lambda node: number[node]))
            elif after not in number:
                calls.append((after, iter(graph.edges.get(after, ()))))
            elif after in on_path:
                lowest[node] = min(lowest[node], number[after])
    return found

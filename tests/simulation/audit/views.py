"""What the views of a run must have at a cut, by plain Python, and what is wrong with what was
seen of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from deltaq.views.ticks import Tick
from tests.simulation.actors.view_runners import Offsets, Rows, SeenViews
from tests.simulation.scenario import OTHER, TOPIC

__all__ = ["InputRecord", "WrittenInputs", "audit_views", "expected"]

Place: TypeAlias = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass(frozen=True)
class InputRecord:
    """A record of an input: its key, and its columns, None for a tombstone."""

    key: bytes | None
    row: Mapping[str, Any] | None


@dataclass
class WrittenInputs:
    """What the inputs have: each record by its place, and the places of each transaction."""

    records: dict[Place, InputRecord] = field(default_factory=dict)
    transactions: list[frozenset[Place]] = field(default_factory=list)

    def below(self, topic: str, ends: Mapping[int, int]) -> Iterator[tuple[Place, InputRecord]]:
        """The records of a topic before these offsets, each partition in its order."""
        for place in sorted(self.records):
            of, partition, offset = place
            if of == topic and offset < ends.get(partition, 0):
                yield place, self.records[place]


def expected(inputs: WrittenInputs, cut: Offsets) -> dict[str, Rows]:
    """The views at a cut."""
    transfers = [record.row for _, record in inputs.below(TOPIC, cut.get(TOPIC, {})) if record.row]
    newest: dict[tuple[int, bytes | None], InputRecord] = {}
    for (_, partition, _), record in inputs.below(OTHER, cut.get(OTHER, {})):
        newest[partition, record.key] = record
    owners = defaultdict[int, list[str]](list)
    for record in newest.values():
        if record.row is not None:
            owners[record.row["account"]].append(record.row["owner"])
    credits_ = Counter[int]()
    for transfer in transfers:
        credits_[transfer["target"]] += transfer["amount"]
    sums, accounts = Counter[str | None](), Counter[str | None]()
    for account, amount in credits_.items():
        for owner in (*owners[account],) or (None,):
            sums[owner] += amount
            accounts[owner] += 1
    return {
        "credits": Counter(credits_.items()),
        "owned": Counter((owner, amount, accounts[owner]) for owner, amount in sums.items()),
        "listed": Counter(
            (transfer["source"], transfer["target"], owner)
            for transfer in transfers
            for owner in owners.get(transfer["source"], ())
        ),
        "total": Counter([(sum(sums.values()) if sums else None,)]),
    }


def audit_views(inputs: WrittenInputs, seen: SeenViews, ticks: Sequence[Tick]) -> Iterator[str]:
    """What is wrong with what was seen, and with the ticks that were published."""
    yield from seen.problems
    if [tick.number for tick in ticks] != [*range(1, len(ticks) + 1)]:
        yield f"the ticks are {[tick.number for tick in ticks]}"
    cuts = {
        tick.number: {topic: dict(enumerate(of.ends)) for topic, of in tick.inputs.items()}
        for tick in ticks
    }
    for number, cut in seen.cuts.items():
        if cuts.get(number) != cut:
            yield f"tick {number} was seen at {cut}, and is at {cuts.get(number)}"
    yield from _split_transactions(inputs, cuts)
    yield from _steps_back(cuts)
    at = {number: expected(inputs, cut) for number, cut in cuts.items()}
    for (number, name), rows in seen.rows.items():
        if number not in at or at[number][name] != rows:
            yield f"view {name} at tick {number} has {rows}, not {at.get(number, {}).get(name)}"
    last = cuts.get(max(cuts, default=0), {})
    if any(
        offset >= last.get(topic, {}).get(partition, 0)
        for topic, partition, offset in inputs.records
    ):
        yield "the last tick does not cover all of the inputs"


def _split_transactions(inputs: WrittenInputs, cuts: Mapping[int, Offsets]) -> Iterator[str]:
    for number, cut in cuts.items():
        for places in inputs.transactions:
            inside = {
                place for place in places if place[2] < cut.get(place[0], {}).get(place[1], 0)
            }
            if inside and inside != places:
                yield f"tick {number} has {sorted(inside)} of a transaction, not all of it"


def _steps_back(cuts: Mapping[int, Offsets]) -> Iterator[str]:
    for number, cut in cuts.items():
        before = cuts.get(number - 1, {})
        if any(
            cut.get(topic, {}).get(partition, 0) < end
            for topic, ends in before.items()
            for partition, end in ends.items()
        ):
            yield f"tick {number} is at {cut}, before {before}"

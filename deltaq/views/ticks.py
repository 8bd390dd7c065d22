"""Ticks: what a group of views has published, one record each in the topic `<group>.ticks`.

A tick names its cut: for each input the offsets that it covers. It names the program, and for each
view the offsets of its own topic that the tick has written. It is written in one transaction with
the rows of the views, so the last tick of the topic is the truth about the group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from typing import Any

from deltaq.clock import Clock
from deltaq.errors import Corrupt, UnknownTopic
from deltaq.serde.json_text import compact_json, strict_json
from deltaq.store import Store
from deltaq.tools.positions import Last, offset_ranges
from deltaq.topic import Topic
from deltaq.views.declared import DeclaredInput
from deltaq.views.functions import FunctionSignature
from deltaq.views.program import ViewQuery, ticks_topic

KEPT = 10_000
"""How many ticks the topic keeps: the key of a record is the number of its tick modulo this."""

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class InputCut:
    """What a tick covers of an input: by partition the records from `starts` to before `ends`.

    Of a Delta table, whose address is `delta`, it covers one version, the one before `ends`;
    `topic_id` is the id of the table. `is_keyed`: of a topic the newest record of each key counts,
    as it was compacted then; None where that is not known.
    """

    topic_id: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    delta: str = ""
    is_keyed: bool | None = None


@dataclass(frozen=True, slots=True)
class ViewOffsets:
    """Where the topic of a view ends after a tick, which began at `start`."""

    topic_id: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick; the first one has number 1. `time_ms` is when its cut was chosen.

    `program` is the digest of the program. Its queries, functions and declared inputs are in the
    tick `program_at`: only ticks with another program than the one before have them, and one in
    many. `ruled` are the views that were evaluated by rules.
    """

    number: int
    time_ms: int
    program: str
    program_at: int
    inputs: Mapping[str, InputCut]
    views: Mapping[str, ViewOffsets]
    queries: tuple[ViewQuery, ...] = ()
    functions: tuple[FunctionSignature, ...] = ()
    ruled: tuple[str, ...] = ()
    declared: tuple[DeclaredInput, ...] = ()

    @property
    def key(self) -> bytes:
        """The key of its record."""
        return b"%d" % (self.number % KEPT)

    def value(self) -> bytes:
        """The value of its record, JSON."""
        body: dict[str, object] = {
            "format": _FORMAT,
            "tick": self.number,
            "time": self.time_ms,
            "program": self.program,
            "programAt": self.program_at,
            "inputs": {name: _input_body(cut) for name, cut in self.inputs.items()},
            "views": {
                name: {"id": of.topic_id, "offsets": [of.start, of.end]}
                for name, of in self.views.items()
            },
        }
        if self.queries:
            body["queries"] = [[query.name, query.sql, query.key] for query in self.queries]
        if self.functions:
            body["functions"] = [list(astuple(function)) for function in self.functions]
        if self.ruled:
            body["ruled"] = self.ruled
        if self.declared:
            body["declared"] = [declared.as_json() for declared in self.declared]
        return compact_json(body).encode()


def tick_of(value: bytes, topic: str) -> Tick:
    """The tick of a record. Raises Corrupt."""
    try:
        body: Any = strict_json(value.decode())
        if body["format"] != _FORMAT:
            raise ValueError(f"format {body['format']!r} is not {_FORMAT}")
        return Tick(
            int(body["tick"]),
            int(body["time"]),
            str(body["program"]),
            int(body["programAt"]),
            {name: _input(found) for name, found in body["inputs"].items()},
            {name: _written(found) for name, found in body["views"].items()},
            tuple(map(_query, body.get("queries", []))),
            tuple(map(_function, body.get("functions", []))),
            tuple(map(str, body.get("ruled", []))),
            tuple(map(DeclaredInput.of_json, body.get("declared", []))),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"a tick cannot be parsed: {error}", path=topic) from error


def _input_body(cut: InputCut) -> dict[str, object]:
    body: dict[str, object] = {"id": cut.topic_id, "starts": cut.starts, "ends": cut.ends}
    if cut.delta:
        body["delta"] = cut.delta
    if cut.is_keyed is not None:
        body["keyed"] = cut.is_keyed
    return body


def _input(found: Any) -> InputCut:
    is_keyed = found.get("keyed")
    if not (is_keyed is None or isinstance(is_keyed, bool)):
        raise ValueError(f"keyed is {is_keyed!r}")
    return InputCut(
        str(found["id"]),
        tuple(map(int, found["starts"])),
        tuple(map(int, found["ends"])),
        str(found.get("delta", "")),
        is_keyed,
    )


def _written(found: Any) -> ViewOffsets:
    start, end = map(int, found["offsets"])
    return ViewOffsets(str(found["id"]), start, end)


def _query(found: Any) -> ViewQuery:
    name, sql, key = found
    return ViewQuery(str(name), str(sql), None if key is None else tuple(map(str, key)))


def _function(found: Any) -> FunctionSignature:
    name, parameters, returns, source = found
    return FunctionSignature(str(name), tuple(map(str, parameters)), str(returns), str(source))


def last_tick(store: Store, group: str, clock: Clock) -> Tick | None:
    """The last tick of a group; None before the first. Raises Corrupt, Incompatible,
    Unavailable.
    """
    topic = Topic(ticks_topic(group), store=store, clock=clock)
    try:
        (start, end), *_ = offset_ranges(topic, Last(1)).values()
    except UnknownTopic:
        return None
    found = _read(topic, start, end)
    return found[-1] if found else None


def ticks_from(store: Store, group: str, clock: Clock, number: int) -> list[Tick]:
    """The ticks from this number on that the topic still has. Raises as `last_tick`."""
    topic = Topic(ticks_topic(group), store=store, clock=clock)
    try:
        (start, end), *_ = offset_ranges(topic, number - 1).values()
    except UnknownTopic:
        return []
    return _read(topic, start, end)


def tick_at(store: Store, group: str, clock: Clock, number: int) -> Tick | None:
    """The tick with this number; None if the topic does not have it (any more)."""
    topic = Topic(ticks_topic(group), store=store, clock=clock)
    try:
        # One tick is one record: that of the first tick has offset 0.
        (start, end), *_ = offset_ranges(topic, number - 1, number).values()
    except UnknownTopic:
        return None
    return next((tick for tick in _read(topic, start, end) if tick.number == number), None)


def _read(topic: Topic, start: int, end: int) -> list[Tick]:
    values = topic.to_arrow(start=start, end=end).column("value").to_pylist()
    return [tick_of(value, topic.name) for value in values if value is not None]

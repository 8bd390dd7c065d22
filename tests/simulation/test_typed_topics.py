"""Old and new producers change the schema of one typed topic at once, on a failing store, while
they are killed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from deltaq import Consumer, KafkaError, KafkaException, Producer, Topic, names
from deltaq.delta.schema import delta_schema
from deltaq.producer import sender_topic
from deltaq.serde.schema import TopicSchema
from deltaq.serde.source import schema_of
from deltaq.topics.columns import table_schema
from deltaq.topics.log import TopicLog
from deltaq.topics.metadata import TopicDefinition, definition_of
from deltaq.topics.schema_evolution import evolution
from deltaq.topics.state import TopicChange
from tests.depth import depth
from tests.simulation.actors.clients import token_in
from tests.simulation.actors.injection import inject_faults
from tests.simulation.harness import ROOT, Actor, Harness
from tests.simulation.scenario import TOPIC, scenario_of
from tests.simulator.world import Machine

FIRST = pa.schema([("n", pa.int16())])
SCHEMAS = {
    "old": FIRST,
    "wider": pa.schema([("n", pa.int64()), ("note", pa.string())]),
    "counted": pa.schema([("n", pa.int16()), ("at", pa.struct([("x", pa.int8())]))]),
    "nested": pa.schema(
        [("n", pa.int16()), ("at", pa.struct([("x", pa.int8()), ("y", pa.string())]))]
    ),
    # Only one of these two can ever be a schema of the topic.
    "text": pa.schema([("n", pa.int16()), ("kind", pa.string())]),
    "number": pa.schema([("n", pa.int16()), ("kind", pa.int64())]),
}
WIDTHS = ["short", "integer", "long"]
MESSAGES = 3


def value_of(schema: str, number: int) -> dict[str, Any]:
    """The value with a number, which has something in all fields of the schema."""
    text = f"{schema} {number}"
    others = {
        "note": text,
        "at": {"x": number % 100, "y": text},
        "kind": text if schema == "text" else number,
    }
    value = {"n": number} | {name: others[name] for name in SCHEMAS[schema].names if name != "n"}
    return value | {"at": {"x": number % 100}} if schema == "counted" else value


@dataclass
class Sent:
    """What is known of a message: the place from its report, or why it has none."""

    schema: str
    value: dict[str, Any]
    place: tuple[int, int] | None = None
    failure: KafkaError | None = None


@dataclass
class Run:
    """What the producers of a run did, by the number of the message."""

    harness: Harness
    sent: dict[int, Sent] = field(default_factory=dict)

    @property
    def conf(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": ROOT,
            "num.partitions": 2,
            "message.timeout.ms": 60_000,
            "linger.ms": 0,
            "maintenance.enable": False,
        }


class TypedSender:
    """Produces values of one schema or several, across restarts after kills."""

    def __init__(self, run: Run, schemas: Sequence[str], first: int) -> None:
        self.name = f"{'-'.join(schemas)}-{first}"
        self.is_done = False
        self._run = run
        self._schemas = schemas
        self._numbers = list(range(first, first + MESSAGES))

    def act(self, machine: Machine) -> None:
        harness = self._run.harness
        with Producer(self._run.conf, store=machine.store, clock=machine.clock) as producer:
            while self._numbers:
                machine.clock.sleep(harness.between(0, 2))
                for _ in range(1 + harness.pick(3)):
                    if self._numbers:
                        schema = self._schemas[harness.pick(len(self._schemas))]
                        self._send(producer, schema, self._numbers.pop(0))
        self.is_done = True

    def _send(self, producer: Producer, schema: str, number: int) -> None:
        message = self._run.sent[number] = Sent(schema, value_of(schema, number))
        topic = Topic(TOPIC, SCHEMAS[schema], partitions=2)

        def delivered(error: KafkaError | None, report: Any) -> None:
            if error is None:
                message.place = report.partition(), report.offset()
            elif token_in(error) is None:
                message.failure = error

        try:
            producer.produce(topic, message.value, key=str(number), on_delivery=delivered)
        except KafkaException as error:
            message.failure = error.error


def simulated(seed: int) -> Run:
    """A run in which producers of each schema race."""
    scenario = replace(scenario_of(seed, "mixed"), grows=False, recreates=False)
    harness = Harness(scenario, seed)
    run = Run(harness)
    with harness.world:
        harness.world.run(lambda: _race(run), harness.director)
        check_log(harness)
        harness.world.run(lambda: check_records(run), harness.director)
    return run


def _race(run: Run) -> None:
    harness, clock = run.harness, run.harness.director.clock
    Topic(
        TOPIC, FIRST, partitions=2, conf={"bootstrap.servers": ROOT}, store=harness.director.store
    ).create()
    # Two producers of the same schema race, too, and one has schemas that exclude each other.
    schemas = [*([schema] for schema in SCHEMAS), ["wider"], ["text", "number", "old"]]
    actors: list[Actor] = [TypedSender(run, some, 100 * at) for at, some in enumerate(schemas)]
    threads = [clock.start_thread(harness.keep_alive(actor), actor.name) for actor in actors]
    injecting = clock.start_thread(lambda: inject_faults(harness), "faults")
    for thread in threads:
        thread.join()
    harness.end_faults()
    injecting.join()


def check_log(harness: Harness) -> None:
    """Each schema of the table has all columns of those before it, with the same or a wider
    type.
    """
    disk, folder = harness.network.disk, names.topic_log(TOPIC)
    entries = sorted(found.key for found in disk.list(folder) if found.key.endswith(".json"))
    actions = [json.loads(line) for key in entries for line in disk.get(key).splitlines()]
    texts = [action["metaData"]["schemaString"] for action in actions if "metaData" in action]
    schemas = [
        {each["name"]: each["type"] for each in json.loads(text)["fields"]} for text in texts
    ]
    harness.network.happened["the schema changed"] += len(schemas) - 1
    for before, after in pairwise(schemas):
        assert before != after, "an entry that changes nothing"
        for name, kind in before.items():
            assert holds(after.get(name), kind), (
                f"column {name} was {kind}, and is {after.get(name)}"
            )


def holds(kind: Any, before: Any) -> bool:
    if isinstance(before, dict) and isinstance(kind, dict):
        now = {each["name"]: each["type"] for each in kind.get("fields", ())}
        return kind["type"] == before["type"] and all(
            holds(now.get(each["name"]), each["type"]) for each in before.get("fields", ())
        )
    return bool(kind == before or (kind in WIDTHS and before in WIDTHS[: WIDTHS.index(kind)]))


def check_records(run: Run) -> None:
    """Reported messages are where their reports say, others at most once, and each has the value
    that was sent.
    """
    places: Counter[int] = Counter()
    for place, value in read(run).items():
        number = value["n"]
        sent = run.sent[number]
        places[number] += 1
        assert sent.failure is None, f"{number} failed and is in the topic: {sent.failure}"
        assert sent.place in (None, place), f"{number} is at {place}, not where its report says"
        assert_equal(value, sent.value)
    for number, sent in run.sent.items():
        assert places[number] == 1 if sent.place is not None else places[number] <= 1, number
    written = {run.sent[number].schema for number in places}
    assert not {"text", "number"} <= written, "schemas that exclude each other"
    misfits = set()
    for sent in run.sent.values():
        if sent.failure is not None and sent.failure.code() != KafkaError._MSG_TIMED_OUT:
            assert (
                f"the schema does not fit topic {TOPIC!r}: column 'kind' is" in sent.failure.str()
            )
            misfits.add(sent.schema)
    assert misfits in ({"text"}, {"number"}, set())
    assert not written & misfits
    run.harness.network.happened["a schema was refused"] += len(misfits)


def assert_equal(found: dict[str, Any], sent: dict[str, Any]) -> None:
    for name, part in found.items():
        if isinstance(part, dict):
            assert_equal(part, sent[name])
        else:
            assert part == sent.get(name), f"{name} of {sent}"
    assert sent.keys() <= found.keys()


def read(run: Run) -> dict[tuple[int, int], dict[str, Any]]:
    """All records by their places, as a consumer reads them."""
    found, machine, ends = {}, run.harness.world.machine("last reader"), 0
    conf = {"bootstrap.servers": ROOT, "group.id": "last", "auto.offset.reset": "earliest"}
    with Consumer(
        {**conf, "enable.partition.eof": True, "maintenance.enable": False},
        store=machine.store,
        clock=machine.clock,
    ) as consumer:
        consumer.subscribe([TOPIC])
        while ends < 2:
            message = consumer.poll(60)
            assert message is not None
            if message.error() is not None:
                ends += 1
            else:
                found[message.partition() or 0, message.offset() or 0] = message.value()
    return found


@pytest.mark.timeout(900)
@pytest.mark.fault("P1", "P2", "P3", "P4")
def test_no_guarantee_is_broken_while_producers_change_the_schema_of_a_topic() -> None:
    happened: Counter[str] = Counter()
    for seed in range(depth(6, 300)):
        try:
            happened += simulated(seed).harness.network.happened
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert happened["the schema changed"]
    assert happened["a schema was refused"]
    assert happened["lost race"]
    assert happened["a process was killed"]


def test_a_schema_that_is_not_judged_again_after_a_lost_race_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def evolve_once(log: TopicLog, wanted: TopicSchema, deadline: float) -> TopicDefinition:
        before = definition_of(log)
        found = evolution(TOPIC, before.schema, before.history, wanted)
        if found is not None:
            text = delta_schema(table_schema(schema_of(found.columns)))
            log.change(lambda head, _: TopicChange(head.partitions, {}, text), deadline)
        return definition_of(log)

    monkeypatch.setattr(sender_topic, "evolve_topic", evolve_once)
    with pytest.raises(AssertionError, match=r"column \w+ was|changes nothing|does not fit topic"):
        simulated(0)

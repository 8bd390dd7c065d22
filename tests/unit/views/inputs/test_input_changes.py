"""Inputs of views that change while a runner is at work: they gain columns and partitions, have
wider types, or are created anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from deltaq import AdminClient, Producer, Topic, UnknownTopic
from deltaq.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions
from deltaq.errors import KafkaException
from deltaq.schema_registry import Schema, SchemaRegistryClient
from deltaq.store import forget_memory_store
from deltaq.transactions.cut import cut
from deltaq.views import Views, inputs
from deltaq.views.modes import MODES, Mode
from tests.doubles.views import runner
from tests.unit.views.inputs.test_inputs import ROOT, rows

EVENTS = pa.schema([("k", pa.int32()), ("n", pa.int32())])
OWN = "* exclude (_partition, _offset, _timestamp, _key, _headers)"


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    yield
    forget_memory_store("inputs")


def write(*values: Any, topic: str = "events", **options: Any) -> None:
    with Producer(bootstrap_servers=ROOT) as producer:
        for value in values:
            producer.produce(topic, value, **options)


def evolve(*columns: tuple[str, pa.DataType]) -> None:
    Topic("events", pa.schema([*columns]), bootstrap_servers=ROOT).evolve()


def whole(mode: Mode) -> Views:
    views = Views("g", ROOT)
    views.view("everything", f"select {OWN} from events", mode=mode)
    views.view("newest", f"select {OWN} from events", key=["k"], mode=mode)
    views.view("of_view", "select * from everything", mode=mode)
    return views


@pytest.mark.parametrize("mode", MODES)
def test_views_gain_the_columns_that_a_typed_topic_gains(mode: Mode):
    Topic("events", EVENTS, bootstrap_servers=ROOT).create()
    views = whole(mode)
    with runner(views) as running:
        write({"k": 1, "n": 1})
        running.tick()
        evolve(("k", pa.int32()), ("n", pa.int32()), ("s", pa.string()))
        # Before the next tick, the topics of the views do not have the column.
        assert views.check() == []
        assert views.read().sql("select s from events").to_pylist() == [{"s": None}]
        write({"k": 2, "n": 2, "s": "x"})
        running.tick()
        write({"k": 3, "n": 3, "s": "y"})
        running.tick()
        # Without a record that has it.
        evolve(("k", pa.int32()), ("n", pa.int32()), ("s", pa.string()), ("d", pa.float64()))
        write({"k": 4, "n": 4})
        running.tick()
    expected = [(1, 1, None, None), (2, 2, "x", None), (3, 3, "y", None), (4, 4, None, None)]
    for name in ("everything", "newest", "of_view"):
        assert rows(views, name) == expected
        assert rows(views, name, at=2) == expected[:2]
    assert views.check() == []
    with runner(whole(mode)) as running:
        write({"k": 5, "n": 5, "s": "z", "d": 0.5})
        running.tick()
    assert rows(views, "of_view")[-1] == (5, 5, "z", 0.5)
    assert views.check() == []


def test_a_runner_that_goes_on_from_a_checkpoint_publishes_new_columns():
    for topic in ("events", "others"):
        Topic(topic, EVENTS, bootstrap_servers=ROOT).create()
    views = Views("g", ROOT)
    views.view("sums", "select k, sum(n) as s from others group by k", mode="incremental")
    views.view("everything", f"select {OWN} from events", mode="full")
    with runner(views) as running:
        write({"k": 1, "n": 1})
        write({"k": 1, "n": 1}, topic="others")
        running.tick()
    evolve(("k", pa.int32()), ("n", pa.int32()), ("s", pa.string()))
    with runner(views) as running:
        write({"k": 2, "n": 2, "s": "x"})
        running.tick()
        write({"k": 3, "n": 3, "s": "y"})
        write({"k": 1, "n": 2}, topic="others")
        running.tick()
    assert rows(views, "everything") == [(1, 1, None), (2, 2, "x"), (3, 3, "y")]
    assert rows(views, "sums") == [(1, 3)]
    assert views.check() == []


@pytest.mark.parametrize("mode", MODES)
def test_views_have_the_wider_types_that_a_typed_topic_has(mode: Mode):
    Topic("events", EVENTS, bootstrap_servers=ROOT).create()
    views = whole(mode)
    with runner(views) as running:
        write({"k": 1, "n": 1})
        running.tick()
        evolve(("k", pa.int32()), ("n", pa.int64()))
        assert views.check() == []
        write({"k": 2, "n": 2**40})
        running.tick()
    for name in ("everything", "newest", "of_view"):
        assert rows(views, name) == [(1, 1), (2, 2**40)]
    assert views.check() == []


@pytest.mark.parametrize("mode", MODES)
def test_views_gain_the_columns_that_a_schema_of_the_registry_gains(mode: Mode):
    Topic("events", bootstrap_servers=ROOT).create()
    registry = SchemaRegistryClient({"url": ROOT})

    def register(**properties: str) -> bytes:
        schema = {
            "type": "object",
            "properties": {name: {"type": kind} for name, kind in properties.items()},
            "additionalProperties": False,
        }
        number = registry.register_schema("events-value", Schema(json.dumps(schema), "JSON"))
        return b"\0" + number.to_bytes(4, "big")

    before = register(k="integer", n="integer")
    views = Views("g", ROOT)
    views.input("events", format="json_schema")
    views.view("everything", f"select {OWN} from events", mode=mode)
    with runner(views) as running:
        write(before + b'{"k": 1, "n": 1}')
        running.tick()
        after = register(k="integer", n="integer", s="string")
        assert Views("g", ROOT).check() == []
        write(before + b'{"k": 2, "n": 2}', after + b'{"k": 3, "n": 3, "s": "x"}')
        running.tick()
    assert rows(views, "everything") == [(1, 1, None), (2, 2, None), (3, 3, "x")]
    assert rows(views, "everything", at=1) == [(1, 1, None)]
    assert Views("g", ROOT).check() == []


@pytest.mark.parametrize("mode", MODES)
def test_partitions_of_a_declared_input_may_be_added(mode: Mode):
    Topic("events", bootstrap_servers=ROOT).create()
    views = Views("g", ROOT)
    views.input("events", "n INTEGER")
    views.view("v", "select sum(n) as s, count(*) as c from events", mode=mode)
    with runner(views) as running:
        write(b'{"n": 1}')
        running.tick()
        with AdminClient(bootstrap_servers=ROOT) as admin:
            (grown,) = admin.create_partitions([NewPartitions("events", 3)]).values()
            grown.result()
        write(b'{"n": 2}', partition=2)
        running.tick()
        assert running.last is not None
        assert running.last.inputs["events"].ends == (1, 0, 1)
    assert rows(views, "v") == [(3, 2)]
    assert views.check() == []


def test_a_partition_may_be_added_while_a_cut_is_chosen(monkeypatch: pytest.MonkeyPatch):
    Topic("events", EVENTS, bootstrap_servers=ROOT).create()

    def cut_before(*args: Any, **options: Any) -> dict[str, dict[int, int]]:
        monkeypatch.undo()
        found = cut(*args, **options)
        with AdminClient(bootstrap_servers=ROOT) as admin:
            (grown,) = admin.create_partitions([NewPartitions("events", 2)]).values()
            grown.result()
        return found

    views = Views("g", ROOT)
    views.view("v", "select k, n from events")
    with runner(views) as running:
        write({"k": 1, "n": 1})
        monkeypatch.setattr(inputs, "cut", cut_before)
        first = running.tick()
        write({"k": 2, "n": 2}, partition=1)
        second = running.tick()
    assert first is not None
    assert first.inputs["events"].ends == (1,)
    assert second is not None
    assert second.inputs["events"].ends == (1, 1)
    assert rows(views, "v") == [(1, 1), (2, 2)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("before", ["delete", "compact"])
def test_each_tick_is_of_the_cleanup_policy_that_its_input_had(mode: Mode, before: str):
    config = {"cleanup.policy": before}
    Topic("events", EVENTS, config=config, bootstrap_servers=ROOT).create()
    views = Views("g", ROOT)
    views.view("sums", "select sum(n) as s from events", mode=mode)
    numbers = {"delete": 3, "compact": 2}
    with runner(views) as running:
        write({"k": 1, "n": 1}, {"k": 1, "n": 2}, key="a")
        running.tick()
        after = alter_policy(before)
        tick = running.tick()
        assert tick is not None
        assert (rows(views, "sums", at=1), rows(views, "sums")) == (
            [(numbers[before],)],
            [(numbers[after],)],
        )
        assert views.check() == views.check(at=1) == []
        assert running.tick() is None
        alter_policy(after)
    # A runner that begins at a checkpoint.
    views.run(until="now")
    assert rows(views, "sums") == [(numbers[before],)]
    assert views.check() == views.check(at=2) == []


def alter_policy(now: str) -> str:
    """The other policy, which the topic has then."""
    other = "compact" if now == "delete" else "delete"
    entry = ConfigEntry("cleanup.policy", other, incremental_operation=AlterConfigOpType.SET)
    with AdminClient(bootstrap_servers=ROOT) as admin:
        resource = ConfigResource("topic", "events", incremental_configs=[entry])
        (done,) = admin.incremental_alter_configs([resource]).values()
        done.result()
    return other


@pytest.mark.parametrize("is_declared", [False, True])
def test_a_topic_that_is_created_anew_stops_a_runner_at_work(is_declared: bool):
    topic = Topic("events", None if is_declared else EVENTS, bootstrap_servers=ROOT).create()
    views = Views("g", ROOT)
    if is_declared:
        views.input("events", "k INTEGER, n INTEGER")
    views.view("v", "select k, n from events")
    row = {"k": 1, "n": 1}
    with runner(views) as running:
        write(json.dumps(row) if is_declared else row)
        running.tick()
        topic.delete()
        with pytest.raises(UnknownTopic, match="'events' does not exist"):
            running.tick()
        topic.create()
        reason = "'events' was deleted and created again: delete the group of views that reads it"
        for _ in range(2):
            with pytest.raises(UnknownTopic, match=reason):
                running.tick()
            # Also when it has as many records again.
            write(json.dumps(row) if is_declared else row)
    with pytest.raises(UnknownTopic, match=reason), runner(views) as later:
        later.tick()
    assert rows(views, "v") == [(1, 1)]
    with pytest.raises(KafkaException, match="what topic 'events' had at tick 1"):
        views.check()
    # The way out that the error names.
    views.delete()
    views.run(until="now")
    assert rows(views, "v") == [(1, 1), (1, 1)]
    assert views.check() == []

"""The programs with the import of deltaq. `make side-by-side` runs them unchanged, with a
broker.
"""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import confluent_kafka.schema_registry.avro
import confluent_kafka.serialization
import pytest

from deltaq import AdminClient, Consumer, Producer, Topic, TopicPartition
from deltaq.admin import ConsumerGroupTopicPartitions
from deltaq.schema_registry import SchemaRegistryClient
from deltaq.schema_registry.avro import AvroDeserializer, AvroSerializer
from deltaq.serde import MessageField, SerializationContext
from examples.kafka_migration.avro_service import BAD, FIRST, NEXT
from examples.kafka_migration.registry_double import registry_double
from examples.kafka_migration.side_by_side import HERE, PROGRAMS, changes, for_deltaq


def load(name: str, folder: Path) -> dict[str, Any]:
    """The names in a program whose import is that of deltaq."""
    changed = folder / name
    changed.write_text(for_deltaq((HERE / name).read_text()))
    return runpy.run_path(str(changed))


ARGUMENTS = {"avro_service.py": 2}
"""Of how many addresses a program needs: of the topics, and of the registry, which is the same."""

IMPORTS = {"avro_service.py": 5}


@pytest.mark.parametrize("name", [*PROGRAMS, "copy_topic.py"])
def test_only_the_imports_of_each_program_change(name):
    found = changes((HERE / name).read_text())
    shown = (HERE / "README.md").read_text()
    assert len(found) == IMPORTS.get(name, 1)
    for before, after in found:
        assert before.startswith(("import confluent_kafka", "from confluent_kafka"))
        assert f"-{before}\n+{after}\n" in shown


def test_confluents_own_registry_client_and_serializers_agree_with_deltaqs(memory_root):
    """Through a stand-in for the registry: `make side-by-side` runs the whole program with a
    broker.
    """
    client, avro = confluent_kafka.schema_registry, confluent_kafka.schema_registry.avro
    with registry_double(memory_root) as url:
        theirs, ours = (
            client.SchemaRegistryClient({"url": url}),
            SchemaRegistryClient({"url": memory_root}),
        )
        about = confluent_kafka.serialization
        context = about.SerializationContext("t", about.MessageField.VALUE)
        own = SerializationContext("t", MessageField.VALUE)
        first, following = json.dumps(FIRST), json.dumps(NEXT)
        written = avro.AvroSerializer(theirs, first)({"id": 1, "city": "Graz"}, context)
        assert written == AvroSerializer(ours, first)({"id": 1, "city": "Graz"}, own)
        newer = AvroSerializer(ours, following)({"id": 2, "city": "Linz", "weight": 1.5}, own)
        assert avro.AvroDeserializer(theirs, following)(newer, context) == {
            "id": 2,
            "city": "Linz",
            "weight": 1.5,
        }
        assert AvroDeserializer(ours, following)(written, own)["weight"] is None
        with pytest.raises(client.SchemaRegistryError) as refused:
            theirs.register_schema("t-value", client.Schema(json.dumps(BAD), "AVRO"))
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)


def test_the_programs_print_with_deltaq_what_they_print_with_kafka(memory_root, tmp_path, capsys):
    for name in PROGRAMS:
        load(name, tmp_path)["main"](*[memory_root] * ARGUMENTS.get(name, 1))
    assert capsys.readouterr().out.splitlines() == [
        "creating it again: TOPIC_ALREADY_EXISTS",
        "partitions: [0, 1, 2]",
        "retention.ms = 172800000",
        "cleanup.policy = delete",
        "a topic that does not exist: UNKNOWN_TOPIC_OR_PART",
        "not delivered: 0",
        "delivered by partition: [(0, 120), (1, 90), (2, 90)]",
        "refused: ['too large: MSG_SIZE_TOO_LARGE']",
        "assigned [0, 1, 2], read 150",
        "assigned [0, 1, 2], read 160",
        "read twice: 10",
        "orders: 300",
        "the first orders of customer-7, in order: ['order 7', 'order 17', 'order 27']",
        "positions: [120, 90, 90]",
        "committed: [120, 90, 90]",
        "group: billing EMPTY members: 0",
        "lag: {0: 0, 1: 0, 2: 0}",
        "moved: [(1, 10, None)]",
        "lag: {0: 0, 1: 80, 2: 0}",
        "empty groups: ['billing', 'invoicing']",
        "deleted: None",
        "deleted again: GROUP_ID_NOT_FOUND",
        "not delivered: 0",
        "watermarks: (0, 60)",
        "offset of the time: 40 of a later one: -1",
        "event: _PARTITION_EOF at 60",
        "seen: 40 to 59",
        "time of the last: (1, 1700000059000)",
        "seek of a partition that is not assigned: True",
        "closed: Consumer closed",
        "one has [0, 1, 2, 3]",
        "of 4 partitions each has 2 2 and none is shared: True",
        "read by two: 20",
        "read: 100 different: 100",
        "without a key: ['INVALID_RECORD']",
        "not delivered: 0",
        "table: {'device-0': 20, 'device-1': 21, 'device-2': 22, 'device-4': 24}",
        "offsets: True",
        "assigned: [0]",
        "of one producer, in order: ['ada 0', 'ada 1', 'ada 2']",
        "not delivered: 0",
        "refused record: _VALUE_SERIALIZATION",
        "subjects: ['shipments-value']",
        "compatible: True",
        "refused version: 409 409",
        "not delivered: 0",
        "refused record: _VALUE_SERIALIZATION",
        "versions: [1, 2]",
        "latest: 2 ['id', 'city', 'weight']",
        "{'id': 1, 'city': 'Graz', 'weight': None}",
        "{'id': 2, 'city': 'Linz', 'weight': None}",
        "{'id': 3, 'city': 'Wels', 'weight': 1.5}",
    ]


def test_a_copied_topic_has_all_records_and_the_group_goes_on_where_it_was(
    memory_root, local_root, tmp_path
):
    source = {"bootstrap.servers": memory_root}
    Topic("t", partitions=3, conf=source).create()
    with Producer(source) as producer:
        for number in range(20):
            headers = [("h", b"%d" % number)]
            producer.produce(
                "t", b"%d" % number, b"k", number % 2, timestamp=1000 + number, headers=headers
            )
    admin = AdminClient(source)
    admin.delete_records([TopicPartition("t", 0, 4)])[TopicPartition("t", 0)].result(20)
    offsets = [TopicPartition("t", 0, 6), TopicPartition("t", 1, 3)]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions("g", offsets)])["g"].result(20)

    assert load("copy_topic.py", tmp_path)["copy"](memory_root, local_root, "t", "g") == 16

    rows = Topic("t", conf={"bootstrap.servers": local_root}).to_arrow()
    of_first = rows.filter([partition == 0 for partition in rows["_partition"].to_pylist()])
    assert of_first["_offset"].to_pylist() == list(range(6))
    assert of_first["value"].to_pylist() == [b"%d" % number for number in range(8, 20, 2)]
    with Consumer(bootstrap_servers=local_root, group_id="g", enable_auto_commit=False) as consumer:
        consumer.subscribe(["t"])
        next_of = {message.partition(): message for message in reversed(consumer.consume(11, 20))}
    assert {partition: message.value() for partition, message in next_of.items()} == {
        0: b"12",
        1: b"7",
    }
    assert next_of[0].timestamp()[1] == 1012
    assert next_of[0].headers() == [("h", b"12")]


def test_a_copy_without_arguments_prints_its_usage(monkeypatch):
    monkeypatch.setattr("sys.argv", ["copy_topic.py"])
    with pytest.raises(
        SystemExit, match=r"^usage: python copy_topic\.py BOOTSTRAP_SERVERS ROOT TOPIC \[GROUP\]$"
    ):
        runpy.run_path(str(HERE / "copy_topic.py"), run_name="__main__")

"""`deltaq.compat.cimpl` in the place of confluent-kafka's C module: its names, and the real Python
layers on top.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import Future
from typing import ClassVar

import confluent_kafka.cimpl
import pytest

import deltaq.compat.cimpl
from deltaq.admin import ResourceType

PROGRAM = """
import sys
import deltaq.compat.cimpl
sys.modules["confluent_kafka.cimpl"] = deltaq.compat.cimpl

import asyncio
import confluent_kafka
from confluent_kafka import (
    ConsumerGroupState, ConsumerGroupTopicPartitions, DeserializingConsumer, KafkaException, SerializingProducer,
    TopicCollection, TopicPartition,
)
from confluent_kafka.admin import (
    AclBindingFilter, AclOperation, AclPermissionType, AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource,
    ConsumerGroupDescription, NewPartitions, NewTopic, OffsetSpec, ResourcePatternType, ResourceType, TopicDescription,
)
from confluent_kafka.aio import AIOConsumer, AIOProducer
from confluent_kafka.error import ConsumeError
from confluent_kafka.serialization import (
    IntegerDeserializer, IntegerSerializer, StringDeserializer, StringSerializer,
)

root = {"bootstrap.servers": "memory://cimpl"}

# Python layers of producers and consumers
reports = []
producer = SerializingProducer({**root, "key.serializer": StringSerializer(), "value.serializer": IntegerSerializer()})
for number in range(3):
    producer.produce("t", key="k", value=number, on_delivery=lambda error, message: reports.append(message.offset()))
assert producer.flush(20) == 0 and reports == [0, 1, 2]
settings = {**root, "group.id": "g", "auto.offset.reset": "earliest", "enable.partition.eof": True}
consumer = DeserializingConsumer({**settings, "value.deserializer": IntegerDeserializer()})
consumer.subscribe(["t"])
assert [consumer.poll(20).value() for _ in range(3)] == [0, 1, 2]
try:
    consumer.poll(20)
    raise AssertionError("no end of the partition")
except ConsumeError as error:
    assert error.name == "_PARTITION_EOF"
group = consumer.consumer_group_metadata()

# The admin client
admin = AdminClient(root)
assert admin.create_topics([NewTopic("u", 1)])["u"].result(20) is None
try:
    admin.create_topics([NewTopic("u", 1)])["u"].result(20)
    raise AssertionError("created twice")
except KafkaException as error:
    assert error.args[0].name() == "TOPIC_ALREADY_EXISTS"
assert admin.create_partitions([NewPartitions("u", 2)])["u"].result(20) is None
described = admin.describe_topics(TopicCollection(["u", "missing"]))
topic = described["u"].result(20)
assert type(topic) is TopicDescription and [each.id for each in topic.partitions] == [0, 1], vars(topic)
assert described["missing"].exception(20).args[0].name() == "UNKNOWN_TOPIC_OR_PART"
assert sorted(admin.list_topics(timeout=20).topics) == ["t", "u"]
change = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
resource = ConfigResource(ResourceType.TOPIC, "u", incremental_configs=[change])
assert admin.incremental_alter_configs([resource])[resource].result(20) is None
entry = admin.describe_configs([resource])[resource].result(20)["retention.ms"]
assert type(entry) is ConfigEntry and entry.value == "1000"
missing = ConfigResource(ResourceType.TOPIC, "missing")
assert admin.describe_configs([missing])[missing].exception(20).args[0].name() == "UNKNOWN_TOPIC_OR_PART"
place = TopicPartition("t", 0)
assert admin.list_offsets({place: OffsetSpec.latest()})[place].result(20).offset == 3
member = admin.describe_consumer_groups(["g"])["g"].result(20)
assert type(member) is ConsumerGroupDescription and member.state is ConsumerGroupState.STABLE
assert len(member.members) == 1 and member.members[0].assignment.topic_partitions == [place]
consumer.commit(asynchronous=False)
consumer.close()
asked = [ConsumerGroupTopicPartitions("g", [place])]
assert admin.list_consumer_group_offsets(asked)["g"].result(20).topic_partitions[0].offset == 3
listed = admin.list_consumer_groups(states={ConsumerGroupState.EMPTY}).result(20)
assert [each.group_id for each in listed.valid] == ["g"]
altered = [ConsumerGroupTopicPartitions("g", [TopicPartition("t", 0, 1)])]
assert admin.alter_consumer_group_offsets(altered)["g"].result(20).topic_partitions[0].error is None
assert admin.delete_records([TopicPartition("t", 0, 2)])[place].result(20).low_watermark == 2
any_acl = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
)
assert admin.describe_acls(any_acl).exception(20).args[0].name() == "_UNSUPPORTED_FEATURE"
cluster = admin.describe_cluster().result(20)
assert [node.id for node in cluster.nodes] == [cluster.controller.id]
assert admin.delete_consumer_groups(["g"])["g"].result(20) is None
assert admin.delete_topics(["u"])["u"].result(20) is None

# asyncio
async def main():
    producer = AIOProducer(dict(root))
    delivery = await producer.produce("t", value=b"aio")
    await producer.flush()
    message = await delivery
    await producer.close()
    consumer = AIOConsumer({**root, "group.id": "a", "auto.offset.reset": "earliest"})

    async def assigned(given, partitions):
        assert given is consumer
        await consumer.assign([TopicPartition("t", 0, message.offset())])

    await consumer.subscribe(["t"], on_assign=assigned)
    found = await consumer.poll(20.0)
    await consumer.close()
    return found.value()

assert asyncio.run(main()) == b"aio"

# share groups
resource = ConfigResource(ConfigResource.Type.GROUP, "workers", incremental_configs=[
    ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
])
for result in admin.incremental_alter_configs([resource]).values():
    result.result(20)
with confluent_kafka.ShareConsumer(root | {"group.id": "workers"}) as worker:
    worker.subscribe(["t"])
    taken = worker.poll(20)
    assert taken[0].delivery_count() == 1
    assert worker.commit_sync() == {TopicPartition("t", 0): None}
reading = confluent_kafka.DeserializingShareConsumer(
    root | {"group.id": "readers", "value.deserializer": IntegerDeserializer()}
)
with reading:
    reading.subscribe(["t"])
    assert reading.poll(0).is_empty()
"""  # noqa: E501


def test_all_names_of_the_c_module_exist():
    theirs = {name for name in dir(confluent_kafka.cimpl) if not name.startswith("__")}
    assert {name for name in theirs if not hasattr(deltaq.compat.cimpl, name)} == set()


def test_the_numbers_of_the_c_module_are_the_same():
    theirs = {
        name: value for name, value in vars(confluent_kafka.cimpl).items() if isinstance(value, int)
    }
    assert {name: getattr(deltaq.compat.cimpl, name) for name in theirs} == theirs


def test_the_python_layers_of_confluent_kafka_run_on_deltaq():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


class _WithoutError:
    """A resource whose `error` cannot be set."""

    __slots__ = ()
    restype = ResourceType.TOPIC
    name = "missing"
    set_config_dict: ClassVar[dict[str, str]] = {}
    incremental_configs: ClassVar[list[object]] = []


def test_an_answer_that_cannot_be_made_is_raised_by_its_future():
    """An exception in a callback of a future is only logged, and the program would wait for
    ever.
    """
    admin = deltaq.compat.cimpl._AdminClientImpl({"bootstrap.servers": "memory://answers"})
    answer: Future[object] = Future()
    admin.describe_configs([_WithoutError()], answer)
    with pytest.raises(AttributeError, match="error"):
        answer.result(20)

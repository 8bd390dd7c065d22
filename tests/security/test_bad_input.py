"""A wrong call raises before any store request, with the value and the remedy."""

from __future__ import annotations

import builtins
import math
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from deltaq import (
    Consumer,
    KafkaException,
    Message,
    MessageTooLarge,
    Producer,
    Topic,
    TopicPartition,
)
from deltaq.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    TopicCollection,
)
from deltaq.store import MemoryStore, ObjectEntry, PollInterval, Watch

pytestmark = pytest.mark.fault("K1")

NAN = math.nan
ROOT = {"bootstrap.servers": "memory://untouched"}


class UntouchableStore:
    """A store that refuses every request; `touched` lists the requests."""

    url = "memory://untouched"
    poll_interval = PollInterval(0.001, 0.001)
    is_remote = False
    case_sensitive = True

    def __init__(self) -> None:
        self.touched: builtins.list[str] = []

    def _touch(self, operation: str, key: str) -> NoReturn:
        self.touched.append(f"{operation} {key}")
        raise AssertionError(f"{operation} of {key!r} before the arguments were checked")

    def get(self, key: str, size_max: int | None = None) -> bytes:
        self._touch("get", key)

    def get_impatient(self, key: str, size_max: int | None = None) -> bytes:
        self._touch("get_impatient", key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._touch("get_range", key)

    def put(self, key: str, data: bytes | memoryview) -> None:
        self._touch("put", key)

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        self._touch("create", key)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        self._touch("list", prefix)

    def list_some(self, prefix: str, start_after: str = "") -> builtins.list[ObjectEntry]:
        self._touch("list_some", prefix)

    def list_folders(self, prefix: str) -> builtins.list[str]:
        self._touch("list_folders", prefix)

    def delete(self, key: str) -> None:
        self._touch("delete", key)

    def sync(self, folder: str) -> None:
        self._touch("sync", folder)

    def remove_unfinished(self) -> Iterator[int]:
        self._touch("remove_unfinished", "")
        return iter(())

    def watch(self) -> Watch:
        self._touch("watch", "")


class Order(BaseModel):
    id: int


Call = tuple[str, Callable[[Any], object], type[Exception], str]

PRODUCER: list[Call] = [
    (
        "produce to nothing",
        lambda p: p.produce(None, b"v"),
        TypeError,
        "topic must be str or Topic, not NoneType",
    ),
    (
        "produce to a bad name",
        lambda p: p.produce("a/b", b"v"),
        KafkaException,
        "'a/b'.*use 1 to 249",
    ),
    (
        "produce a number",
        lambda p: p.produce("t", 5),
        TypeError,
        "value must be bytes or str, not int",
    ),
    ("produce a bytearray", lambda p: p.produce("t", bytearray(b"v")), TypeError, "not bytearray"),
    ("produce a list", lambda p: p.produce("t", [b"v"]), TypeError, "not list"),
    (
        "produce a wrong field",
        lambda p: p.produce(Topic("t", Order), {"id": "x"}),
        KafkaException,
        "id",
    ),
    (
        "produce an unknown field",
        lambda p: p.produce(Topic("t", Order), {"id": 1, "x": 1}),
        KafkaException,
        "x",
    ),
    (
        "a key that is a number",
        lambda p: p.produce("t", b"v", 5),
        TypeError,
        "key must be bytes or str, not int",
    ),
    ("a lone surrogate", lambda p: p.produce("t", "\ud800"), ValueError, "surrogate"),
    ("a partition of -2", lambda p: p.produce("t", b"v", partition=-2), KafkaException, "-2"),
    (
        "a fraction of a partition",
        lambda p: p.produce("t", b"v", partition=1.5),
        TypeError,
        "float",
    ),
    (
        "a partition that is none",
        lambda p: p.produce("t", b"v", partition=None),
        TypeError,
        "NoneType",
    ),
    (
        "a negative time",
        lambda p: p.produce("t", b"v", timestamp=-1),
        KafkaException,
        "-1 is outside 0.*milliseconds",
    ),
    (
        "a time in ns",
        lambda p: p.produce("t", b"v", timestamp=1795258300560000000),
        KafkaException,
        "milliseconds",
    ),
    ("a time that is no number", lambda p: p.produce("t", b"v", timestamp="now"), TypeError, "str"),
    (
        "headers of one text",
        lambda p: p.produce("t", b"v", headers="abc"),
        TypeError,
        "dict or a list",
    ),
    (
        "a header of a number",
        lambda p: p.produce("t", b"v", headers=[("a", 1)]),
        TypeError,
        "header 'a' must be",
    ),
    (
        "a header of three",
        lambda p: p.produce("t", b"v", headers=[("a", b"", b"")]),
        TypeError,
        "pair",
    ),
    (
        "a callback that is none",
        lambda p: p.produce("t", b"v", on_delivery=5),
        TypeError,
        "callable, not int",
    ),
    (
        "a value too large",
        lambda p: p.produce("t", b"v" * 1_000_001),
        KafkaException,
        "1000001.*1000000",
    ),
    (
        "a key too large",
        lambda p: p.produce("t", None, b"k" * 1_000_001),
        KafkaException,
        "1000001.*1000000",
    ),
    (
        "headers too large",
        lambda p: p.produce("t", None, headers={"h": b"x" * 10**6}),
        KafkaException,
        "1000001",
    ),
    (
        "a batch of texts",
        lambda p: p.produce_batch("t", ["v"]),
        TypeError,
        "index 0 must be a dict, not str",
    ),
    ("arrow that is none", lambda p: p.produce_arrow("t", [1]), TypeError, "Arrow table.*not list"),
    (
        "arrow to a bad name",
        lambda p: p.produce_arrow("..", pa.table({"value": [b"v"]})),
        KafkaException,
        "'..'",
    ),
    ("poll until NaN", lambda p: p.poll(NAN), ValueError, "timeout.*nan"),
    ("poll for a text", lambda p: p.poll("1"), TypeError, "timeout.*str"),
    ("flush until NaN", lambda p: p.flush(NAN), ValueError, "timeout.*nan"),
    ("flush for a text", lambda p: p.flush("1"), TypeError, "timeout.*str"),
    ("resolve without a token", lambda p: p.resolve("t", "x"), ValueError, "'x' is not the token"),
    ("resolve in a bad topic", lambda p: p.resolve("a b", "1:x"), KafkaException, "'a b'"),
    ("resolve until NaN", lambda p: p.resolve("t", "1:x", NAN), ValueError, "timeout.*nan"),
]

TP = TopicPartition
BAD = [TP("a/b", 0, 0)]

CONSUMER: list[Call] = [
    ("subscribe to a text", lambda c: c.subscribe("t"), TypeError, "must be a list, not str"),
    ("subscribe to nothing", lambda c: c.subscribe([]), KafkaException, "at least one topic"),
    ("subscribe to a number", lambda c: c.subscribe([5]), TypeError, "str or Topic, not int"),
    (
        "subscribe to a bad name",
        lambda c: c.subscribe(["a/b"]),
        KafkaException,
        "'a/b'.*use 1 to 249",
    ),
    (
        "subscribe to a bad pattern",
        lambda c: c.subscribe(["^[a"]),
        KafkaException,
        r"'\^\[a' is not a regular",
    ),
    (
        "a callback that is none",
        lambda c: c.subscribe(["t"], on_assign=5),
        TypeError,
        "on_assign must be callable",
    ),
    ("assign a text", lambda c: c.assign("t"), TypeError, "list of TopicPartition"),
    ("assign a bad name", lambda c: c.assign(BAD), KafkaException, "'a/b'"),
    ("assign partition -1", lambda c: c.assign([TP("t", -1)]), KafkaException, "-1.*negative"),
    ("assign offset -7", lambda c: c.assign([TP("t", 0, -7)]), KafkaException, "-7.*OFFSET_"),
    (
        "assign twice the same",
        lambda c: c.assign([TP("t", 0), TP("t", 0)]),
        KafkaException,
        "twice",
    ),
    ("more of a bad name", lambda c: c.incremental_assign(BAD), KafkaException, "'a/b'"),
    (
        "less of what is not there",
        lambda c: c.incremental_unassign([TP("t", 0)]),
        KafkaException,
        r"t \[0\]",
    ),
    ("poll until NaN", lambda c: c.poll(NAN), ValueError, "timeout.*nan"),
    ("poll for a text", lambda c: c.poll("1"), TypeError, "timeout.*str"),
    ("consume -1", lambda c: c.consume(-1), ValueError, "between 0 and"),
    ("consume until NaN", lambda c: c.consume(1, NAN), ValueError, "timeout.*nan"),
    ("consume no rows", lambda c: c.consume_arrow(0), ValueError, "at least 1"),
    ("consume arrow until NaN", lambda c: c.consume_arrow(1, NAN), ValueError, "timeout.*nan"),
    (
        "seek in what is not assigned",
        lambda c: c.seek(TP("t", 0, 0)),
        KafkaException,
        r"t\[0\] is not assigned",
    ),
    ("seek a number", lambda c: c.seek(5), TypeError, "TopicPartition"),
    ("seek to -7", lambda c: c.seek(TP("t", 0, -7)), KafkaException, "-7"),
    ("pause a number", lambda c: c.pause(5), TypeError, "list of TopicPartition"),
    ("resume a number", lambda c: c.resume(5), TypeError, "list of TopicPartition"),
    ("position of a number", lambda c: c.position(5), TypeError, "list of TopicPartition"),
    ("committed of a number", lambda c: c.committed(5), TypeError, "list of TopicPartition"),
    ("committed of a bad name", lambda c: c.committed(BAD), KafkaException, "'a/b'"),
    ("watermarks of a number", lambda c: c.get_watermark_offsets(5), TypeError, "TopicPartition"),
    (
        "watermarks of a bad name",
        lambda c: c.get_watermark_offsets(BAD[0]),
        KafkaException,
        "'a/b'",
    ),
    (
        "watermarks of a negative partition",
        lambda c: c.get_watermark_offsets(TopicPartition("t", -3)),
        KafkaException,
        "-3",
    ),
    ("offsets for a bad name", lambda c: c.offsets_for_times(BAD), KafkaException, "'a/b'"),
    (
        "offsets for a negative time",
        lambda c: c.offsets_for_times([TP("t", 0, -5)]),
        KafkaException,
        "-5 is not a time",
    ),
    ("commit nothing", lambda c: c.commit(asynchronous=False), KafkaException, "No offset"),
    ("commit a number", lambda c: c.commit(offsets=5), TypeError, "list of TopicPartition"),
    (
        "commit an event",
        lambda c: c.commit(Message("t", 0, None)),
        KafkaException,
        "only a consumed record",
    ),
    (
        "commit both",
        lambda c: c.commit(Message("t", 0, 1), [TP("t", 0, 1)]),
        ValueError,
        "mutually exclusive",
    ),
    ("commit in another way", lambda c: c.commit(nonsense=1), TypeError, "'nonsense'"),
    (
        "commit a bad name",
        lambda c: c.commit(offsets=BAD, asynchronous=False),
        KafkaException,
        "'a/b'",
    ),
    (
        "commit a negative partition",
        lambda c: c.commit(offsets=[TP("t", -3, 1)]),
        KafkaException,
        "-3.*negative",
    ),
    ("store neither", lambda c: c.store_offsets(), ValueError, "either message or offsets"),
    ("store a number", lambda c: c.store_offsets(offsets=5), TypeError, "list of TopicPartition"),
]

ADMIN: list[Call] = [
    ("create a text", lambda a: a.create_topics("t"), TypeError, "list of NewTopic.*not str"),
    ("create a bad name", lambda a: a.create_topics([NewTopic("a/b")]), KafkaException, "'a/b'"),
    ("create -5 partitions", lambda a: a.create_topics([NewTopic("t", -5)]), ValueError, "-5"),
    (
        "create 10001 partitions",
        lambda a: a.create_topics([NewTopic("t", 10_001)]),
        ValueError,
        "10001",
    ),
    (
        "create until NaN",
        lambda a: a.create_topics([NewTopic("t")], request_timeout=NAN),
        ValueError,
        "nan",
    ),
    (
        "create before now",
        lambda a: a.create_topics([NewTopic("t")], request_timeout=-1),
        ValueError,
        "-1.*outside",
    ),
    (
        "create with a wrong setting",
        lambda a: a.create_topics([NewTopic("t", config={"retention.ms": "soon"})]),
        KafkaException,
        "retention.ms.*soon|soon.*retention.ms",
    ),
    (
        "create with an unknown setting",
        lambda a: a.create_topics([NewTopic("t", config={"retention": "1"})]),
        KafkaException,
        "retention",
    ),
    ("delete a text", lambda a: a.delete_topics("t"), TypeError, "not str"),
    ("delete a number", lambda a: a.delete_topics([5]), TypeError, "int"),
    ("delete a bad name", lambda a: a.delete_topics(["a/b"]), KafkaException, "a/b"),
    ("no partitions", lambda a: a.create_partitions([NewPartitions("t", 0)]), ValueError, "0"),
    (
        "partitions of a bad name",
        lambda a: a.create_partitions([NewPartitions("a/b", 3)]),
        KafkaException,
        "a/b",
    ),
    ("describe a list", lambda a: a.describe_topics(["t"]), TypeError, "TopicCollection"),
    (
        "describe a bad name",
        lambda a: a.describe_topics(TopicCollection(["a/b"])),
        KafkaException,
        "a/b",
    ),
    ("settings of a text", lambda a: a.describe_configs(["t"]), TypeError, "ConfigResource.*str"),
    (
        "settings of a bad name",
        lambda a: a.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "a/b")]),
        KafkaException,
        "a/b",
    ),
    (
        "a wrong setting",
        lambda a: a.incremental_alter_configs(
            [
                ConfigResource(
                    ConfigResource.Type.TOPIC,
                    "t",
                    incremental_configs=[
                        ConfigEntry(
                            "retention.ms", "soon", incremental_operation=AlterConfigOpType.SET
                        )
                    ],
                )
            ]
        ),
        KafkaException,
        "retention.ms",
    ),
    ("offsets of a list", lambda a: a.list_offsets([TP("t", 0)]), TypeError, "dict"),
    (
        "offsets of partition -1",
        lambda a: a.list_offsets({TP("t", -1): OffsetSpec.latest()}),
        ValueError,
        "non-neg",
    ),
    (
        "offsets of a bad name",
        lambda a: a.list_offsets({TP("a/b", 0): OffsetSpec.latest()}),
        KafkaException,
        "a/b",
    ),
    ("a negative time", lambda a: OffsetSpec.for_timestamp(-1), ValueError, "-1|negative"),
    (
        "describe the cluster until NaN",
        lambda a: a.describe_cluster(request_timeout=NAN),
        ValueError,
        "nan",
    ),
]

NAIVE = datetime(2026, 1, 1)

TOPIC: list[Call] = [
    (
        "from a text",
        lambda t: t.to_arrow(start="now"),
        TypeError,
        "start must be an offset.*not str",
    ),
    ("from NaN", lambda t: t.to_arrow(start=NAN), TypeError, "start must be an offset.*not float"),
    (
        "from a time without a zone",
        lambda t: t.to_arrow(start=NAIVE),
        KafkaException,
        "no time zone",
    ),
    (
        "to a text",
        lambda t: list(t.to_batches(end="now")),
        TypeError,
        "end must be an offset.*not str",
    ),
    (
        "from a text by partition",
        lambda t: t.to_arrow(start={0: "x"}),
        TypeError,
        "start must be.*not str",
    ),
    ("a partition of a text", lambda t: t.to_arrow(partitions=["0"]), TypeError, "partition.*str"),
    ("partition -1", lambda t: t.to_arrow(partitions=[-1]), KafkaException, "-1"),
    ("create until NaN", lambda t: t.create(timeout=NAN), ValueError, "timeout.*nan"),
    ("delete until NaN", lambda t: t.delete(timeout=NAN), ValueError, "timeout.*nan"),
]


def table(calls: list[Call]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("call", "error", "text"), [call[1:] for call in calls], ids=[c[0] for c in calls]
    )


def wait_for(answer: object) -> None:
    """Wait for the background work of an admin client; raises its errors."""
    for future in answer.values() if isinstance(answer, dict) else ():
        future.result(20)


def refused(
    store: UntouchableStore,
    client: object,
    call: Callable[[Any], object],
    error: type[Exception],
    text: str,
):
    """The call, or the future that it gives, raises the error with that text, and the store was not
    touched.
    """
    with pytest.raises(error) as caught:
        wait_for(call(client))
    assert store.touched == []
    assert re.search(text, str(caught.value)), str(caught.value)


@pytest.fixture
def store() -> UntouchableStore:
    return UntouchableStore()


@table(PRODUCER)
def test_a_wrong_call_of_a_producer_is_refused_before_any_io(store, call, error, text):
    with Producer(ROOT, store=store) as producer:
        refused(store, producer, call, error, text)
        assert len(producer) == 0


@table(CONSUMER)
def test_a_wrong_call_of_a_consumer_is_refused_before_any_io(store, call, error, text):
    consumer = Consumer(ROOT, group_id="g", enable_auto_offset_store=False, store=store)
    refused(store, consumer, call, error, text)
    consumer.close()


@table(ADMIN)
def test_a_wrong_call_of_an_admin_client_is_refused_before_any_io(store, call, error, text):
    with AdminClient(ROOT, store=store) as admin:
        refused(store, admin, call, error, text)


@table(TOPIC)
def test_a_wrong_call_of_a_topic_is_refused_before_any_io(store, call, error, text):
    refused(store, Topic("t", store=store), call, error, text)


def test_the_untouchable_store_notices_io(store):
    with pytest.raises(AssertionError, match="before the arguments"):
        Topic("t", store=store).exists()
    assert store.touched


# --- configurations ---

CLIENTS = {
    "Producer": lambda conf: Producer(ROOT | conf),
    "Consumer": lambda conf: Consumer(ROOT | {"group.id": "g"} | conf),
    "AdminClient": lambda conf: AdminClient(ROOT | conf),
    "Topic": lambda conf: Topic("t", conf=ROOT | conf),
}

WRONG_CONFIGS = [
    ("Producer", {"linger.msec": 5}, "linger.msec.*linger.ms"),
    ("Producer", {"linger.ms": -1}, "-1.*linger.ms.*range|linger.ms.*-1.*range"),
    ("Producer", {"linger.ms": NAN}, "linger.ms.*nan|nan.*linger.ms"),
    ("Producer", {"linger.ms": math.inf}, "linger.ms.*inf|inf.*linger.ms"),
    ("Producer", {"linger.ms": "5s"}, "linger.ms.*5s|5s.*linger.ms"),
    ("Producer", {"batch.size": 1.5}, "batch.size.*1.5|1.5.*batch.size"),
    ("Producer", {"message.timeout.ms": 10, "linger.ms": 20}, "message.timeout.ms.*linger.ms"),
    ("Producer", {"acks": 1, "enable.idempotence": True}, "acks"),
    ("Producer", {"compression.type": "zip"}, "compression.type.*zip|zip.*compression.type"),
    ("Producer", {"partitioner": 7}, "partitioner"),
    ("Producer", {"enable.idempotence": "perhaps"}, "enable.idempotence"),
    ("Consumer", {"session.timeout.ms": 0}, "session.timeout.ms"),
    ("Consumer", {"heartbeat.interval.ms": 60_000}, "heartbeat.interval.ms.*session.timeout.ms"),
    ("Consumer", {"auto.offset.reset": "middle"}, "auto.offset.reset"),
    ("Consumer", {"fetch.max.bytes": 1000, "message.max.bytes": 2000}, "fetch.max.bytes"),
    ("Consumer", {"group.id": "a/b"}, "a/b"),
    ("Consumer", {"auto.comit.interval.ms": 1}, "auto.commit.interval.ms"),
    ("AdminClient", {"client.idd": "x"}, "client.id"),
    ("AdminClient", {"client.id": "x/y"}, "x/y"),
    ("Topic", {"num.partitions": 0}, "num.partitions"),
    ("Topic", {"bootstrap.servers": "host:9092"}, "list of brokers"),
    ("Topic", {"bootstrap.servers": "s4://bucket"}, "known are file://"),
]


@pytest.mark.parametrize(
    ("client", "conf", "text"), WRONG_CONFIGS, ids=[f"{c} {k}" for c, k, _ in WRONG_CONFIGS]
)
def test_a_wrong_configuration_is_refused_with_name_value_and_remedy(client, conf, text):
    with pytest.raises((KafkaException, ValueError)) as caught:
        CLIENTS[client](conf)
    assert re.search(text, str(caught.value)), str(caught.value)


NUMBERS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True).filter(lambda number: not 0 <= number <= 2**31),
    st.integers(max_value=-2),
    st.integers(min_value=2**63),
)


@given(
    st.sampled_from(
        ["message.timeout.ms", "queue.buffering.max.messages", "retries", "batch.size"]
    ),
    NUMBERS,
)
def test_no_number_out_of_range_becomes_a_setting(name, number):
    with pytest.raises(KafkaException, match=re.escape(name)):
        Producer(ROOT | {name: number})


@pytest.mark.fault("X2")
@pytest.mark.parametrize("size", [1_000_001, 2**31, 2**31 + 1])
def test_a_value_beyond_every_limit_is_refused_with_both_sizes(store, size):
    with Producer(ROOT, store=store) as producer:
        with pytest.raises(MessageTooLarge) as caught:
            producer.produce("t", bytes(size))  # zeros take no memory until they are looked at
        assert (caught.value.size, caught.value.limit, caught.value.topic) == (size, 1_000_000, "t")
        assert len(producer) == 0
    assert store.touched == []


@pytest.mark.fault("X2", "X3")
@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\0",
        b"\xff\xfe invalid UTF-8 \x80",
        b"x" * 1_000_000,
        b"NaN",
        "\U0010ffff \u0000 \u202e".encode(),
        b"9" * 5000,
        b"[" * 100_000 + b"]" * 100_000,
    ],
    ids=[
        "null",
        "empty",
        "NUL",
        "no UTF-8",
        "the limit",
        "NaN",
        "odd letters",
        "a huge number",
        "deep JSON",
    ],
)
def test_a_value_comes_back_byte_for_byte_as_value_key_and_header(value):
    store = MemoryStore("bytes")
    with Producer(ROOT, store=store, message_max_bytes=10**7) as producer:
        Topic("t", store=store, config={"max.message.bytes": 10**7}).create()
        producer.produce("t", value, value, headers=[("h", value), ("h", b"")])
        assert producer.flush(20) == 0
    with Consumer(ROOT, group_id="g", store=store) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        message = consumer.poll(20)
    assert message is not None
    assert (message.value(), message.key(), message.headers()) == (
        value,
        value,
        [("h", value), ("h", b"")],
    )

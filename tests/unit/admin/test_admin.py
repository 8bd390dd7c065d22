"""The admin client answers as Kafka's does: a future for each thing, with Kafka's codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import confluent_kafka.admin
import pyarrow as pa
import pytest

from deltaq import (
    KafkaError,
    KafkaException,
    Producer,
    Topic,
    TopicExists,
    TopicPartition,
    UnknownTopic,
)
from deltaq.admin import (
    AdminClient,
    IsolationLevel,
    ListOffsetsResultInfo,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    TopicCollection,
)
from deltaq.store import MemoryStore
from deltaq.testing import Fault, FaultyStore, Rule
from tests.doubles.reading import eventually

NUMBER: Any = 5  # where a string is due
TEXT: Any = "3"


@pytest.fixture
def admin(root) -> Iterator[AdminClient]:
    with AdminClient({"bootstrap.servers": root}) as client:
        yield client


def outcome(future: Future[Any]) -> int | None:
    """The error code of a future, None if it has succeeded."""
    error = future.exception(30)
    if error is None:
        return None
    assert isinstance(error, KafkaException)
    return int(error.args[0].code())


def created(admin: AdminClient, *topics: NewTopic | Topic, **arguments: Any) -> list[int | None]:
    return [outcome(future) for future in admin.create_topics(list(topics), **arguments).values()]


def counts(admin: AdminClient) -> dict[str, int]:
    return {name: len(topic.partitions) for name, topic in admin.list_topics().topics.items()}


def test_every_method_of_the_real_client_is_there():
    theirs = {name for name in dir(confluent_kafka.admin.AdminClient) if not name.startswith("_")}
    assert theirs <= set(dir(AdminClient))


# --- topics ---


@pytest.mark.parametrize(
    ("new", "code"),
    [
        (NewTopic("a.b"), None),
        (NewTopic("x" * 249), None),
        (NewTopic("__consumer"), None),
        (NewTopic("t", replication_factor=3), None),
        (NewTopic("t", 2, replica_assignment=[[0], [0]]), None),
        (NewTopic("t", 10_000), None),
        (NewTopic("t", config={"cleanup.policy": "compact,delete", "retention.ms": "-1"}), None),
        (NewTopic(""), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("."), KafkaError.TOPIC_EXCEPTION),
        (NewTopic(".."), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("x" * 250), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("a/b"), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("a b"), KafkaError.TOPIC_EXCEPTION),
        (NewTopic("t", 0), KafkaError.INVALID_PARTITIONS),
        (NewTopic("t", replication_factor=0), KafkaError.INVALID_REPLICATION_FACTOR),
        (NewTopic("t", config={"cleanup.policy": "shred"}), KafkaError.INVALID_CONFIG),
        (NewTopic("t", config={"retention.ms": "abc"}), KafkaError.INVALID_CONFIG),
        (NewTopic("t", config={"max.message.bytes": "-1"}), KafkaError.INVALID_CONFIG),
        (NewTopic("t", config={"no.such.config": "1"}), KafkaError.INVALID_CONFIG),
        (NewTopic("t", config={"partitions": "3"}), KafkaError.INVALID_CONFIG),
    ],
    ids=lambda value: f"{value!r:.110}" if isinstance(value, NewTopic) else str(value),
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_a_topic_is_created_or_refused_with_kafkas_code(admin, new, code, validate_only):
    assert created(admin, new, validate_only=validate_only) == [code]
    assert set(counts(admin)) == ({new.topic} if code is None and not validate_only else set())


@pytest.mark.parametrize("validate_only", [False, True])
def test_an_existing_topic_is_not_created_again(admin, validate_only):
    assert created(admin, NewTopic("t", 2)) == [None]
    future = admin.create_topics([NewTopic("t", 5)], validate_only=validate_only)["t"]
    assert outcome(future) == KafkaError.TOPIC_ALREADY_EXISTS
    assert isinstance(future.exception(), TopicExists)
    assert counts(admin) == {"t": 2}


def test_a_topic_named_twice_in_a_request_is_refused_and_the_others_are_created(admin):
    answers = admin.create_topics([NewTopic("t"), NewTopic("u", 2), NewTopic("t")])
    assert {name: outcome(future) for name, future in answers.items()} == {
        "t": KafkaError.INVALID_REQUEST,
        "u": None,
    }
    assert counts(admin) == {"u": 2}


def test_the_default_number_of_partitions_is_the_clients(root):
    with AdminClient({"bootstrap.servers": root}, num_partitions=3) as admin:
        assert created(admin, NewTopic("t")) == [None]
        assert counts(admin) == {"t": 3}


def test_a_topic_handle_passes_its_schema(admin, root):
    schema = pa.schema([("id", pa.int64())])
    assert created(admin, Topic("orders", schema, partitions=2)) == [None]
    description = admin.describe_topics(TopicCollection(["orders"]))["orders"].result(30)
    assert description.schema.arrow.names == ["id"]


def test_deleted_topics_are_gone_and_can_be_created_again(admin):
    created(admin, NewTopic("t", 3))
    assert outcome(admin.delete_topics(["t"])["t"]) is None
    assert counts(admin) == {}
    assert created(admin, NewTopic("t", 1)) == [None]
    assert counts(admin) == {"t": 1}


@pytest.mark.parametrize("name", ["nope", "a/b", ""])
def test_a_topic_that_does_not_exist_cannot_be_deleted(admin, name):
    assert outcome(admin.delete_topics([name])[name]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_topic_that_was_deleted_cannot_be_deleted_again(admin):
    created(admin, NewTopic("t"))
    first, again = (outcome(admin.delete_topics(["t"])["t"]) for _ in range(2))
    assert (first, again) == (None, KafkaError.UNKNOWN_TOPIC_OR_PART)


@pytest.mark.parametrize(
    ("topic", "count", "code"),
    [
        ("t", 5, None),
        ("t", 3, KafkaError.INVALID_PARTITIONS),
        ("t", 2, KafkaError.INVALID_PARTITIONS),
        ("nope", 5, KafkaError.UNKNOWN_TOPIC_OR_PART),
    ],
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_partitions_grow_and_never_shrink(admin, topic, count, code, validate_only):
    created(admin, NewTopic("t", 3))
    answers = admin.create_partitions([NewPartitions(topic, count)], validate_only=validate_only)
    assert outcome(answers[topic]) == code
    assert counts(admin) == {"t": count if code is None and not validate_only else 3}


def test_new_partitions_begin_empty_and_old_ones_keep_their_records(admin, root):
    created(admin, NewTopic("t", 1))
    with Producer(bootstrap_servers=root) as producer:
        producer.produce("t", "a")
    assert outcome(admin.create_partitions([NewPartitions("t", 3)])["t"]) is None
    with Producer(bootstrap_servers=root) as producer:
        producer.produce("t", "b", partition=2)
    topic = Topic("t", bootstrap_servers=root)
    assert topic.describe().next_offsets == {0: 1, 1: 0, 2: 1}
    assert topic.describe().settings.partitions == 3
    assert topic.to_arrow()["value"].to_pylist() == [b"a", b"b"]


# --- descriptions ---


def test_topics_are_described_by_one_broker_that_leads_everything(admin, root):
    created(admin, NewTopic("t", 2))
    answers = admin.describe_topics(
        TopicCollection(["t", "nope"]), include_authorized_operations=True
    )
    description = answers["t"].result(30)
    assert (description.name, description.is_internal, description.authorized_operations) == (
        "t",
        False,
        None,
    )
    assert len(description.topic_id) == 32
    for partition in description.partitions:
        assert (partition.leader.id, len(partition.replicas), len(partition.isr)) == (0, 1, 1)
    assert [partition.id for partition in description.partitions] == [0, 1]
    assert isinstance(answers["nope"].exception(30), UnknownTopic)
    assert admin.describe_topics(TopicCollection([])) == {}


def test_the_cluster_is_one_node_that_is_its_own_controller(admin, root):
    cluster = admin.describe_cluster().result(30)
    assert cluster.nodes == [cluster.controller]
    assert (cluster.controller.id, cluster.controller.id_string, cluster.controller.host) == (
        0,
        "0",
        root,
    )
    assert cluster.cluster_id == admin.cluster_id()
    assert cluster.authorized_operations is None


def test_listing_topics_creates_none(admin):
    created(admin, NewTopic("t", 3))
    metadata = admin.list_topics("nope", timeout=30)
    assert list(metadata.topics) == ["nope"]
    assert metadata.topics["nope"].error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert metadata.topics["nope"].partitions == {}
    assert counts(admin) == {"t": 3}


def test_an_admin_client_has_no_events():
    assert AdminClient({"bootstrap.servers": "memory://x"}).poll(0) == 0


# --- offsets ---

T0 = 1_700_000_000_000


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (OffsetSpec.earliest(), (0, -1)),
        (OffsetSpec.latest(), (5, -1)),
        (OffsetSpec.max_timestamp(), (4, T0 + 4000)),
        (OffsetSpec.for_timestamp(T0 + 2500), (3, T0 + 3000)),
        (OffsetSpec.for_timestamp(T0), (0, T0)),
        (OffsetSpec.for_timestamp(T0 + 99999), (-1, -1)),
    ],
)
def test_offsets_are_listed_as_kafka_lists_them(admin, root, spec, expected):
    created(admin, NewTopic("t", 2))
    with Producer(bootstrap_servers=root) as producer:
        for second in range(5):
            producer.produce("t", b"", partition=0, timestamp=T0 + 1000 * second)
    tp, empty, beyond, nope = (
        TopicPartition(t, p) for t, p in (("t", 0), ("t", 1), ("t", 2), ("nope", 0))
    )
    answers = admin.list_offsets(
        dict.fromkeys((tp, empty, beyond, nope), spec),
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
    )
    assert answers[tp].result(30) == ListOffsetsResultInfo(*expected)
    assert answers[tp].result(30).leader_epoch == (0 if expected[0] >= 0 else None)
    assert answers[empty].result(30).offset == (
        0 if spec in (OffsetSpec.earliest(), OffsetSpec.latest()) else -1
    )
    for unknown in (beyond, nope):
        assert outcome(answers[unknown]) == KafkaError.UNKNOWN_TOPIC_OR_PART


# --- what cannot be ---


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda admin: admin.create_acls(["acl"])["acl"], id="create_acls"),
        pytest.param(lambda admin: admin.delete_acls(["acl"])["acl"], id="delete_acls"),
        pytest.param(lambda admin: admin.describe_acls("acl"), id="describe_acls"),
        pytest.param(lambda admin: admin.describe_user_scram_credentials(), id="all credentials"),
        pytest.param(
            lambda admin: admin.describe_user_scram_credentials(["ada"])["ada"],
            id="credentials of a user",
        ),
        pytest.param(
            lambda admin: admin.alter_user_scram_credentials(
                [type("Alteration", (), {"user": "ada"})]
            )["ada"],
            id="alter credentials",
        ),
        pytest.param(lambda admin: admin.elect_leaders("preferred"), id="elect_leaders"),
    ],
)
def test_broker_only_operations_are_unsupported_with_a_reason(admin, ask):
    error = ask(admin).exception(30)
    assert error.args[0].code() == KafkaError._UNSUPPORTED_FEATURE
    assert len(error.args[0].str()) > 30


@pytest.mark.fault("K1")
@pytest.mark.parametrize(
    ("ask", "error"),
    [
        pytest.param(lambda admin: admin.create_topics([]), ValueError, id="no new topics"),
        pytest.param(
            lambda admin: admin.create_topics("t"), TypeError, id="new topics that are no list"
        ),
        pytest.param(
            lambda admin: admin.create_topics(["t"]), TypeError, id="new topics that are strings"
        ),
        pytest.param(
            lambda admin: admin.create_topics([NewTopic("t", -5)]),
            ValueError,
            id="a negative number of partitions",
        ),
        pytest.param(
            lambda admin: admin.create_topics([NewTopic("t", 10_001)]),
            ValueError,
            id="too many partitions",
        ),
        pytest.param(
            lambda admin: admin.create_topics([NewTopic("t", replication_factor=-2)]),
            ValueError,
            id="a negative replication factor",
        ),
        pytest.param(
            lambda admin: admin.create_topics([NewTopic("t", 3, replica_assignment=[[0]])]),
            ValueError,
            id="an assignment of another size",
        ),
        pytest.param(
            lambda admin: admin.create_topics([NewTopic("t")], request_timeout="1"),
            TypeError,
            id="a timeout that is no number",
        ),
        pytest.param(
            lambda admin: admin.create_topics([NewTopic("t")], request_timeout=-1),
            ValueError,
            id="a negative timeout",
        ),
        pytest.param(
            lambda admin: admin.create_topics([NewTopic("t")], nonsense=1),
            TypeError,
            id="an unknown argument",
        ),
        pytest.param(lambda admin: NewTopic(NUMBER), TypeError, id="a topic that is no string"),
        pytest.param(
            lambda admin: NewTopic("t", TEXT), TypeError, id="a number of partitions as text"
        ),
        pytest.param(
            lambda admin: NewTopic("t", 1, TEXT), TypeError, id="a replication factor as text"
        ),
        pytest.param(
            lambda admin: NewTopic("t", config=TEXT), TypeError, id="settings that are no dict"
        ),
        pytest.param(
            lambda admin: NewPartitions("t", TEXT), TypeError, id="new partitions as text"
        ),
        pytest.param(
            lambda admin: admin.delete_topics("t"), TypeError, id="topics that are no list"
        ),
        pytest.param(lambda admin: admin.delete_topics([]), ValueError, id="no topics"),
        pytest.param(
            lambda admin: admin.delete_topics([5]), TypeError, id="a topic that is a number"
        ),
        pytest.param(lambda admin: admin.create_partitions([]), ValueError, id="no new partitions"),
        pytest.param(
            lambda admin: admin.create_partitions(["t"]),
            TypeError,
            id="new partitions that are strings",
        ),
        pytest.param(
            lambda admin: admin.create_partitions([NewPartitions("t", 0)]),
            ValueError,
            id="zero partitions",
        ),
        pytest.param(
            lambda admin: admin.describe_topics(["t"]),
            TypeError,
            id="topics that are no collection",
        ),
        pytest.param(
            lambda admin: admin.describe_topics(TopicCollection([NUMBER])),
            TypeError,
            id="a collection of numbers",
        ),
        pytest.param(
            lambda admin: admin.describe_topics(TopicCollection([""])),
            ValueError,
            id="a collection of empty names",
        ),
        pytest.param(
            lambda admin: admin.list_offsets([]), TypeError, id="offsets that are no dict"
        ),
        pytest.param(
            lambda admin: admin.list_offsets({"t": OffsetSpec.latest()}),
            TypeError,
            id="offsets of a string",
        ),
        pytest.param(
            lambda admin: admin.list_offsets({TopicPartition("t", 0): 5}),
            TypeError,
            id="offsets by number",
        ),
        pytest.param(
            lambda admin: admin.list_offsets({TopicPartition("t", -1): OffsetSpec.latest()}),
            ValueError,
            id="offsets of a negative partition",
        ),
        pytest.param(
            lambda admin: admin.list_offsets({TopicPartition("", 0): OffsetSpec.latest()}),
            ValueError,
            id="offsets of an empty name",
        ),
        pytest.param(
            lambda admin: admin.list_offsets(
                {TopicPartition("t", 0): OffsetSpec.latest()}, isolation_level=1
            ),
            TypeError,
            id="an isolation level that is none",
        ),
        pytest.param(lambda admin: OffsetSpec(-4), ValueError, id="an unknown offset"),
        pytest.param(lambda admin: OffsetSpec.for_timestamp(-1), ValueError, id="a negative time"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_at_once(admin, ask, error):
    with pytest.raises(error):
        ask(admin)
    assert counts(admin) == {}


# --- futures ---


def test_calls_run_in_the_background_and_close_waits_for_them():
    gate = FaultyStore(MemoryStore("gate"), Rule("get", "*", Fault.slow()))
    with AdminClient(bootstrap_servers="memory://unused", store=gate) as admin:
        future = admin.create_topics([NewTopic("t")])["t"]
        assert future.running()
        assert not future.cancel()
        eventually(lambda: gate.blocked)
        gate.release()
    assert future.done()
    assert future.result() is None


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda admin: admin.create_topics([NewTopic("t")])["t"], id="create"),
        pytest.param(lambda admin: admin.delete_topics(["t"])["t"], id="delete"),
        pytest.param(
            lambda admin: admin.describe_topics(TopicCollection(["t"]))["t"], id="describe"
        ),
        pytest.param(
            lambda admin: next(
                iter(admin.list_offsets({TopicPartition("t", 0): OffsetSpec.latest()}).values())
            ),
            id="offsets",
        ),
    ],
)
def test_a_store_refusal_is_raised_by_the_future(ask: Callable[[AdminClient], Future[Any]]):
    store = FaultyStore(
        MemoryStore("refusing"),
        *(Rule(op, "*", Fault.refused(), times=None) for op in ("get", "list")),
    )
    with AdminClient(bootstrap_servers="memory://unused", store=store) as admin:
        future = ask(admin)
        assert outcome(future) == KafkaError._TRANSPORT
    assert "access denied" in str(future.exception())


def test_configuration_is_checked_when_the_client_is_made(root):
    with pytest.raises(KafkaException, match="No such configuration property"):
        AdminClient({"bootstrap.servers": root, "no.such": 1})
    with pytest.raises(KafkaException, match=r"bootstrap\.servers is missing"):
        AdminClient({})
    client = AdminClient({"bootstrap.servers": root, "client.id": "ada"})
    assert repr(client) == f"<AdminClient {root} 'ada'>"

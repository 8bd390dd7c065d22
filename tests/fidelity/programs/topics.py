"""Topics: listed, created, changed and deleted."""

from __future__ import annotations

from typing import Any

from tests.fidelity.programs.messages import in_full, offsets
from tests.fidelity.session import READ_S, T0, ProgramRun, attempt


def list_topics(session: ProgramRun) -> Any:
    topic = session.topic(partitions=3)
    # Kafka makes a topic for committed offsets.
    session.consumer().committed([session.place(topic)], timeout=READ_S)
    found = session.admin.list_topics(timeout=READ_S)
    partitions = {
        number: {
            "id": each.id,
            "leader_is_broker": each.leader in found.brokers,
            "replicas": len(each.replicas),
            "isrs": len(each.isrs),
            "error": each.error,
        }
        for number, each in found.topics[topic].partitions.items()
    }
    return {
        "brokers": len(found.brokers),
        "controller_is_broker": found.controller_id in found.brokers,
        "error": found.topics[topic].error,
        "partitions": partitions,
        "internal_listed": [name for name in found.topics if name == "__consumer_offsets"],
        "cluster_id_str": isinstance(found.cluster_id, str),
        "orig_broker_id": type(found.orig_broker_id).__name__,
    }


def list_topics_unknown(session: ProgramRun) -> Any:
    nope, by_producer, by_consumer = (
        session.name("nope"),
        session.name("nope2"),
        session.name("nope3"),
    )
    listed = session.admin.list_topics(nope, timeout=READ_S).topics
    found = {
        "admin_keys": list(listed),
        "admin_error": listed[nope].error,
        "partitions": {number: each.id for number, each in listed[nope].partitions.items()},
        "created_by_admin": session.exists(nope),
    }
    session.producer().list_topics(by_producer, timeout=READ_S)
    found["created_by_producer_list"] = session.exists(by_producer)
    consumer = session.consumer(allow_auto_create_topics=False)
    found["consumer_error"] = (
        consumer.list_topics(by_consumer, timeout=READ_S).topics[by_consumer].error
    )
    return found | {"created_by_consumer_list": session.exists(by_consumer)}


def create_topics(session: ProgramRun) -> Any:
    new_topic, admin = session.admin_names.NewTopic, session.admin

    def create(*arguments: Any, validate_only: bool = False, **settings: Any) -> Any:
        return attempt(
            lambda: session.result(
                admin.create_topics(
                    [new_topic(*arguments, **settings)], validate_only=validate_only
                )
            )
        )

    refused, dotted = session.name("refused"), session.name("a.b")
    found = {
        "exists": create(session.topic(), 1, 1),
        "partitions_0": create(refused, 0, 1),
        "partitions_-5": create(refused, -5, 1),
        "rf_3": create(session.name("rf"), 1, 3),
        "rf_0": create(refused, 1, 0),
        "slash": create("a/b", 1, 1),
        "space": create("a b", 1, 1),
        "dot": create(".", 1, 1),
        "dotdot": create("..", 1, 1),
        "len_249": create(session.name("x" * 249)[:249], 1, 1),
        "len_250": create("y" * 250, 1, 1),
        "empty": create("", 1, 1),
        "unknown_config": create(refused, 1, 1, config={"no.such.config": "1"}),
        "bad_config_value": create(refused, 1, 1, config={"retention.ms": "abc"}),
        "bad_cleanup": create(refused, 1, 1, config={"cleanup.policy": "shred"}),
        "bad_range": create(refused, 1, 1, config={"max.message.bytes": "-1"}),
        "a.b": create(dotted, 1, 1),
        "a_b_collides": create(dotted.replace(".", "_"), 1, 1),
        "validate_only": create(refused, 1, 1, validate_only=True),
        "validate_only_created": session.exists(refused),
        "double_underscore": create(f"__{session.prefix}", 1, 1),
    }
    defaults, twice = session.name("defaults"), session.name("twice")
    found["defaults"] = create(defaults)
    session.await_partitions(defaults, 1)
    found["defaults_partitions"] = len(
        admin.list_topics(defaults, timeout=READ_S).topics[defaults].partitions
    )
    both = admin.create_topics([new_topic(twice, 1, 1), new_topic(twice, 1, 1)])
    found["twice_in_one_request"] = {"0": session.result(both)}
    return found


def create_partitions(session: ProgramRun) -> Any:
    topic = session.topic(partitions=3)

    def grow(name: str, to: int, **settings: Any) -> Any:
        new_partitions = session.admin_names.NewPartitions
        return attempt(
            lambda: session.result(
                session.admin.create_partitions([new_partitions(name, to)], **settings)
            )
        )

    found = {
        "shrink": grow(topic, 2),
        "same": grow(topic, 3),
        "zero": grow(topic, 0),
        "unknown": grow(session.name("nope"), 3),
        "validate_only": grow(topic, 4, validate_only=True),
        "grow": grow(topic, 5),
    }
    session.await_partitions(topic, 5)
    return found | {
        "now": len(session.admin.list_topics(topic, timeout=READ_S).topics[topic].partitions)
    }


def delete_topics(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer(allow_auto_create_topics=False)

    def delete(name: str) -> Any:
        return session.result(session.admin.delete_topics([name]))

    return {
        "unknown": delete(session.name("nope")),
        "ok": delete(topic),
        "again": delete(topic),
        "internal": "not tried",
        "listed_after": session.exists(topic),
        "watermarks_after": attempt(
            consumer.get_watermark_offsets, session.place(topic), timeout=3
        ),
        "invalid_name": delete("a/b"),
    }


def delete_topic_under_consumer_and_recreate(session: ProgramRun) -> Any:
    topic = session.topic()
    session.fill(topic, 3)
    consumer = session.consumer(
        allow_auto_create_topics=False, topic_metadata_refresh_interval_ms=500
    )
    consumer.subscribe([topic])
    found: dict[str, Any] = {"read": offsets(session.read(consumer, 3))}
    consumer.commit(asynchronous=False)
    session.admin.delete_topics([topic])[topic].result(READ_S)
    events = session.read_all(consumer, 1)
    found["events_after_delete"] = sorted({each["event"] for each in in_full(events)})
    found["assignment_after"] = consumer.assignment()
    session.create(topic)
    session.fill(topic, 2, start=10)
    found["after_recreate"] = [
        (message.offset(), message.value()) for message in session.read_all(consumer, 2)
    ]
    return found | {"committed_after": consumer.committed([session.place(topic)], timeout=READ_S)}


def delete_records(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    session.fill(topic, 10)

    def before(offset: int) -> Any:
        return session.result(session.admin.delete_records([session.place(topic, 0, offset)]))

    def watermarks() -> Any:
        return consumer.get_watermark_offsets(session.place(topic), timeout=READ_S)

    found = {
        "to_4": before(4),
        "watermarks": watermarks(),
        "to_2_lower": before(2),
        "past_high": before(11),
        "negative": before(-7),
    }
    for policy, records in (("earliest", 6), ("latest", 0), ("error", 1)):
        reader = session.consumer(auto_offset_reset=policy)
        reader.assign([session.place(topic, 0, 1)])
        found[f"read_1_{policy}"] = in_full(session.read_all(reader, records))
    found["for_time_deleted"] = consumer.offsets_for_times(
        [session.place(topic, 0, T0)], timeout=READ_S
    )[0].offset
    found |= {"to_end": before(session.kafka.OFFSET_END), "watermarks_end": watermarks()}
    session.fill(topic, 1, start=50)
    reader = session.consumer()
    reader.assign([session.place(topic)])
    return found | {"then_read": offsets(session.read(reader, 1))}


_CONFIGS = (
    "cleanup.policy",
    "compression.type",
    "delete.retention.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.type",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "unclean.leader.election.enable",
)


def topic_configs(session: ProgramRun) -> Any:
    topic, names = session.topic(cleanup_policy="compact"), session.admin_names
    change = names.AlterConfigOpType

    def resource(name: str) -> Any:
        return names.ConfigResource(names.ConfigResource.Type.TOPIC, name)

    def now(*keys: str) -> dict[str, Any]:
        session.exists(topic)  # lets a change become visible
        entries = session.result(session.admin.describe_configs([resource(topic)]))
        found = {key: entries[key] for key in keys}
        return {
            key: (each.value, each.source, each.is_default, each.is_read_only)
            for key, each in found.items()
        }

    def alter(key: str, value: str | None, how: Any) -> Any:
        altered = resource(topic)
        altered.add_incremental_config(names.ConfigEntry(key, value, incremental_operation=how))
        return session.result(session.admin.incremental_alter_configs([altered]))

    return {
        "before": now(*_CONFIGS),
        "set": alter("retention.ms", "5000", change.SET),
        "append": alter("cleanup.policy", "delete", change.APPEND),
        "after": now("retention.ms", "cleanup.policy"),
        "delete": alter("retention.ms", None, change.DELETE),
        "deleted": now("retention.ms")["retention.ms"],
        "unknown_key": alter("nope", "1", change.SET),
        "describe_unknown": session.result(
            session.admin.describe_configs([resource(session.name("nope"))])
        ),
    }


def describe_topics_cluster(session: ProgramRun) -> Any:
    topic = session.topic(partitions=2)

    def describe(name: str) -> Any:
        return session.result(session.admin.describe_topics(session.kafka.TopicCollection([name])))

    found = describe(topic)
    cluster = session.admin.describe_cluster().result(READ_S)
    return {
        "name": found.name,
        "is_internal": found.is_internal,
        "partitions": [
            (each.id, each.leader is not None, len(each.replicas), len(each.isr))
            for each in found.partitions
        ],
        "authorized_operations": found.authorized_operations,
        "topic_id_str": type(found.topic_id).__name__,
        "unknown": describe(session.name("nope")),
        "cluster": {
            "nodes": len(cluster.nodes),
            "controller": cluster.controller is not None,
            "authorized_operations": cluster.authorized_operations,
        },
    }


PROGRAMS = (
    list_topics,
    list_topics_unknown,
    create_topics,
    create_partitions,
    delete_topics,
    delete_topic_under_consumer_and_recreate,
    delete_records,
    topic_configs,
    describe_topics_cluster,
)

"""What the documentation of the client says of `AdminClient`, statement by statement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.fidelity.session import READ_S, T0, ProgramRun, attempt


def _topic_resource(session: ProgramRun, topic: str) -> Any:
    return session.admin_names.ConfigResource(session.admin_names.ResourceType.TOPIC, topic)


def _alter(session: ProgramRun, topic: str, *entries: tuple[str, str | None, str]) -> Any:
    names, resource = session.admin_names, _topic_resource(session, topic)
    for key, value, how in entries:
        operation = names.AlterConfigOpType[how]
        resource.add_incremental_config(
            names.ConfigEntry(key, value, incremental_operation=operation)
        )
    return session.result(session.admin.incremental_alter_configs([resource]))


def _value(session: ProgramRun, topic: str, key: str) -> Any:
    session.exists(topic)  # lets a change become visible
    return session.result(session.admin.describe_configs([_topic_resource(session, topic)]))[
        key
    ].value


def _kind(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> str:
    return type(attempt(call, *arguments, **keywords)).__name__


def admin_calls_check_their_arguments(session: ProgramRun) -> Any:
    admin = session.admin
    return {
        "create_nothing": _kind(admin.create_topics, []),
        "create_texts": _kind(admin.create_topics, ["t"]),
        "create_none": _kind(admin.create_topics, None),
        "delete_nothing": _kind(admin.delete_topics, []),
        "delete_text": _kind(admin.delete_topics, "t"),
        "delete_numbers": _kind(admin.delete_topics, [5]),
        "partitions_nothing": _kind(admin.create_partitions, []),
        "describe_configs_nothing": _kind(admin.describe_configs, []),
        "describe_configs_texts": _kind(admin.describe_configs, ["t"]),
        "alter_nothing": _kind(admin.incremental_alter_configs, []),
        "list_offsets_list": _kind(admin.list_offsets, []),
        "delete_records_nothing": _kind(admin.delete_records, []),
        "describe_topics_list": _kind(admin.describe_topics, ["t"]),
        "describe_groups_nothing": _kind(admin.describe_consumer_groups, []),
        "delete_groups_nothing": _kind(admin.delete_consumer_groups, []),
        "delete_groups_text": _kind(admin.delete_consumer_groups, "g"),
    }


def admin_calls_check_their_timeouts(session: ProgramRun) -> Any:
    admin, topic = session.admin, session.admin_names.NewTopic(session.name("t"), 1, 1)
    return {
        "negative": _kind(admin.create_topics, [topic], request_timeout=-1),
        "text": _kind(admin.create_topics, [topic], request_timeout="1"),
        "unknown": _kind(admin.create_topics, [topic], no_such=1),
        "list_topics": _kind(admin.list_topics, timeout="1"),
    }


def admin_results_are_futures_by_what_was_asked(session: ProgramRun) -> Any:
    first, second = session.name("one"), session.name("two")
    new_topic = session.admin_names.NewTopic
    made = session.admin.create_topics([new_topic(first, 1, 1), new_topic(second, 0, 1)])
    found = {name: attempt(future.result, READ_S) for name, future in made.items()}
    session.await_partitions(first, 1)
    resource = _topic_resource(session, first)
    described = session.admin.describe_configs([resource])
    return {"created": found, "resource": list(described) == [resource], "done": _ended(made)}


def _ended(futures: Any) -> list[bool]:
    return [future.done() for future in futures.values()]


def admin_creates_with_an_assignment_of_replicas(session: ProgramRun) -> Any:
    new_topic, topic = session.admin_names.NewTopic, session.name("t")
    broker = next(iter(session.admin.list_topics(timeout=READ_S).brokers))
    made = attempt(lambda: new_topic(topic, replica_assignment=[[broker], [broker]]))
    if isinstance(made, Exception):
        return made
    answer = attempt(lambda: session.result(session.admin.create_topics([made])))
    if isinstance(answer, Exception):
        return answer
    session.await_partitions(topic, 2)
    return {
        "answer": answer,
        "partitions": len(
            session.admin.list_topics(topic, timeout=READ_S).topics[topic].partitions
        ),
    }


def admin_creates_with_settings(session: ProgramRun) -> Any:
    topic = session.topic(
        retention_ms=5000, cleanup_policy="compact,delete", file_delete_delay_ms=60_000
    )
    names = ("retention.ms", "cleanup.policy", "file.delete.delay.ms")
    return {name: _value(session, topic, name) for name in names}


def admin_sets_each_default_of_kafka(session: ProgramRun) -> Any:
    topic = session.topic()
    defaults = {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "delete.retention.ms": "86400000",
        "file.delete.delay.ms": "60000",
        "max.compaction.lag.ms": "9223372036854775807",
        "max.message.bytes": "1048588",
        "message.timestamp.type": "CreateTime",
        "min.cleanable.dirty.ratio": "0.5",
        "min.compaction.lag.ms": "0",
        "retention.bytes": "-1",
        "retention.ms": "604800000",
        "segment.ms": "604800000",
    }
    return {key: _alter(session, topic, (key, value, "SET")) for key, value in defaults.items()}


def admin_describes_the_defaults_of_topics(session: ProgramRun) -> Any:
    keys = (
        *(
            "cleanup.policy",
            "compression.type",
            "delete.retention.ms",
            "file.delete.delay.ms",
            "max.message.bytes",
        ),
        *(
            "message.timestamp.type",
            "min.cleanable.dirty.ratio",
            "min.compaction.lag.ms",
            "retention.bytes",
        ),
    )
    topic = session.topic()
    entries = session.result(session.admin.describe_configs([_topic_resource(session, topic)]))
    return {key: entries[key].value for key in keys}


def admin_appends_and_subtracts(session: ProgramRun) -> Any:
    topic = session.topic(cleanup_policy="delete")
    steps = {
        "append": ("cleanup.policy", "compact", "APPEND"),
        "append_again": ("cleanup.policy", "compact", "APPEND"),
        "subtract": ("cleanup.policy", "delete", "SUBTRACT"),
        "subtract_missing": ("cleanup.policy", "delete", "SUBTRACT"),
        "append_to_a_number": ("retention.ms", "5", "APPEND"),
    }
    return {
        name: [_alter(session, topic, step), _value(session, topic, "cleanup.policy")]
        for name, step in steps.items()
    }


def admin_subtracts_to_nothing(session: ProgramRun) -> Any:
    topic = session.topic(cleanup_policy="delete")
    answer = _alter(session, topic, ("cleanup.policy", "delete", "SUBTRACT"))
    return {"answer": answer, "value": _value(session, topic, "cleanup.policy")}


def admin_changes_all_entries_or_none(session: ProgramRun) -> Any:
    topic = session.topic()
    entries = (("retention.bytes", "77", "SET"), ("retention.ms", "soon", "SET"))
    return {
        "answer": _alter(session, topic, *entries),
        "value": _value(session, topic, "retention.bytes"),
    }


def admin_changes_one_key_twice(session: ProgramRun) -> Any:
    topic = session.topic()
    return attempt(
        _alter, session, topic, ("retention.ms", "1", "SET"), ("retention.ms", "2", "SET")
    )


def admin_deletes_settings(session: ProgramRun) -> Any:
    topic = session.topic(retention_bytes=5)
    found = {"unset": _alter(session, topic, ("segment.ms", None, "DELETE"))}
    found["set"] = _alter(session, topic, ("retention.bytes", None, "DELETE"))
    return found | {"value": _value(session, topic, "retention.bytes")}


def admin_describes_settings(session: ProgramRun) -> Any:
    topic = session.topic(retention_ms=5000)
    entries = session.result(session.admin.describe_configs([_topic_resource(session, topic)]))
    entry = entries["retention.ms"]
    return {
        "types": [type(entries).__name__, type(entry).__name__],
        "entry": [
            entry.name,
            entry.value,
            entry.is_read_only,
            entry.is_default,
            entry.is_sensitive,
            entry.is_synonym,
        ],
        "source": session.admin_names.ConfigSource(entry.source).name,
        "synonyms": type(entry.synonyms).__name__,
    }


def admin_deletes_records(session: ProgramRun) -> Any:
    topic = session.topic(partitions=2)
    session.fill(topic, 5)

    def delete(offset: int, partition: int = 0, name: str = topic) -> Any:
        return session.result(
            session.admin.delete_records([session.place(name, partition, offset)])
        )

    return {
        "two": delete(2),
        "one_again": delete(1),
        "past_the_end": delete(99),
        "negative": delete(-5),
        "unknown_partition": delete(0, 9),
        "unknown_topic": delete(0, 0, session.name("nope")),
        "to_the_end": delete(session.kafka.OFFSET_END),
    }


def admin_sees_its_own_deletions(session: ProgramRun) -> Any:
    topic, spec = session.topic(), session.admin_names.OffsetSpec
    session.fill(topic, 20)
    seen = []
    for offset in range(1, 21):
        session.admin.delete_records([session.place(topic, 0, offset)])
        listed = session.admin.list_offsets({session.place(topic): spec.earliest()})
        seen.append(session.result(listed).offset)
    return seen


def admin_lists_offsets_of_what_is_not_there(session: ProgramRun) -> Any:
    topic, spec = session.topic(), session.admin_names.OffsetSpec

    def listed(place: Any) -> Any:
        return session.result(session.admin.list_offsets({place: spec.latest()}))

    return {
        "partition": listed(session.place(topic, 9)),
        "topic": listed(session.place(session.name("nope"))),
        "nothing": attempt(session.admin.list_offsets, {}),
    }


def admin_lists_groups_by_state(session: ProgramRun) -> Any:
    group, topic = session.name("g"), session.topic()
    session.consumer(group).commit(offsets=[session.place(topic, 0, 0)], asynchronous=False)
    states = session.kafka.ConsumerGroupState

    def listed(**how: Any) -> Any:
        found = session.admin.list_consumer_groups(**how).result(READ_S)
        return [
            (each.state, each.is_simple_consumer_group)
            for each in found.valid
            if each.group_id == group
        ]

    return {
        "all": listed(),
        "empty": listed(states={states.EMPTY}),
        "stable": listed(states={states.STABLE}),
        "texts": _kind(session.admin.list_consumer_groups, states={"EMPTY"}),
        "list": _kind(session.admin.list_consumer_groups, states=[states.EMPTY]),
    }


def admin_offsets_of_groups_check_their_arguments(session: ProgramRun) -> Any:
    request, admin, place = session.kafka.ConsumerGroupTopicPartitions, session.admin, session.place
    return {
        "list_nothing": _kind(admin.list_consumer_group_offsets, []),
        "list_two": _kind(admin.list_consumer_group_offsets, [request("a"), request("b")]),
        "list_texts": _kind(admin.list_consumer_group_offsets, ["g"]),
        "list_no_group": _kind(admin.list_consumer_group_offsets, [request("")]),
        "list_empty": _kind(admin.list_consumer_group_offsets, [request("g", [])]),
        "list_with_offset": _kind(
            admin.list_consumer_group_offsets, [request("g", [place("t", 0, 5)])]
        ),
        "alter_nothing": _kind(admin.alter_consumer_group_offsets, []),
        "alter_without_partitions": _kind(admin.alter_consumer_group_offsets, [request("g")]),
        "alter_negative": _kind(
            admin.alter_consumer_group_offsets, [request("g", [place("t", 0, -5)])]
        ),
        "alter_no_partition": _kind(
            admin.alter_consumer_group_offsets, [request("g", [place("t", -1, 5)])]
        ),
    }


def admin_offsets_keep_their_metadata(session: ProgramRun) -> Any:
    topic, group, request = (
        session.topic(),
        session.name("g"),
        session.kafka.ConsumerGroupTopicPartitions,
    )
    given = session.kafka.TopicPartition(topic, 0, 3, metadata="by hand")
    altered = session.result(session.admin.alter_consumer_group_offsets([request(group, [given])]))
    listed = session.result(session.admin.list_consumer_group_offsets([request(group)]))
    return {
        "altered": altered.topic_partitions,
        "listed": listed.topic_partitions,
        "group": listed.group_id,
    }


def admin_deletes_groups(session: ProgramRun) -> Any:
    topic, group = session.topic(), session.name("g")
    session.consumer(group).commit(offsets=[session.place(topic, 0, 0)], asynchronous=False)
    unknown = session.name("nope")
    found = session.admin.delete_consumer_groups([group, unknown])
    return {name: attempt(future.result, READ_S) for name, future in found.items()}


def admin_describes_several_topics(session: ProgramRun) -> Any:
    topic, unknown = session.topic(partitions=2), session.name("nope")
    found = session.admin.describe_topics(session.kafka.TopicCollection([topic, unknown]))
    described = attempt(found[topic].result, READ_S)
    return {
        "partitions": [type(each.leader).__name__ for each in described.partitions],
        "unknown": attempt(found[unknown].result, READ_S),
        "collection_texts": _kind(session.kafka.TopicCollection, "t"),
        "collection_nothing": _kind(session.kafka.TopicCollection, []),
    }


def admin_lists_topics(session: ProgramRun) -> Any:
    topic = session.topic(partitions=3)
    found = session.admin.list_topics(timeout=READ_S)
    return {
        "text": str(found.topics[topic]),
        "broker": [type(each.id).__name__ for each in found.brokers.values()][:1],
        "one": list(session.admin.list_topics(topic=topic, timeout=READ_S).topics),
        "name_int": _kind(session.admin.list_topics, 5),
    }


def admin_configurations(session: ProgramRun) -> Any:
    address = {"bootstrap.servers": session.target.address}
    made = session.admin_names.AdminClient
    return {
        "plain": _kind(made, address),
        "unknown": attempt(made, address | {"no.such": 1}),
        "of_a_consumer": _kind(made, address | {"auto.offset.reset": "earliest"}),
        "list": attempt(made, []),
        "true": bool(made(address)),
    }


def admin_in_a_with_block(session: ProgramRun) -> Any:
    admin = session.admin_names.AdminClient({"bootstrap.servers": session.target.address})
    if not hasattr(admin, "__enter__"):
        return "no context manager"
    with admin as same:
        found: dict[str, Any] = {"same": same is admin}
    calls: dict[str, Callable[[], Any]] = {
        "list_topics": lambda: admin.list_topics(timeout=1),
        "create_topics": lambda: admin.create_topics(
            [session.admin_names.NewTopic(session.name("t"), 1, 1)]
        ),
        "list_groups": lambda: admin.list_consumer_groups(),
        "poll": lambda: admin.poll(0),
        "again": lambda: type(admin.__enter__()).__name__,
    }
    return found | {name: attempt(call) for name, call in calls.items()}


def admin_deletes_one_topic_twice(session: ProgramRun) -> Any:
    topic = session.topic()
    found = session.admin.delete_topics([topic, topic])
    return [attempt(future.result, READ_S) for future in found.values()]


def admin_lists_offsets_by_time(session: ProgramRun) -> Any:
    topic, spec = session.topic(), session.admin_names.OffsetSpec
    session.fill(topic, 3)
    found = {}
    for name, each in (("first", T0), ("between", T0 + 1), ("after", T0 + 99_999)):
        listed = session.result(
            session.admin.list_offsets({session.place(topic): spec.for_timestamp(each)})
        )
        found[name] = [
            listed.offset,
            listed.timestamp - T0 if listed.timestamp > 0 else listed.timestamp,
        ]
    return found


PROGRAMS = (
    admin_calls_check_their_arguments,
    admin_calls_check_their_timeouts,
    admin_results_are_futures_by_what_was_asked,
    admin_creates_with_an_assignment_of_replicas,
    admin_creates_with_settings,
    admin_sets_each_default_of_kafka,
    admin_describes_the_defaults_of_topics,
    admin_appends_and_subtracts,
    admin_subtracts_to_nothing,
    admin_changes_all_entries_or_none,
    admin_changes_one_key_twice,
    admin_deletes_settings,
    admin_describes_settings,
    admin_deletes_records,
    admin_sees_its_own_deletions,
    admin_lists_offsets_of_what_is_not_there,
    admin_lists_groups_by_state,
    admin_offsets_of_groups_check_their_arguments,
    admin_offsets_keep_their_metadata,
    admin_deletes_groups,
    admin_describes_several_topics,
    admin_lists_topics,
    admin_configurations,
    admin_in_a_with_block,
    admin_deletes_one_topic_twice,
    admin_lists_offsets_by_time,
)

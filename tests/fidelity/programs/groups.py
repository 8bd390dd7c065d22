"""Groups as an administrator sees them, and subscriptions of one consumer."""

from __future__ import annotations

from typing import Any

from tests.fidelity.programs.messages import offsets
from tests.fidelity.session import READ_S, ProgramRun


def group_description(session: ProgramRun) -> Any:
    topic, group = session.topic(partitions=2), session.name("g")
    session.fill(topic, 3)
    consumer = session.consumer(group, client_id="cl")
    consumer.subscribe([topic])
    session.read(consumer, 3)
    consumer.commit(asynchronous=False)

    def describe(name: str) -> Any:
        return session.admin.describe_consumer_groups([name])[name].result(READ_S)

    live = describe(group)
    member = live.members[0]
    listed = session.admin.list_consumer_groups().result(READ_S).valid
    old = session.admin.list_groups(group, timeout=READ_S)
    found = {
        "state": live.state,
        "type": live.type,
        "simple": live.is_simple_consumer_group,
        "assignor": live.partition_assignor,
        "coordinator": live.coordinator is not None,
        "members": len(live.members),
        "member": {
            "client_id": member.client_id,
            "host": member.host,
            "instance": member.group_instance_id,
            "id_prefix": member.member_id.startswith("cl-"),
            "assignment": sorted(place.partition for place in member.assignment.topic_partitions),
            "target": member.target_assignment,
        },
        "memberid_matches": consumer.memberid() == member.member_id,
        "authorized_operations": live.authorized_operations,
        "listed": [
            (each.state, each.type, each.is_simple_consumer_group)
            for each in listed
            if each.group_id == group
        ],
        "old_list_groups": [
            (each.state, each.protocol_type, each.protocol, len(each.members)) for each in old
        ],
    }
    consumer.close()
    closed, unknown = describe(group), describe(session.name("nope"))
    found["closed"] = (closed.state, closed.members, closed.partition_assignor)
    return found | {"unknown": (unknown.state, unknown.members)}


def group_offsets(session: ProgramRun) -> Any:
    topic, group, other = session.topic(partitions=2), session.name("g"), session.name("g2")
    session.fill(topic, 5)
    consumer = session.consumer(group)
    consumer.subscribe([topic])
    session.read(consumer, 5)
    admin, request = session.admin, session.kafka.ConsumerGroupTopicPartitions
    both = [session.place(topic, 0), session.place(topic, 1)]

    def listed(name: str, places: list[Any] | None = None) -> Any:
        found = session.result(admin.list_consumer_group_offsets([request(name, places)]))
        return sorted(found.topic_partitions, key=lambda place: place.partition)

    def alter(name: str, offset: int, of: str = topic) -> Any:
        return session.result(
            admin.alter_consumer_group_offsets([request(name, [session.place(of, 0, offset)])])
        ).topic_partitions

    def delete() -> Any:
        return session.result(admin.delete_consumer_groups([group]))

    found = {"none_committed_all": listed(group), "none_committed_asked": listed(group, both)}
    consumer.commit(asynchronous=False)
    found |= {"committed_all": listed(group), "asked": listed(group, both)}
    found |= {"alter_active": alter(group, 2), "delete_active": delete()}
    consumer.close()
    found |= {"alter_empty": alter(group, 2), "after_alter": listed(group)}
    resumed = session.consumer(group)
    resumed.subscribe([topic])
    found["resumes"] = offsets(session.read(resumed, 1))
    resumed.close()
    return found | {
        "alter_past_end": alter(group, 999),
        "alter_unknown_topic": alter(group, 1, of=session.name("nope")),
        "alter_new_group": alter(other, 1),
        "new_group_state": admin.describe_consumer_groups([other])[other].result(READ_S).state,
        "unknown_group": listed(session.name("nope")),
        "delete": delete(),
        "delete_again": delete(),
        "after_delete": listed(group),
        "has_delete_consumer_group_offsets": hasattr(admin, "delete_consumer_group_offsets"),
    }


def unsubscribe_and_resubscribe(session: ProgramRun) -> Any:
    one, two, calls = session.topic("one"), session.topic("two"), []
    session.fill(one, 3)
    session.fill(two, 3)
    consumer = session.consumer(partition_assignment_strategy="range")

    def noted(event: str) -> Any:
        return lambda _, partitions: calls.append(
            (event, sorted(place.topic for place in partitions))
        )

    callbacks = {
        "on_assign": noted("assign"),
        "on_revoke": noted("revoke"),
        "on_lost": noted("lost"),
    }
    consumer.subscribe([one], **callbacks)
    found: dict[str, Any] = {"one": offsets(session.read(consumer, 2))}
    consumer.subscribe([two], **callbacks)
    found["switched"] = [
        (message.topic(), message.offset()) for message in session.read(consumer, 3)
    ]
    consumer.unsubscribe()
    session.read_all(consumer)
    found["callbacks"] = list(calls)
    consumer.subscribe([one])
    return found | {"back_on_one_no_commit": offsets(session.read(consumer, 1))}


def seek_in_on_assign_and_offset_override(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    session.fill(topic, 6)

    def from_four(reader: Any, places: list[Any]) -> None:
        for place in places:
            place.offset = 4
        reader.assign(places)

    consumer.subscribe([topic], on_assign=from_four)
    return offsets(session.read(consumer, 2))


PROGRAMS = (
    group_description,
    group_offsets,
    unsubscribe_and_resubscribe,
    seek_in_on_assign_and_offset_override,
)

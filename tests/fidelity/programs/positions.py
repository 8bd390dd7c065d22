"""Where a consumer reads: assignments, positions, seeks, pauses, and where it begins without an
offset.
"""

from __future__ import annotations

from typing import Any

from tests.fidelity.programs.messages import in_full, offsets, places
from tests.fidelity.session import ProgramRun, attempt


def assignment_after_assign(session: ProgramRun) -> Any:
    topic, consumer = session.topic(partitions=2), session.consumer()
    found = {"none": consumer.assignment()}
    consumer.assign([session.place(topic, 0, 3), session.place(topic, 1)])
    found["assigned"] = consumer.assignment()
    consumer.unassign()
    return found | {"unassigned": consumer.assignment()}


def incremental_assign(session: ProgramRun) -> Any:
    consumer, topic = session.consumer(), session.topic(partitions=3)

    def change(how: Any, partition: int) -> Any:
        return attempt(how, [session.place(topic, partition, 0)])

    found = {
        "add": change(consumer.incremental_assign, 0),
        "add_again": change(consumer.incremental_assign, 0),
        "add_1": change(consumer.incremental_assign, 1),
        "now": sorted(place.partition for place in consumer.assignment()),
        "remove_missing": change(consumer.incremental_unassign, 2),
        "remove_0": change(consumer.incremental_unassign, 0),
    }
    return found | {"then": [place.partition for place in consumer.assignment()]}


def position(session: ProgramRun) -> Any:
    topic, consumer = session.topic(), session.consumer()
    session.fill(topic, 5)

    def now() -> Any:
        return attempt(consumer.position, [session.place(topic)])

    found = {"unassigned": now()}
    consumer.assign([session.place(topic, 0, 0)])
    found["assigned_not_polled"] = now()
    session.read(consumer, 3)
    found["after_3"] = now()
    consumer.seek(session.place(topic, 0, 1))
    found["after_seek_1"] = now()
    session.read(consumer, 1)
    return found | {"after_poll": now()}


def seek(session: ProgramRun) -> Any:
    topic, consumer = session.topic(partitions=2), session.consumer()
    session.fill(topic, 8)

    def to(offset: int, partition: int = 0) -> Any:
        return attempt(consumer.seek, session.place(topic, partition, offset))

    found = {"unassigned": to(3)}
    consumer.assign([session.place(topic, 0, 0)])
    found |= {"right_after_assign": to(5), "reads": offsets(session.read(consumer, 2))}
    found["other_partition"] = to(0, partition=1)
    found |= {"back": to(1), "back_reads": offsets(session.read(consumer, 2))}
    to(session.kafka.OFFSET_BEGINNING)
    found["beginning"] = offsets(session.read(consumer, 1))
    to(session.kafka.OFFSET_END)
    found["end"] = offsets(session.read_all(consumer))
    session.fill(topic, 1, start=8)
    found["end_new"] = offsets(session.read(consumer, 1))
    to(999)
    found["past_end_earliest"] = offsets(session.read(consumer, 1))
    return found | {"negative": to(-77)}


def pause_resume(session: ProgramRun) -> Any:
    topic, consumer = session.topic(partitions=2), session.consumer()
    first, second = session.place(topic, 0), session.place(topic, 1)
    for partition in (0, 1):
        session.fill(topic, 6, partition)
    consumer.assign([session.place(topic, 0, 0), session.place(topic, 1, 0)])
    session.read(consumer, 12)
    consumer.pause([first])
    for partition in (0, 1):
        session.fill(topic, 2, partition, start=6)
    found = {
        "paused_0": places(session.read_all(consumer, 2)),
        "position_paused": consumer.position([first]),
    }
    consumer.resume([first])
    found |= {
        "resumed": places(session.read_all(consumer, 2)),
        "pause_unassigned": attempt(consumer.pause, [session.place(topic, 5)]),
        "resume_not_paused": attempt(consumer.resume, [second]),
    }
    consumer.pause([first])
    found["seek_while_paused"] = attempt(consumer.seek, session.place(topic, 0, 0))
    found["after_seek"] = offsets(session.read_all(consumer))
    consumer.resume([first])
    return found | {"after_resume": offsets(session.read(consumer, 1))}


def reset_no_commit(session: ProgramRun) -> Any:
    found: dict[str, Any] = {}
    for policy, records in (("earliest", 5), ("latest", 0), ("error", 1)):
        topic, consumer = session.topic(), session.consumer(auto_offset_reset=policy)
        session.fill(topic, 5)
        consumer.assign([session.place(topic)])
        found[policy] = in_full(session.read_all(consumer, records))
        session.fill(topic, 1, start=5)
        found[f"{policy}_then_new"] = offsets(session.read_all(consumer, int(policy != "error")))
    return found


def reset_out_of_range(session: ProgramRun) -> Any:
    found: dict[str, Any] = {}
    for policy, records in (("earliest", 5), ("latest", 0), ("error", 1)):
        topic, consumer = session.topic(), session.consumer(auto_offset_reset=policy)
        session.fill(topic, 5)
        consumer.assign([session.place(topic, 0, 100)])
        found[policy] = offsets(session.read_all(consumer, records))
        session.fill(topic, 1, start=5)
        found[f"{policy}_then_new"] = offsets(session.read_all(consumer, int(policy != "error")))
    return found


def reset_logical_offsets(session: ProgramRun) -> Any:
    topic, kafka = session.topic(), session.kafka
    found: dict[str, Any] = {}
    session.fill(topic, 5)
    two_before_the_end = -2000 - 2
    for name, offset, records in (
        ("beginning", kafka.OFFSET_BEGINNING, 5),
        ("end", kafka.OFFSET_END, 0),
        ("stored", kafka.OFFSET_STORED, 5),
        ("invalid", kafka.OFFSET_INVALID, 5),
        ("tail_2", two_before_the_end, 2),
    ):
        consumer = session.consumer()
        found[name] = attempt(consumer.assign, [session.place(topic, 0, offset)])
        found[f"{name}_reads"] = offsets(session.read_all(consumer, records))
    return found


PROGRAMS = (
    assignment_after_assign,
    incremental_assign,
    position,
    seek,
    pause_resume,
    reset_no_commit,
    reset_out_of_range,
    reset_logical_offsets,
)

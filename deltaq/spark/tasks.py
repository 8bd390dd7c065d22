"""Dividing the files of a batch or micro-batch among Spark's tasks. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from deltaq.spark.options import TaskLimits
from deltaq.topics.scan import FileRead

TASK_BYTES = 32 * 1024 * 1024
"""Target size of a task in bytes: about a second of work, so that a few cores share a backlog
evenly.
"""

FILE_COST_BYTES = 64 * 1024
"""The cost of a file besides its bytes, in bytes that could be read in that time: 2 ms.

A task reads several files at once, which hides the latency of an object store. Each further task
costs a micro-batch some 40 ms, in the source and in the sink, so the hundred small files of half a
second belong in one task.
"""

_NO_LIMITS = TaskLimits()


@dataclass(frozen=True, slots=True)
class TopicRead:
    """A part of a data file to read, and its topic."""

    topic: str
    topic_id: str
    read: FileRead

    @property
    def rows(self) -> int:
        """Number of offsets to read. It exceeds the number of rows if compaction has removed
        some.
        """
        return sum(end - start for _, start, end in self.read.wanted)

    @property
    def cost(self) -> float:
        """Estimated bytes to read, plus `FILE_COST_BYTES`."""
        return FILE_COST_BYTES + self.read.file.segment.size * self.rows / max(
            1, self.read.file.segment.rows
        )


def in_tasks(
    reads: Mapping[tuple[str, str], Iterable[FileRead]], limits: TaskLimits = _NO_LIMITS
) -> list[tuple[TopicRead, ...]]:
    """Divide the reads of topics, by (name, id), into tasks of about `TASK_BYTES`.

    Makes at least `tasks_min` tasks if there are enough rows. Inside a task, each partition is in
    offset order.
    """
    units = [TopicRead(*topic, read) for topic, of_topic in reads.items() for read in of_topic]
    tasks = list(_packed(units))
    if limits.offsets_max is not None:
        tasks = [tuple(part) for task in tasks for part in _cut(task, limits.offsets_max)]
    if len(tasks) >= limits.tasks_min or not tasks:
        return tasks
    rows_max = max(1, sum(unit.rows for unit in units) // limits.tasks_min)
    # Fewer tasks than wanted, each within its limits, so this part of the rows is within them too.
    return [tuple(task) for task in _cut(units, rows_max)]


def _packed(units: Iterable[TopicRead]) -> Iterator[tuple[TopicRead, ...]]:
    """Tasks of neighbouring reads whose cost does not exceed `TASK_BYTES`, or of one larger
    read.
    """
    task: list[TopicRead] = []
    cost = 0.0
    for unit in units:
        if task and cost + unit.cost > TASK_BYTES:
            yield tuple(task)
            task, cost = [], 0.0
        task.append(unit)
        cost += unit.cost
    if task:
        yield tuple(task)


def _cut(units: Iterable[TopicRead], rows_max: int) -> Iterator[list[TopicRead]]:
    """Tasks of exactly `rows_max` offsets, except for the last one. Files are split between
    tasks.
    """
    task: list[TopicRead] = []
    room = rows_max
    for unit in units:
        for batch, start, end in unit.read.wanted:
            at = start
            while at < end:
                until = min(end, at + room)
                task.append(replace(unit, read=replace(unit.read, wanted=((batch, at, until),))))
                room -= until - at
                at = until
                if not room:
                    yield _rejoined(task)
                    task, room = [], rows_max
    if task:
        yield _rejoined(task)


def _rejoined(task: list[TopicRead]) -> list[TopicRead]:
    """Join neighbouring parts of one file into one read, so that the file is opened once."""
    joined: list[TopicRead] = []
    for unit in task:
        if joined and joined[-1].topic == unit.topic and joined[-1].read.file is unit.read.file:
            wanted = (*joined[-1].read.wanted, *unit.read.wanted)
            joined[-1] = replace(unit, read=replace(unit.read, wanted=wanted))
        else:
            joined.append(unit)
    return joined

"""Following a view: what each tick has added and removed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from deltaq.clock import Clock
from deltaq.errors import KafkaError, KafkaException
from deltaq.store import Store
from deltaq.topic import Topic
from deltaq.views.holding import HISTORY
from deltaq.views.program import KEY, TICK, WEIGHT, view_topic
from deltaq.views.reading import opened, publish
from deltaq.views.tables import about_topics, own_columns
from deltaq.views.ticks import last_tick, ticks_from


@dataclass(frozen=True, slots=True)
class ViewChange:
    """What the tick `tick` has changed in a view: `rows` in its columns, with a `weight` above 0
    for rows that come, and below for those that go.
    """

    tick: int
    rows: pa.Table


def followed(
    store: Store, clock: Clock, group: str, name: str, every_s: float
) -> Iterator[ViewChange]:
    """All rows of a view, then its changes. Raises as `Views.follow`."""
    while last_tick(store, group, clock) is None:
        clock.sleep(every_s)
    begin = opened(store, clock, group, None)
    topic = Topic(view_topic(group, name), store=store, clock=clock)
    # In the form of records of its topic, so that they have keys.
    records = begin.present(name)
    rows = _Rows(records.schema)
    yield ViewChange(begin.tick, rows.taken(records))
    number, topic_id = begin.tick, begin.published.views[name].topic_id
    while True:
        for tick in ticks_from(store, group, clock, number + 1):
            written = tick.views.get(name)
            if tick.number != number + 1 or written is None or written.topic_id != topic_id:
                raise _lost(group, name, number)
            if written.start < written.end:
                with about_topics(group, tick.views):
                    publish(store, clock, group, tick)
                    records = topic.to_arrow(start=written.start, end=written.end)
                last = last_tick(store, group, clock)
                if last is None or last.number - tick.number > HISTORY:
                    raise _lost(group, name, number)
                yield ViewChange(tick.number, rows.taken(records))
            number = tick.number
        clock.sleep(every_s)


class _Rows:
    """What a follower knows of a view: the row of each key, if it has a row key."""

    def __init__(self, columns: pa.Schema) -> None:
        self._is_keyed = WEIGHT not in columns.names
        self._of: dict[bytes, dict[str, object]] = {}

    def taken(self, records: pa.Table) -> pa.Table:
        """The change that these records of the view's topic are."""
        # The view may have gained columns since the last change.
        own = own_columns(records.schema)
        fields = [records.schema.field(name) for name in own]
        schema = pa.schema([*fields, pa.field(WEIGHT, pa.int64())])
        if not self._is_keyed:
            return records.select(schema.names).cast(schema)
        changes = []
        for record in records.select([*own, KEY, TICK]).to_pylist():
            key, tick = record.pop(KEY), record.pop(TICK)
            if (before := self._of.pop(key, None)) is not None:
                changes.append({**before, WEIGHT: -1})
            if tick is not None:
                self._of[key] = record
                changes.append({**record, WEIGHT: 1})
        return pa.Table.from_pylist(changes, schema)


def _lost(group: str, name: str, number: int) -> KafkaException:
    reason = (
        f"the changes of view {name!r} of {group!r} after tick {number} are not kept any more, or "
        "it has left the group, or this was deleted and run anew: follow it anew"
    )
    return KafkaException(KafkaError(KafkaError.OFFSET_OUT_OF_RANGE, reason))

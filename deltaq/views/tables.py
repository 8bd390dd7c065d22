"""The topics of a group's views, and what they hold at a tick.

A view with a row key is a compacted topic: a row is a record with its key, and a row that goes is a
tombstone. A view without one is a changelog: each record has in `weight` how many such rows come,
or go. Both have `tick`. Only the group writes them, in one partition each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from deltaq.clock import Clock
from deltaq.errors import InvalidConfig, UnknownTopic
from deltaq.serde.source import schema_of
from deltaq.store import Store
from deltaq.tools.duckdb_tables import connected, create, fetched, quoted, rows_of
from deltaq.topic import Topic
from deltaq.topics.log import TopicLog
from deltaq.topics.lookup import TopicLookup
from deltaq.topics.metadata import definition_of
from deltaq.topics.schema_evolution import evolution
from deltaq.views.engine import ViewChanges
from deltaq.views.program import EXTRA, KEY, TICK, WEIGHT, view_topic
from deltaq.views.ticks import ViewOffsets
from deltaq.views.view_columns import TYPES_REMEDY, about_view, check_same_columns

_KEYED = {"cleanup.policy": "compact"}
_CHANGELOG = {"cleanup.policy": "delete", "retention.ms": "-1"}


@dataclass(frozen=True, slots=True)
class ViewTopics:
    """The topics of views in a store."""

    store: Store
    clock: Clock
    lookup: TopicLookup

    @classmethod
    def of(cls, store: Store, clock: Clock) -> ViewTopics:
        """Those of a store."""
        return cls(store, clock, TopicLookup(store, clock))

    def prepare(
        self, topic: str, columns: pa.Schema, before: ViewOffsets | None, *, is_keyed: bool
    ) -> ViewOffsets:
        """Create the topic of a view, or give it the view's columns; where it ends. `before` is
        where the last tick left it, None for a view that is new. After `check`.

        Raises what `end` and creating raise.
        """
        handle = Topic(
            topic,
            _with_own(columns, is_keyed=is_keyed),
            partitions=1,
            config=_KEYED if is_keyed else _CHANGELOG,
            store=self.store,
            clock=self.clock,
        )
        handle.create(exist_ok=True)
        return self.end(topic, before)

    def check(
        self,
        view: str,
        topic: str,
        columns: pa.Schema,
        before: ViewOffsets | None,
        *,
        is_keyed: bool,
    ) -> None:
        """Raise InvalidConfig, naming the view, if its topic is there and `prepare` could not give
        it these columns, or goes on with it; UnknownTopic if it was there at the last tick,
        Corrupt, Incompatible, Unavailable.
        """
        log = TopicLog(self.store, topic, self.clock)
        try:
            log.load()
            held = definition_of(log)
        except UnknownTopic:
            if before is None:
                return
            raise
        self.end(topic, before)
        if is_keyed != ("compact" in held.settings.cleanup_policy):
            policy = (_KEYED if is_keyed else _CHANGELOG)["cleanup.policy"]
            reason = (
                f"topic {topic!r} of view {view!r} has the cleanup.policy of a view "
                f"{'without' if is_keyed else 'with'} a row key: set it to {policy}, or delete the "
                "group and run it anew"
            )
            raise InvalidConfig(reason, key=view)
        if held.schema is not None and before is not None:
            was = pa.schema([held.schema.arrow.field(name) for name in own_columns(held.columns)])
            check_same_columns(view, was, columns)
        with about_view(view, TYPES_REMEDY):
            wanted = schema_of(_with_own(columns, is_keyed=is_keyed))
            evolution(topic, held.schema, held.history, wanted)

    def end(self, topic: str, before: ViewOffsets | None) -> ViewOffsets:
        """Where the topic of a view ends: where the last tick left it, `before`, or else at its
        beginning. Raises InvalidConfig if another program has written it, UnknownTopic.
        """
        head = self.lookup.head(topic)
        (end,) = head.next_offsets
        if before is None:
            if end:
                raise InvalidConfig(
                    f"topic {topic!r} has records, and the last tick does not have its view: it "
                    "was in the group before, or others wrote them; delete this topic, and it is "
                    "made anew",
                    key=topic,
                )
        elif end != before.end or before.topic_id != head.topic_id:
            raise InvalidConfig(
                f"topic {topic!r} has records that the group of views has not written: it ends at "
                f"offset {end}, not {before.end}; delete the topic and the group, and run it anew",
                key=topic,
            )
        return ViewOffsets(head.topic_id, end, end)

    def content(self, topic: str, at: ViewOffsets) -> pa.Table:
        """The rows of a view after a tick, in its own columns. Raises as `present`."""
        return self._found(topic, at, "select {own} from ({present})", _EACH_COPY)

    def present(self, topic: str, at: ViewOffsets) -> pa.Table:
        """The rows of a view after a tick: the newest record of each key, or each row with its
        `weight`. Raises UnknownTopic if the topic was deleted since, Corrupt, Incompatible,
        Unavailable.
        """
        return self._found(topic, at, "{present}", "{present}")

    def _found(self, topic: str, at: ViewOffsets, of_keys: str, of_changelog: str) -> pa.Table:
        columns, batches = self._records(topic, at)
        own = ", ".join(map(quoted, own_columns(columns)))
        is_changelog = WEIGHT in columns.names
        present = (_ROWS_OF_CHANGELOG if is_changelog else _ROWS_OF_KEYS).format(own=own)
        with connected(EXTRA, threads=1) as connection:
            create(connection, "records", columns, batches, kind="temp table")
            form = of_changelog if is_changelog else of_keys
            return fetched(connection, form.format(own=own, present=present))

    def _records(self, topic: str, at: ViewOffsets) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        handle = Topic(topic, store=self.store, clock=self.clock)
        description = handle.describe()
        if description.topic_id != at.topic_id:
            raise UnknownTopic(topic, reason=f"topic {topic!r} was deleted and created again")
        start = description.start_offsets[0]
        return rows_of(handle, {0: (start, at.end)} if start < at.end else {})


_ROWS_OF_KEYS = (
    f"select {{own}}, {KEY}, {TICK} from (select * from records qualify row_number() over "
    f"(partition by {KEY} order by _offset desc) = 1) where {TICK} is not null"
)
_ROWS_OF_CHANGELOG = (
    f"select {{own}}, sum({WEIGHT})::bigint as {WEIGHT} from records group by all "
    f"having sum({WEIGHT}) <> 0"
)
_EACH_COPY = f"select {{own}} from ({{present}}) as _present, range(_present.{WEIGHT})"


def _with_own(columns: pa.Schema, *, is_keyed: bool) -> pa.Schema:
    """The columns of a view with those that its topic has besides."""
    own = [] if is_keyed else [pa.field(WEIGHT, pa.int64())]
    return pa.schema([*columns, *own, pa.field(TICK, pa.int64())])


def own_columns(columns: pa.Schema) -> list[str]:
    """The columns that a view has by its SQL, of those of its topic."""
    return [name for name in columns.names if not (name.startswith("_") or name in (TICK, WEIGHT))]


@contextmanager
def about_topics(group: str, views: Iterable[str]) -> Iterator[None]:
    """UnknownTopic for the topic of a view, raised within it, names the group, and what to do."""
    try:
        yield
    except UnknownTopic as error:
        if error.topic not in {view_topic(group, view) for view in views}:
            raise
        reason = (
            f"{error.error.str()}: it is of the group of views {group!r}, which cannot go on "
            "without it; delete the group, and run it anew"
        )
        raise UnknownTopic(error.topic, reason=reason, code=error.error.code()) from None


@dataclass(frozen=True, slots=True)
class ViewRecords:
    """What a tick writes to the topic of a view: records, and the keys of tombstones."""

    rows: pa.Table
    tombstones: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        return int(self.rows.num_rows) + len(self.tombstones)


def records_of(changes: ViewChanges, tick: int, *, is_keyed: bool) -> ViewRecords:
    """The records that a tick writes for these changes."""
    if is_keyed:
        keys = changes.gone.column(KEY)
        going = keys.filter(pc.invert(pc.is_in(keys, changes.come.column(KEY).combine_chunks())))
        return ViewRecords(_with_tick(changes.come, tick), tuple(going.to_pylist()))
    at = changes.gone.column_names.index(WEIGHT)
    gone = changes.gone.set_column(at, WEIGHT, pc.negate(changes.gone.column(WEIGHT)))
    return ViewRecords(_with_tick(pa.concat_tables([changes.come, gone]), tick))


def _with_tick(rows: pa.Table, tick: int) -> pa.Table:
    return rows.append_column(TICK, pa.repeat(pa.scalar(tick, pa.int64()), rows.num_rows))


def written_after(
    before: Mapping[str, ViewOffsets], records: Mapping[str, ViewRecords]
) -> dict[str, ViewOffsets]:
    """Where the topics end after these records."""
    return {
        name: ViewOffsets(of.topic_id, of.end, of.end + len(records[name]))
        for name, of in before.items()
    }

"""The groups of views of a root: which there are, how far they are behind, and their end."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from deltaq.clock import Clock
from deltaq.errors import InvalidConfig, Unavailable, UnknownTopic
from deltaq.names import is_name
from deltaq.producer import Producer
from deltaq.store import Store
from deltaq.topic import Topic
from deltaq.topics.listing import topic_names
from deltaq.topics.lookup import TopicLookup
from deltaq.views.delta_tables import DeltaSource
from deltaq.views.holding import release
from deltaq.views.program import TICK, is_view_name, ticks_topic
from deltaq.views.runner import transactional_id
from deltaq.views.ticks import InputCut, Tick, last_tick

_TICKS = ticks_topic("")


def groups(store: Store) -> list[str]:
    """The groups of views, by the topics of their ticks. Raises Unavailable."""
    found = (name.removesuffix(_TICKS) for name in topic_names(store) if name.endswith(_TICKS))
    return sorted(group for group in found if is_name(group))


@dataclass(frozen=True, slots=True)
class InputLag:
    """How far a group is behind in an input: `records` are those after its cut, versions of a Delta
    table; None if the topic is gone, or the table cannot be read.
    """

    topic: str
    records: int | None


def lags(store: Store, clock: Clock, tick: Tick) -> list[InputLag]:
    """How far a tick is behind each input now. Raises Corrupt, Incompatible, Unavailable."""
    lookup = TopicLookup(store, clock)
    return [
        InputLag(
            name, _versions_after(name, cut) if cut.delta else _records_after(lookup, name, cut)
        )
        for name, cut in tick.inputs.items()
    ]


def _records_after(lookup: TopicLookup, topic: str, cut: InputCut) -> int | None:
    try:
        head = lookup.head(topic)
    except UnknownTopic:
        return None
    return sum(head.next_offsets) - sum(cut.ends) if head.topic_id == cut.topic_id else None


def _versions_after(name: str, cut: InputCut) -> int | None:
    try:
        newest = DeltaSource(name, cut.delta).newest()
    except (InvalidConfig, Unavailable):
        return None  # what keeps it is not the root
    return newest.version + 1 - sum(cut.ends) if newest.table_id == cut.topic_id else None


def delete(store: Store, clock: Clock, group: str) -> list[str]:
    """Delete a group: its ticks and the topics of its views, whose names this returns. Its runner
    is fenced. May be repeated. Raises OutcomeUnknown, Unavailable.
    """
    conf = {"bootstrap.servers": store.url, "transactional.id": transactional_id(group)}
    with Producer(conf, store=store, clock=clock) as producer:
        producer.init_transactions()
    tick = last_tick(store, group, clock)
    for topic in () if tick is None else tick.inputs:
        release(store, topic, group)
    topics = [topic for topic in sorted(topic_names(store)) if _is_view(store, clock, group, topic)]
    # Last: while there are ticks, the call can be repeated.
    for topic in (*topics, ticks_topic(group)):
        with suppress(UnknownTopic):
            Topic(topic, store=store, clock=clock).delete()
    return topics


def _is_view(store: Store, clock: Clock, group: str, topic: str) -> bool:
    """Whether a topic is that of a view of the group."""
    name = topic.removeprefix(f"{group}.")
    if name == topic or not is_view_name(name):
        return False
    try:
        schema = Topic(topic, store=store, clock=clock).describe().schema
    except UnknownTopic:
        return False
    return schema is not None and TICK in schema.arrow.names

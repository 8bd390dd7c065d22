"""The offsets that a streaming query commits to a consumer group: those that it has reached, as
Spark has recorded them in the checkpoint, or reports them in a progress event.

Spark writes `<checkpointLocation>/offsets/<batch>` before it runs a micro-batch, and never changes
it. So a repeated micro-batch has the same offsets, also in another driver.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from deltaq.clock import Clock
from deltaq.config import ClientConfig
from deltaq.delta.store_errors import unavailable
from deltaq.errors import Corrupt, Fenced, InvalidConfig, KafkaError, UnknownTopic
from deltaq.spark.native_paths import store_address
from deltaq.spark.offsets import SourceOffset, from_json
from deltaq.store import ObjectMissing, Store, StoreError, open_store
from deltaq.topics.lookup import TopicLookup

_log = logging.getLogger("deltaq.spark")

Partition: TypeAlias = "tuple[str, str, int]"
"""Topic, topic id and number."""


def open_checkpoint(address: str, client: ClientConfig, clock: Clock) -> Store:
    """The store that holds a checkpoint, by its address in Spark. A bucket of the same kind as the
    root has the same `store.*` options. Does no I/O. Raises InvalidConfig.
    """
    url, options = store_address(address)
    scheme = url.partition("://")[0]
    if scheme in {"s3", "gs", "az"} and client.root.startswith(f"{scheme}://"):
        options = {**client.store_options, **options}
    try:
        return open_store(url, options, clock)
    except ValueError as error:
        # Not chained: the error text holds no secrets, but values in the traceback may.
        raise InvalidConfig(str(error), key="checkpointLocation") from None


def recorded_offsets(checkpoint: Store, batch: int) -> list[str]:
    """The offsets of a query's sources at the end of a micro-batch, as JSON. Raises InvalidConfig
    if the checkpoint does not have them, Corrupt, Unavailable.
    """
    key = f"offsets/{batch}"
    try:
        lines = checkpoint.get(key).decode().split("\n")
        version, _, *offsets = lines
        if version == "v2":  # each line begins with the name of its source
            offsets = [line.partition(":")[2] for line in offsets]
        elif version != "v1":
            raise ValueError("it is not of version v1 or v2")
        if not offsets:
            raise ValueError("it has no source")
        begun = [text for text in offsets if text != "-"]
        for text in begun:
            json.loads(text)
    except ObjectMissing:
        raise InvalidConfig(
            f"{checkpoint.url} has no offsets of micro-batch {batch}: set the option "
            '"checkpointLocation" to the checkpoint of the query',
            key="checkpointLocation",
        ) from None
    except StoreError as error:
        raise unavailable(error) from error
    except ValueError as error:
        reason = f"the offsets of a micro-batch cannot be parsed: {error}"
        raise Corrupt(reason, path=f"{checkpoint.url}/{key}") from error
    return begun


def known_offset(text: str | None) -> SourceOffset:
    """The offset of a source; an empty one if it is unknown, or the source is not deltaq's."""
    try:
        return from_json(json.loads(text or "{}"))
    except (InvalidConfig, ValueError):
        return {}


def reached(ends: Iterable[str | None]) -> dict[Partition, int]:
    """The next offset of each partition that a query with sources at `ends` reads; the lowest one
    where several sources read it.
    """
    offsets: dict[Partition, int] = {}
    for end in ends:
        for topic, of_topic in known_offset(end).items():
            for partition, offset in of_topic.next_offsets.items():
                at = topic, of_topic.topic_id, partition
                offsets[at] = min(offset, offsets.get(at, offset))
    return offsets


def of_root(
    offsets: Mapping[Partition, int], topics: TopicLookup, root: str
) -> dict[Partition, int]:
    """Those of the offsets whose topics the root has. Raises Unavailable, Corrupt, Incompatible."""
    return {at: offset for at, offset in offsets.items() if _is_there(topics, root, *at)}


def _is_there(topics: TopicLookup, root: str, topic: str, topic_id: str, _: int) -> bool:
    try:
        if topics.head(topic).topic_id == topic_id:
            return True
    except UnknownTopic:
        pass
    _log.warning("progress of a topic that %s does not have topic=%r id=%s", root, topic, topic_id)
    return False


def has_members(group: str, refused: Fenced) -> KafkaError:
    """The error of a query whose commit was refused by its group."""
    reason = (
        f"group {group!r} has members, and only they commit its offsets: use another "
        "group.id for the query, or close its consumers"
    )
    return KafkaError(refused.error.code(), reason)

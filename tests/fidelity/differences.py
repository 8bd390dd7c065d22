"""Where deltaq differs on purpose, by the row of docs/guides/migrate-from-kafka.md that gives the reason."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["DIFFERENCES", "justification", "rows_of_guide"]

_GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "migrate-from-kafka.md"

DIFFERENCES: dict[str, tuple[str, ...]] = {
    "`bootstrap.servers` is missing": ("closed_and_misuse/no_bootstrap_consumer",),
    "A replication factor above the number of brokers": ("create_topics/rf_3",),
    "A topic `a_b` beside `a.b`": ("create_topics/a_b_collides",),
    '`list_topics("missing")` of an admin client or a producer': (
        "list_topics_unknown/created_by_admin",
        "list_topics_unknown/created_by_producer_list",
    ),
    "Internal topics": ("list_topics/internal_listed",),
    "`segment.bytes`, `min.insync.replicas` of a topic": (
        "topic_configs/before/min.insync.replicas/1",
        "topic_configs/before/min.insync.replicas/2",
        "topic_configs/before/segment.bytes/0",
    ),
    "`acks=0`": ("acks_0/0/1",),
    "Headers in a delivery report": ("produce_reports/report/0/7",),
    "Header names of type `bytes`": ("headers/errors/bytes_key", "headers/read/x"),
    "A negative timestamp": ("produce_reports/negative_ts",),
    "A timestamp more than an hour ahead": ("timestamps/two_hours_ahead/0/0", "timestamps/two_hours_ahead/0/1"),
    "A message without a key among others for a compacted topic": ("compacted/mixed_batch/1",),
    "`message.max.bytes`": ("too_large/client_small_2000",),
    "`max.message.bytes` of a topic": ("too_large/compressed_fits/0/0", "too_large/compressed_fits/0/1"),
    "Messages without a key, `sticky.partitioning.linger.ms` = 5,000": (
        "null_key_sticky/consistent_random_5000ms",
        "null_key_sticky/murmur2_random_5000ms",
        "null_key_sticky/random_5000ms",
    ),
    "`if message:`": tuple(f"produce_none_and_empty/{at}/bool" for at in (0, 1, 3)),
    "`seek` in a topic of which nothing is assigned": ("seek/unassigned/code", "seek/unassigned/err"),
    "`seek` to a negative number that means nothing": ("seek/negative",),
    "The value of an event of `_PARTITION_EOF`": ("partition_eof/event_fields/value",),
    "The partition of an event about a topic": (
        "subscribe_patterns/unknown_topic/0/p",
        "subscribe_patterns/unmatched_pattern/0/p",
    ),
    "`purge` while the store does not answer": tuple(f"queue_full_and_purge/after_purge/1/{at}" for at in range(3)),
    "`_MSG_TIMED_OUT`": ("queue_full_and_purge/message_timeout/0/retriable",),
    "`host` of a member": ("group_description/member/host",),
    "`AdminClient.delete_consumer_group_offsets`": ("group_offsets/has_delete_consumer_group_offsets",),
}
"""Places in the answers of programs, `program/key/...`, as `paths_that_differ` names them."""


def justification(path: str) -> str | None:
    """The row that justifies a difference at this place; None if there is none."""
    return next((row for row, paths in DIFFERENCES.items() if path in paths), None)


def rows_of_guide(heading: str) -> list[str]:
    """The first cells of the table under a heading of the guide to migration."""
    _, _, section = _GUIDE.read_text().partition(f"\n## {heading}\n")
    table = section.partition("\n## ")[0]
    return re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)

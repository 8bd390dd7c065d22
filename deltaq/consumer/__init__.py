"""The consumer: fetching from the topic logs, `poll`, and the positions of partitions.

Modules:

* `consumer`, `reader`: the client; what it reads and commits with, and questions to the store,
  built at first use
* `deserializing`: `DeserializingConsumer`: records as objects
* `subscription`, `subscription_topics`: what is read, and what a subscription does between two
  polls; its topics, by name and by regular expression
* `reconciliation`: following what the group assigns: the states of an assignment, with the
  rebalance callbacks between them
* `assignment`, `fetch_buffer`: partitions held and their positions; fetched records, queued and
  accepted, and what calls have returned of them
* `calls`, `health`: calls refused, arguments checked, callbacks run, and how the consumer ends;
  what it knows of itself, also for `stats_cb`
* `fetcher`, `topic_fetcher`: the fetch thread; its work for one topic, with the files that are read
  next
* `tail`, `offset_reset`: following a log; where a partition begins
* `decoding`: rows as messages; pieces joined to large messages
"""

from __future__ import annotations

from deltaq.consumer.consumer import Consumer
from deltaq.consumer.deserializing import DeserializingConsumer
from deltaq.consumer.health import (
    ConsumerHealth,
    MembershipState,
    Ownership,
    PartitionHealth,
    ReadState,
)

__all__ = [
    "Consumer",
    "ConsumerHealth",
    "DeserializingConsumer",
    "MembershipState",
    "Ownership",
    "PartitionHealth",
    "ReadState",
]

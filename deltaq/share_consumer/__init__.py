"""The share consumer: taking messages of a share group, and acknowledging each by itself.

Modules:

* `consumer`, `messages`: the client, and what its `poll` returns
* `deserializing`: `DeserializingShareConsumer`: records as objects
* `calls`: calls refused
* `topics`: which offsets topics have, and the records that were taken
* `returned`, `pace`: what the application decides of the records that were returned; how many a
  loop takes at once
* `statistics`: what it counts, also for `stats_cb`
"""

from __future__ import annotations

from deltaq.share_consumer.consumer import ShareConsumer
from deltaq.share_consumer.deserializing import DeserializingShareConsumer
from deltaq.share_consumer.messages import Messages
from deltaq.share_groups.transaction_acknowledgements import (
    ShareAcknowledgements,
    ShareGroupMetadata,
)

__all__ = [
    "DeserializingShareConsumer",
    "Messages",
    "ShareAcknowledgements",
    "ShareConsumer",
    "ShareGroupMetadata",
]

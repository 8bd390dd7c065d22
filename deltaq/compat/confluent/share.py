"""Share groups of Kafka 4, which deltaq does not have."""

from __future__ import annotations

from typing import Any

from deltaq.errors import KafkaError, KafkaException


class ShareConsumer:
    """Refused: the constructor raises KafkaException (_UNSUPPORTED_FEATURE). Use a `Consumer`,
    whose groups may have any number of members.
    """

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        reason = f"{type(self).__name__}: deltaq has no share groups"
        raise KafkaException(KafkaError(KafkaError._UNSUPPORTED_FEATURE, reason))


class DeserializingShareConsumer(ShareConsumer):
    """Refused like `ShareConsumer`."""

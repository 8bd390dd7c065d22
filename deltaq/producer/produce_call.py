"""A call of `produce_batch`: the checks before its first message is queued, and which messages are
queued.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deltaq.errors import KafkaError, KafkaException
from deltaq.producer.topic_handle import accepted_headers, as_bytes
from deltaq.topic import Topic


@dataclass(frozen=True, slots=True)
class ProduceCall:
    """The messages of a call. `partition` and `callback` are those of messages that have none of
    their own.
    """

    messages: Sequence[dict[str, Any]]
    partition: int
    callback: object

    def check(self, topic: object, *, serializes: bool) -> None:
        """Raise TypeError for what no topic takes. Keys may be of any type if the producer
        `serializes`; text that UTF-8 cannot hold refuses only its message.
        """
        if not isinstance(topic, str | Topic):
            raise TypeError(f"topic must be str or Topic, not {type(topic).__name__}")
        operator.index(self.partition)
        _check_callable(self.callback)
        for at, message in enumerate(self.messages):
            if not isinstance(message, dict):
                raise TypeError(
                    f"message at index {at} must be a dict, not {type(message).__name__}"
                )
            try:
                _check_fields(message, serializes=serializes)
            except UnicodeEncodeError:
                continue
            except TypeError as error:
                raise TypeError(f"message at index {at}: {error}") from None

    def unplain(self) -> tuple[int, object] | None:
        """The first value that only a typed topic takes, behind its index."""
        values = enumerate(message.get("value") for message in self.messages)
        return next(
            (found for found in values if not isinstance(found[1], bytes | str | None)), None
        )

    def queue(self, produce: Callable[..., None]) -> int:
        """Queue the messages; the number of those that were queued. The others have their error
        under `_error`.
        """
        queued = 0
        for at, message in enumerate(self.messages):
            own, callback = message.get("partition"), message.get("callback")
            try:
                produce(
                    value=message.get("value"),
                    key=message.get("key"),
                    partition=self.partition if own is None else own,
                    on_delivery=self.callback if callback is None else callback,
                    timestamp=message.get("timestamp") or 0,
                    headers=message.get("headers"),
                )
            except BufferError:  # QueueFull, and that of the compatible producer
                # A later message that found room would overtake this one.
                for left in self.messages[at:]:
                    left["_error"] = KafkaError(KafkaError._QUEUE_FULL, retriable=True)
                break
            except KafkaException as error:
                message["_error"] = error.args[0]
            except (TypeError, UnicodeEncodeError) as error:
                message["_error"] = KafkaError(KafkaError._INVALID_ARG, str(error))
            else:
                # Left by an earlier call: a loop that retries refused messages would never end.
                message.pop("_error", None)
                queued += 1
        return queued


def _check_fields(message: Mapping[str, Any], *, serializes: bool) -> None:
    _check_callable(message.get("callback"))
    for name in ("partition", "timestamp"):
        if (number := message.get(name)) is not None and not hasattr(number, "__index__"):
            raise TypeError(f"{name} must be int, not {type(number).__name__}")
    if not serializes and (key := message.get("key")) is not None:
        as_bytes(key, "key")
    if (headers := message.get("headers")) is not None:
        accepted_headers(headers)


def _check_callable(callback: object) -> None:
    if callback is not None and not callable(callback):
        raise TypeError(f"callback must be callable, not {type(callback).__name__}")

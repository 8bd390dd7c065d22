"""Futures of delivered messages."""

from __future__ import annotations

from concurrent.futures import Future

from deltaq.errors import KafkaError, KafkaException
from deltaq.message import Message


class DeliveryFuture(Future[Message]):
    """The future of one message, queued in the place of its delivery callback. The sender finishes
    it as soon as the result is there, so that it ends without calls of `poll`.
    """

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """Makes it valid as a callback. Not called: see `PendingCallbacks.finish_futures`."""

    def finish(self, error: KafkaException | None, message: Message) -> None:
        """Give the future its result, unless it was cancelled."""
        if not self.set_running_or_notify_cancel():
            return
        if error is None:
            self.set_result(message)
        else:
            self.set_exception(error)

"""The service: reads orders, writes invoices, answers health checks, and ends cleanly at SIGTERM.

Each record is processed at least once: the offsets of a batch are committed after all that it has
caused is written. A crash in between repeats the batch, with the same invoice numbers.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deltaq import (
    Consumer,
    ConsumerHealth,
    Fenced,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    Topic,
)
from deltaq.consumer import MembershipState
from deltaq.metrics import Sample, Totals, consumer_samples, listening
from examples.service.billing import Invoice, Rejected, bill
from examples.service.endpoints import Endpoints

_log = logging.getLogger(__name__)

REJECTED_BYTES_MAX = 2_000_000
"""An order of the largest size, 1 MB by default, is set aside with headers beside it."""

ORDERS = Topic("orders", partitions=4)
REJECTED = Topic("orders.rejected", config={"max.message.bytes": REJECTED_BYTES_MAX})
INVOICES = Topic("invoices", Invoice, partitions=4)

COUNTED = ("invoices", "rejected", "repeated")


@dataclass(frozen=True)
class Settings:
    """What an instance needs to know; from the environment in `main`."""

    root: str
    group: str = "billing"
    host: str = "127.0.0.1"
    port: int = 8080
    batch_size: int = 500
    poll_s: float = 0.5
    flush_s: float = 60.0
    """Time in which a batch must be written. It is below `max.poll.interval.ms`, after which others
    get the orders.
    """

    silent_s: float = 120.0
    """Time without a poll after which the instance is not alive: a hanging call never comes
    back.
    """


class NotWritten(Exception):
    """A message could not be written. The instance ends; the next owner of its partitions repeats
    the batch.
    """


class Service:
    """One instance. `run` returns after `stop`, and raises what an operator must see."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.counts = Counter(dict.fromkeys(COUNTED, 0))
        self._totals = Totals()
        self._stopping = threading.Event()
        self._failures: list[KafkaError] = []
        conf = {"bootstrap.servers": settings.root}
        sending = {"linger.ms": 20, "message.max.bytes": REJECTED_BYTES_MAX}
        self._producer = Producer({**conf, **sending}, on_delivery=self._delivered)
        self._consumer = Consumer(
            {
                **conf,
                "group.id": settings.group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "partition.assignment.strategy": "cooperative-sticky",
            }
        )

    # --- what other threads may call ---

    def stop(self) -> None:
        """Let `run` finish its batch and return. For signal handlers."""
        self._stopping.set()

    def health(self) -> ConsumerHealth:
        """What the consumer knows of itself."""
        return self._consumer.health()

    def metrics(self) -> Iterator[Sample]:
        """What the clients have counted, and how far the consumer is behind."""
        yield from self._totals.samples()
        yield from consumer_samples(self._consumer)

    def is_alive(self) -> bool:
        """Whether to leave the instance alone. False: restart it."""
        since_poll_s = self.health().since_poll_s
        return since_poll_s is None or since_poll_s < self.settings.silent_s

    def is_ready(self) -> bool:
        """Whether the instance takes its share of the work."""
        member = self.health().membership in (MembershipState.STABLE, MembershipState.REBALANCING)
        return member and not self._stopping.is_set()

    # --- the work ---

    def run(self) -> None:
        """Process orders until `stop` is called. Raises NotWritten, and KafkaException for damaged
        data.
        """
        try:
            with listening(self._totals):
                self._consumer.subscribe([ORDERS])
                while not self._stopping.is_set():
                    self._process(self._next_batch())
        finally:
            self._consumer.close()  # others get the partitions at once
            self._producer.close()

    def _next_batch(self) -> list[Message]:
        try:
            messages = self._consumer.consume(self.settings.batch_size, self.settings.poll_s)
        except Fenced as error:
            _log.warning("lost the membership, joining again: %s", error)
            return []
        for event in filter(None, (message.error() for message in messages)):
            if not _passes(event):
                raise KafkaException(event)
        return [message for message in messages if message.error() is None]

    def _process(self, messages: list[Message]) -> None:
        """Write all that the messages cause, then commit them."""
        if not messages:
            return
        for message in messages:
            self._bill(message)
        if self._producer.flush(self.settings.flush_s) or self._failures:
            raise NotWritten(
                f"{len(messages)} orders are processed again: "
                f"{self._failures or 'no answer in time'}"
            )
        try:
            self._consumer.commit(asynchronous=False)
        except Fenced:
            # Others have the partitions: they bill these orders again, with the same numbers.
            self.counts["repeated"] += len(messages)

    def _bill(self, message: Message) -> None:
        value, number = message.value(), f"{message.partition()}-{message.offset()}"
        try:
            invoice = bill(value, number)
        except Rejected as reason:
            self.counts["rejected"] += 1
            _log.warning("rejected order %s: %s", number, reason)
            headers = {"reason": str(reason), "order": number}
            self._producer.produce(REJECTED, value, key=message.key(), headers=headers)
            return
        self.counts["invoices"] += 1
        self._producer.produce(INVOICES, invoice, key=invoice.customer)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._failures.append(error)


def _passes(error: KafkaError) -> bool:
    """Whether the consumer goes on by itself: the topic does not exist yet, or the store does not
    answer.
    """
    waits = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._MAX_POLL_EXCEEDED)
    return error.code() in waits or error.retriable()


def main(environment: Mapping[str, str] = os.environ) -> None:
    """Run one instance until SIGTERM or SIGINT. An orchestrator restarts it when it fails."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    defaults = Settings(environment.get("ROOT", "./deltaq-data"))
    settings = Settings(
        defaults.root,
        environment.get("GROUP", defaults.group),
        environment.get("HOST", defaults.host),
        int(environment.get("PORT", defaults.port)),
    )
    service = Service(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: service.stop())
    with Endpoints(service) as endpoints:
        _log.info("listening at %s", endpoints.url)
        service.run()


if __name__ == "__main__":
    main()

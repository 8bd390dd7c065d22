"""Send the mails of the queue until interrupted. Any number of these share the work."""

from __future__ import annotations

import random
import threading
from typing import Any

from deltaq import Message, Producer, ShareConsumer
from examples._programs import child_parser, end_if_undelivered, on_stop
from examples.work_queue.address_book import FlakyAddressBook, UnknownAddress
from examples.work_queue.layout import GROUP, SentMail, back_off_s, mails, sent_mails

AT_ONCE = 20
"""Mails that a worker takes at once: what it holds when it dies has to wait for others."""


class Mailer:
    """A worker with its two clients."""

    def __init__(self, root: str, book: FlakyAddressBook) -> None:
        self._book = book
        self._outbox = sent_mails(root)
        self._producer = Producer(bootstrap_servers=root, on_delivery=end_if_undelivered)
        self._queue: ShareConsumer[Any, Any] = ShareConsumer(
            {
                "bootstrap.servers": root,
                "group.id": GROUP,
                "client.id": "mailer",
                "share.acknowledgement.mode": "explicit",
                "max.poll.records": AT_ONCE,
            }
        )
        self._queue.subscribe([mails(root)])

    def work(self, timeout_s: float) -> int:
        """Work on what comes within so many seconds, and return how many mails that were."""
        messages = self._queue.poll(timeout_s)
        for message in messages:
            self._decide(message)
        # A mail counts as sent before it is accepted. A crash in between sends it again.
        self._producer.flush()
        self._queue.commit_sync()
        return len(messages)

    def _decide(self, message: Message[Any, Any]) -> None:
        mail, deliveries = message.value(), message.delivery_count() or 1
        try:
            self._book.find(mail.to)
        except UnknownAddress as error:
            self._queue.reject(message, error)
        except OSError as error:
            self._queue.release(message, back_off_s(deliveries), error)
        else:
            self._producer.produce(self._outbox, SentMail(number=mail.number, delivery=deliveries))
            self._queue.acknowledge(message)

    def close(self) -> None:
        """Give back what is held, and end."""
        self._queue.close()
        self._producer.close()


def main() -> None:
    """Run the program."""
    parser = child_parser(__doc__)
    parser.add_argument("--failing", type=float, default=0.3, help="part of questions that fail")
    args = parser.parse_args()

    stopping = threading.Event()
    on_stop(stopping.set, until_eof=args.until_eof)
    mailer = Mailer(args.root, FlakyAddressBook(args.failing, random.Random()))
    while not stopping.is_set():
        mailer.work(0.5)
    mailer.close()


if __name__ == "__main__":
    main()

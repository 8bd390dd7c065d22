"""Write mails at a steady rate until interrupted."""

from __future__ import annotations

import threading
import time

from deltaq import Producer
from examples._programs import child_parser, end_if_undelivered, on_stop
from examples.work_queue.layout import PARTITIONS, Mail, mails

TICK_S = 0.05

GONE_EVERY = 20
"""Each mail of this number is to a person whom the address book does not know."""


def mail_of(number: int) -> Mail:
    """The mail of a number."""
    return Mail(number=number, to="gone" if number % GONE_EVERY == 0 else f"person-{number % 50}")


def main() -> None:
    """Run the program."""
    parser = child_parser(__doc__)
    parser.add_argument("--rate", type=float, default=50, help="mails per second")
    args = parser.parse_args()

    stopping = threading.Event()
    on_stop(stopping.set, until_eof=args.until_eof)
    queue, begun, count = mails(args.root), time.monotonic(), 0
    with Producer(bootstrap_servers=args.root, on_delivery=end_if_undelivered) as producer:
        while not stopping.wait(TICK_S):
            due = int((time.monotonic() - begun) * args.rate)
            for number in range(count, due):
                producer.produce(queue, mail_of(number), partition=number % PARTITIONS)
            count = due
            producer.poll(0)


if __name__ == "__main__":
    main()

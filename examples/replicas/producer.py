"""Write events of random users at a steady rate until interrupted."""

from __future__ import annotations

import random
import threading
import time

from deltaq import Producer
from examples._programs import child_parser, end_if_undelivered, on_stop
from examples.replicas.layout import EVENTS, UserEvent

TICK_S = 0.05


def main() -> None:
    """Run the program."""
    parser = child_parser(__doc__)
    parser.add_argument("--rate", type=float, default=2_000, help="events per second")
    parser.add_argument("--users", type=int, default=1_000, help="number of users")
    args = parser.parse_args()

    stopping = threading.Event()
    on_stop(stopping.set, until_eof=args.until_eof)

    begun, count = time.monotonic(), 0
    with Producer(
        {"bootstrap.servers": args.root, "linger.ms": 50}, on_delivery=end_if_undelivered
    ) as producer:
        while not stopping.wait(TICK_S):
            due = int((time.monotonic() - begun) * args.rate)
            for _ in range(due - count):
                user = f"user-{random.randrange(args.users):04d}"
                # Quarters have an exact sum in binary, in whatever order they are added.
                event = UserEvent(user_id=user, value=random.randrange(1, 400) / 4)
                try:
                    producer.produce(EVENTS, event, key=user)
                except BufferError:  # the buffer is full
                    break
                count += 1
            producer.poll(0)


if __name__ == "__main__":
    main()

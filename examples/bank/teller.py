"""Write transactions between ten accounts, as they come in: up to ten seconds late.

Each moves an amount of 1 from one account to another, or to the same. The time in the bank passes
ten times as fast.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterator
from itertools import count
from random import Random

from deltaq import Producer
from examples._programs import child_parser, end_if_undelivered, on_stop
from examples.bank.layout import ACCOUNTS, transactions

LATE_S = 10
SECOND_S = 0.1
"""How long a second of the bank takes."""

Transaction = dict[str, int]


def arriving(random: Random, per_second: int) -> Iterator[list[Transaction]]:
    """For each second of the bank the transactions that come in, of this second and of ten seconds
    before.
    """
    numbers = count()
    on_their_way: list[tuple[float, int, Transaction]] = []
    for second in count():
        for number in (next(numbers) for _ in range(per_second)):
            comes_at = second + random.uniform(0, LATE_S)
            transaction = {
                "id": number,
                "from_account": random.randrange(ACCOUNTS),
                "to_account": random.randrange(ACCOUNTS),
                "amount": 1,
                "second": second,
            }
            heapq.heappush(on_their_way, (comes_at, number, transaction))
        come = []
        while on_their_way and on_their_way[0][0] < second + 1:
            come.append(heapq.heappop(on_their_way)[2])
        yield come


def main() -> None:
    """Run the program."""
    parser = child_parser(__doc__)
    parser.add_argument("--rate", type=int, default=1000, help="transactions a second")
    parser.add_argument("--seed", type=int, default=42, help="draw these transactions")
    args = parser.parse_args()

    stopping = threading.Event()
    on_stop(stopping.set, until_eof=args.until_eof)
    topic = transactions(args.root)
    conf = {"bootstrap.servers": args.root, "linger.ms": 20}
    with Producer(conf, on_delivery=end_if_undelivered) as producer:
        for come in arriving(Random(args.seed), max(1, round(args.rate * SECOND_S))):
            for transaction in come:
                producer.produce(topic, transaction)
            producer.poll(0)
            if stopping.wait(SECOND_S):
                break


if __name__ == "__main__":
    main()

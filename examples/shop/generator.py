"""Write one of the shop's topics: products once, purchases as customers buy, or the restocks that
follow from them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from random import Random

from deltaq import OFFSET_BEGINNING, Consumer, Producer, Topic, TopicPartition
from examples._programs import end_if_undelivered, on_stop
from examples.shop.layout import (
    INVENTORIES,
    PRODUCTS,
    PURCHASES,
    ShopClock,
    clock_of,
    create_topics,
    shop_parser,
)
from examples.shop.sales import Habits, products, restocks, sales

WAIT_S = 0.2


def write_products(producer: Producer, topic: Topic, clock: ShopClock) -> None:
    """Write all products. Every start of the generator does so; the newest record of a product
    counts.
    """
    now = clock.now()
    for product in products(now):
        producer.produce(
            topic, product, key=product.product_id, timestamp=int(now.timestamp() * 1000)
        )


def write_purchases(
    producer: Producer, chance: Random, clock: ShopClock, habits: Habits, stopping: threading.Event
) -> None:
    """Write purchases at the time at which the tills send them."""
    for message in sales(chance, clock.now(), habits):
        if not clock.wait_until(message.at, stopping):
            return
        # The tills' time, not ours: whether a purchase is late does not depend on the speed of the
        # demo.
        timestamp = int(message.at.timestamp() * 1000)
        producer.produce(PURCHASES, message.value, key=message.key, timestamp=timestamp)
        producer.poll(0)


def write_restocks(
    producer: Producer, root: str, topic: Topic, partitions: int, stopping: threading.Event
) -> None:
    """Follow the purchases from the beginning, and write the restocks that are not written yet."""
    written = Counter(topic.to_arrow().column("product_id").to_pylist())
    with Consumer(
        {"bootstrap.servers": root, "group.id": "store-room", "enable.auto.commit": False}
    ) as consumer:
        consumer.assign(
            [TopicPartition(PURCHASES, number, OFFSET_BEGINNING) for number in range(partitions)]
        )
        for restock in restocks(_messages(consumer, stopping), written):
            timestamp = int(restock.event_time.timestamp() * 1000)
            producer.produce(topic, restock, key=restock.product_id, timestamp=timestamp)
            producer.poll(0)


def _messages(consumer: Consumer, stopping: threading.Event) -> Iterator[tuple[int, bytes | None]]:
    while not stopping.is_set():
        for message in consumer.consume(500, timeout=WAIT_S):
            if (error := message.error()) is not None:
                raise SystemExit(f"cannot read {PURCHASES}: {error.str()}")
            yield message.timestamp()[1], message.value()


def main() -> None:
    """Run the program."""
    defaults = Habits()
    parser = shop_parser(__doc__)
    parser.add_argument("topic", choices=(PRODUCTS, PURCHASES, INVENTORIES))
    parser.add_argument("--seed", type=int, default=None, help="sell the same in every run")
    parser.add_argument("--transactions", type=int, default=defaults.transactions, help="then end")
    parser.add_argument(
        "--min-sleep", type=float, default=defaults.sleep_s[0], help="seconds between transactions"
    )
    parser.add_argument(
        "--max-sleep",
        type=float,
        default=defaults.sleep_s[1],
        help="the same, in the time of the shop",
    )
    parser.add_argument(
        "--late", type=float, default=0.03, help="share of transactions that are sent late"
    )
    parser.add_argument(
        "--bad", type=float, default=0.01, help="share of purchases that are garbled"
    )
    args = parser.parse_args()

    stopping = threading.Event()
    on_stop(stopping.set, until_eof=args.until_eof)
    topics = create_topics(args.root)
    clock = clock_of(args)
    with Producer(
        {"bootstrap.servers": args.root, "linger.ms": 50}, on_delivery=end_if_undelivered
    ) as producer:
        if args.topic == PRODUCTS:
            write_products(producer, topics[PRODUCTS], clock)
        elif args.topic == PURCHASES:
            habits = Habits(
                args.transactions, (args.min_sleep, args.max_sleep), args.late, args.bad
            )
            write_purchases(producer, Random(args.seed), clock, habits, stopping)
        else:
            partitions = len(topics[PURCHASES].describe().partitions)
            write_restocks(producer, args.root, topics[INVENTORIES], partitions, stopping)


if __name__ == "__main__":
    main()

"""Produce the messages of two clocks: the current time in New York or in Paris, and a number."""

from __future__ import annotations

import json
import random
import time
from datetime import datetime

from deltaq import KafkaError, Message, Producer
from examples._programs import parser_of
from examples.timezone_etl.layout import CLOCKS, DATE_FORMAT


def report(error: KafkaError | None, message: Message) -> None:
    """Print a delivered message, or end the program if delivery failed."""
    if error is not None:
        raise SystemExit(f"not delivered: {error.str()}")
    print(
        f"{message.topic()}[{message.partition()}]@{message.offset()} {message.value().decode()}",
        flush=True,
    )


def main() -> None:
    """Run the program."""
    parser = parser_of(__doc__)
    parser.add_argument("--messages", type=int, default=10, help="how many to produce")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two messages")
    args = parser.parse_args()

    choice = random.Random(0)
    with Producer({"bootstrap.servers": args.root}) as producer:
        for number in range(args.messages):
            topic = choice.choice(list(CLOCKS))
            date = datetime.now(CLOCKS[topic]).strftime(DATE_FORMAT)
            value = json.dumps({"date": date, "message": str(number)})
            try:
                producer.produce(topic, value, on_delivery=report)
            except BufferError:  # the buffer is full
                producer.flush()
                producer.produce(topic, value, on_delivery=report)
            producer.poll(0)
            time.sleep(args.interval)


if __name__ == "__main__":
    main()

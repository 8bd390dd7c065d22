"""Replay from a point in time: look up the offsets at a time and read from there."""

from tempfile import TemporaryDirectory

from deltaq import Consumer, Producer, TopicPartition

NOON = 1_700_000_000_000  # milliseconds since 1970 UTC


def main() -> None:
    """Produce one reading per minute of an hour, and read those since half past."""
    with TemporaryDirectory() as root:
        with Producer({"bootstrap.servers": root}) as producer:
            for minute in range(60):
                producer.produce(
                    "temperature", f"{20 + minute / 10:.1f}", timestamp=NOON + minute * 60_000
                )

        with Consumer({"bootstrap.servers": root, "group.id": "replay"}) as consumer:
            asked = [TopicPartition("temperature", 0, NOON + 30 * 60_000)]
            consumer.assign(consumer.offsets_for_times(asked))
            messages = consumer.consume(30, timeout=10)
            print(
                f"since half past: {len(messages)} readings, offsets {messages[0].offset()} to "
                f"{messages[-1].offset()}"
            )
            print("last:", messages[-1].value().decode(), "degrees")


if __name__ == "__main__":
    main()

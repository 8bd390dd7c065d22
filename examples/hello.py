"""Minimal example: produce messages and read them back. The topic is a folder; no other program
runs.
"""

from tempfile import TemporaryDirectory

from deltaq import Consumer, Producer


def main() -> None:
    """Produce three greetings and read them back."""
    with TemporaryDirectory() as root:
        with Producer({"bootstrap.servers": root}) as producer:
            for name in ("Ada", "Grace", "Barbara"):
                producer.produce("greetings", f"hello, {name}", key=name)

        with Consumer(
            {"bootstrap.servers": root, "group.id": "readers", "auto.offset.reset": "earliest"}
        ) as consumer:
            consumer.subscribe(["greetings"])
            for message in consumer.consume(3, timeout=10):
                print(message.offset(), message.key().decode(), "->", message.value().decode())


if __name__ == "__main__":
    main()

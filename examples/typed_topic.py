"""A typed topic: the fields of a pydantic model are the columns of the table; `produce` validates
the values.
"""

from tempfile import TemporaryDirectory

from pydantic import BaseModel

from deltaq import Consumer, InvalidValue, Producer, Topic


class FruitOrder(BaseModel):
    """The values of the topic."""

    product: str
    quantity: int
    price: float


def main() -> None:
    """Produce orders, of which an invalid one is refused, read them as instances, and read them as
    a table.
    """
    with TemporaryDirectory() as root:
        orders = Topic("orders", schema=FruitOrder, partitions=4, conf={"bootstrap.servers": root})
        with Producer({"bootstrap.servers": root}) as producer:
            producer.produce(orders, FruitOrder(product="kiwi", quantity=3, price=0.4), key="kiwi")
            producer.produce(orders, {"product": "mango", "quantity": 1, "price": 2.5}, key="mango")
            try:
                producer.produce(orders, {"product": "lime", "quantity": "many", "price": 1.0})
            except InvalidValue as error:
                print("refused:", error.args[0].str())

        with Consumer(
            {"bootstrap.servers": root, "group.id": "till", "auto.offset.reset": "earliest"}
        ) as consumer:
            consumer.subscribe([orders])
            for message in consumer.consume(2, timeout=10):
                order = message.value()
                print(
                    f"{type(order).__name__}: {order.quantity} x {order.product} = "
                    f"{order.quantity * order.price:.2f}"
                )

        print(
            orders.to_arrow()
            .select(["_partition", "_offset", "product", "quantity", "price"])
            .to_pylist()
        )


if __name__ == "__main__":
    main()

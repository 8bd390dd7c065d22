"""What the service does with one message, without I/O. Replace this module."""

from __future__ import annotations

from pydantic import BaseModel, Field, ValidationError


class Order(BaseModel):
    """The values of the input, as JSON. The limits ensure that the invoice of each valid order can
    be written.
    """

    customer: str = Field(max_length=1_000)
    item: str
    quantity: int = Field(gt=0, le=1_000_000)
    cents: int = Field(ge=0, le=1_000_000_000)


class Invoice(BaseModel):
    """The values of the output."""

    number: str
    customer: str
    cents: int


class Rejected(Exception):
    """The message is invalid, and would be so at every attempt. The text says why."""


def bill(value: bytes | None, number: str) -> Invoice:
    """The invoice for an order. `number` is derived from the order's place in the topic, so that an
    order that is delivered again gets the same one. Raises Rejected.
    """
    try:
        order = Order.model_validate_json(value or b"")
    except ValidationError as error:
        wrong = (
            f"{'.'.join(map(str, at['loc'])) or 'value'}: {at['msg']}" for at in error.errors()
        )
        raise Rejected("; ".join(wrong)) from None
    return Invoice(number=number, customer=order.customer, cents=order.quantity * order.cents)

"""What the jobs of the shop must compute, in plain Python over the messages of the tills."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, NamedTuple

WINDOW, SLIDE, LATENESS = timedelta(minutes=10), timedelta(minutes=5), timedelta(minutes=10)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class OracleMessage(NamedTuple):
    """A message of a till."""

    sent_ms: int
    key: str
    value: bytes


class Sums(NamedTuple):
    """Number of purchases, products sold, and dollars."""

    transactions: int
    quantities: int
    sales: Decimal


@dataclass(frozen=True)
class Purchase:
    """A valid purchase: its fields, and when it took place and was sent."""

    fields: dict[str, Any]
    at: datetime
    sent: datetime

    @property
    def is_late(self) -> bool:
        """Whether the till sent it more than ten minutes after the sale."""
        return self.sent - self.at > LATENESS

    def windows(self) -> Iterable[datetime]:
        """The starts of the windows that it is in."""
        newest = EPOCH + (self.at - EPOCH) // SLIDE * SLIDE
        start = newest
        while start + WINDOW > self.at:
            yield start
            start -= SLIDE


def reason(value: bytes) -> str | None:
    """Why a message is not a valid purchase; None if it is one."""
    try:
        fields = json.loads(value, parse_float=Decimal)
    except ValueError:
        return "not a purchase"
    to_pay = fields["quantity"] * (Decimal(fields["price"]) + Decimal(fields["supplement_price"]))
    to_pay *= 1 - Decimal(fields["member_discount"])
    rounded = to_pay.quantize(Decimal("0.01"), ROUND_HALF_UP)
    return None if rounded == Decimal(fields["total_purchase"]) else "wrong total"


def purchases(messages: Iterable[OracleMessage]) -> list[Purchase]:
    """The valid purchases among messages."""
    valid = (message for message in messages if reason(message.value) is None)
    found = []
    for message in valid:
        fields = json.loads(message.value, parse_float=Decimal)
        sent = EPOCH + timedelta(milliseconds=message.sent_ms)
        found.append(Purchase(fields, datetime.fromisoformat(fields["transaction_time"]), sent))
    return found


def summed(rows: Iterable[tuple[Any, Purchase]]) -> dict[Any, Sums]:
    """The sums by key."""
    sums: dict[Any, Sums] = defaultdict(lambda: Sums(0, 0, Decimal("0.00")))
    for key, purchase in rows:
        count, quantity, sales = sums[key]
        fields = purchase.fields
        sums[key] = Sums(
            count + 1, quantity + fields["quantity"], sales + Decimal(fields["total_purchase"])
        )
    return dict(sums)


def totals(sold: Iterable[Purchase]) -> dict[str, Sums]:
    """The sums by product."""
    return summed((purchase.fields["product_id"], purchase) for purchase in sold)


def windows(sold: Iterable[Purchase]) -> dict[tuple[datetime, str], Sums]:
    """The sums by start of a window and product, without late purchases."""
    return summed(
        ((start, purchase.fields["product_id"]), purchase)
        for purchase in sold
        if not purchase.is_late
        for start in purchase.windows()
    )

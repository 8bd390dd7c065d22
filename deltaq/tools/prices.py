"""Price lists of object stores: dollars for requests and for keeping bytes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DAY_S = 86_400
MONTH_DAYS = 365 / 12

REQUEST_KINDS = ("PUT", "GET", "LIST", "DELETE")
"""The kinds of requests that price lists tell apart."""


@dataclass(frozen=True, slots=True)
class PriceList:
    """Dollars per million requests of each kind, and dollars a month per gigabyte (10^9 bytes)
    kept.
    """

    name: str
    per_million: Mapping[str, float]
    gb_month: float

    def dollars_for_requests(self, per_s: Mapping[str, float]) -> float:
        """Dollars a day for so many requests of each kind a second."""
        return sum(rate * DAY_S * self.per_million[kind] / 1e6 for kind, rate in per_s.items())

    def dollars_for_bytes(self, kept: float) -> float:
        """Dollars a day for keeping so many bytes."""
        return kept / 1e9 * self.gb_month / MONTH_DAYS


S3_STANDARD = PriceList(
    "S3 Standard",
    # AWS' questions and answers on S3, but for the price of keeping, which was not re-checked. That
    # refused requests and those for what is missing are paid for like any is an assumption too.
    # Deleting costs nothing.
    per_million={"PUT": 5.0, "GET": 0.40, "LIST": 5.0, "DELETE": 0.0},
    gb_month=0.023,
)

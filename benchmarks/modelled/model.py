"""The model of a store: how long its requests take, with the price list of the product. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from deltaq.tools import prices
from deltaq.tools.prices import DAY_S, PriceList

__all__ = ["DAYS_KEPT", "S3_STANDARD", "RequestLatency", "StoreModel"]

DAYS_KEPT = 7
"""As in `retention.ms`'s default."""

_P99 = NormalDist().inv_cdf(0.99)


@dataclass(frozen=True, slots=True)
class RequestLatency:
    """How long a small request takes, log-normal through two percentiles. Milliseconds."""

    p50: float
    p99: float

    def seconds(self, share: float) -> float:
        """What a share of all requests does not exceed, in seconds. Pure."""
        sigma = math.log(self.p99 / self.p50) / _P99
        return (
            self.p50
            * math.exp(sigma * NormalDist().inv_cdf(min(max(share, 1e-12), 1 - 1e-12)))
            / 1000
        )


@dataclass(frozen=True, slots=True)
class StoreModel:
    """A store by kind of request (PUT, GET, LIST, DELETE): latencies, `mb_per_s` of the content of
    one request, and prices.
    """

    name: str
    latencies: Mapping[str, RequestLatency]
    mb_per_s: float
    prices: PriceList

    def dollars_for_keeping(self, mb_per_s: float, days: float = DAYS_KEPT) -> float:
        """Dollars a day for keeping what has been written in so many days, at a steady rate."""
        return self.prices.dollars_for_bytes(mb_per_s * 1e6 * DAY_S * days)


S3_STANDARD = StoreModel(
    "S3 Standard",
    {
        # turbopuffer's page on its architecture and Quickwit's and cdouglas' measurements: a small
        # PUT takes 60 to 100 ms at p50 and 195 at p99, a GET 63 and 78. A trace published by the
        # makers of mountpoint-s3: the first byte of a LIST after 13 to 14 ms and 35 to 42. Nothing
        # is published for DELETE: assumed to be as a PUT.
        "PUT": RequestLatency(65, 200),
        "GET": RequestLatency(63, 78),
        "LIST": RequestLatency(14, 42),
        "DELETE": RequestLatency(65, 200),
    },
    # Of a message's way through one PUT and one GET, a survey reckons 236 ms more at p50 for
    # objects of 2 to 8 MiB than for small ones: 10 MiB in 236 ms.
    mb_per_s=44.4,
    prices=prices.S3_STANDARD,
)

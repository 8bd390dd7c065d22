"""The model of a store, and a store in memory that delays and counts requests as its model says."""

from __future__ import annotations

import builtins
import heapq
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import NormalDist

from benchmarks.counting_store import CountingStore
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.store import ObjectEntry, PollInterval, Store, Watch
from deltaq.store.object_listing import LIST_CHUNK
from deltaq.store.objects import PART_BYTES, PARTS_IN_FLIGHT, POLL_INTERVAL
from deltaq.store.watch import SignalWatch
from deltaq.testing.chance import chance
from deltaq.tools import prices
from deltaq.tools.prices import DAY_S, PriceList

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


class ModelledStore(CountingStore):
    """Hands everything on to `inner`, one of this process, with the delays, and the requests, of a
    model.

    The requests of an operation are those of `deltaq.store.objects`: large objects are uploaded in
    parts, several at once, and a listing ends with a request that finds no further page. Watches
    are not notified. The same seed and order of operations give the same delays. Thread-safe.
    """

    def __init__(
        self, inner: Store, model: StoreModel, seed: int, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(inner, log_folder="")  # to S3 a log entry is an object like any other
        self._requests: Counter[str] = Counter()
        self._model = model
        self._seed = seed
        self._clock = clock

    @property
    def poll_interval(self) -> PollInterval:
        return POLL_INTERVAL

    @property
    def is_remote(self) -> bool:
        return True

    def requests(self) -> Counter[str]:
        """How many there have been of each kind."""
        with self._lock:
            return self._requests.copy()

    def request_s(self, kind: str, size: int = 0) -> float:
        """Count one request with so many bytes of content, and draw the seconds it takes."""
        with self._lock:
            self._requests[kind] += 1
            number = self._requests[kind]
        drawn_s = self._model.latencies[kind].seconds(chance(self._seed, kind, number))
        return drawn_s + size / (self._model.mb_per_s * 1e6)

    def upload_s(self, size: int) -> float:
        """As `request_s`, of all requests of one `put`."""
        if size <= PART_BYTES:
            return self.request_s("PUT", size)
        begin_s, end_s = self.request_s("PUT"), self.request_s("PUT")
        under_way = [0.0] * PARTS_IN_FLIGHT
        for start in range(0, size, PART_BYTES):
            part_s = self.request_s("PUT", min(PART_BYTES, size - start))
            heapq.heapreplace(under_way, under_way[0] + part_s)
        return begin_s + max(under_way) + end_s

    def get(self, key: str, size_max: int | None = None) -> bytes:
        with _Delay(self._clock, self.request_s("GET")) as delay:
            found = super().get(key, size_max)
            delay.seconds += self._content_s(len(found))
        return found

    def get_impatient(self, key: str, size_max: int | None = None) -> bytes:
        return self.get(key, size_max)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with _Delay(self._clock, self.request_s("GET")) as delay:
            found = super().get_range(key, start, length)
            delay.seconds += self._content_s(len(found))
        return found

    def put(self, key: str, data: bytes | memoryview) -> None:
        with _Delay(self._clock, self.upload_s(memoryview(data).nbytes)):
            super().put(key, data)

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        with _Delay(self._clock, self.request_s("PUT", memoryview(data).nbytes)):
            super().create(key, data, after)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        found = [*super().list(prefix, start_after)]
        self._wait_for_pages(len(found))
        return iter(found)

    def list_some(self, prefix: str, start_after: str = "") -> builtins.list[ObjectEntry]:
        with _Delay(self._clock, self.request_s("LIST")):
            return super().list_some(prefix, start_after)

    def list_folders(self, prefix: str) -> builtins.list[str]:
        found = super().list_folders(prefix)
        self._wait_for_pages(len(found))
        return found

    def delete(self, key: str) -> None:
        with _Delay(self._clock, self.request_s("DELETE")):
            super().delete(key)

    def watch(self) -> Watch:
        return SignalWatch(self._clock)

    def _wait_for_pages(self, entries: int) -> None:
        pages = max(1, -(-entries // LIST_CHUNK))
        self._clock.sleep(sum(self.request_s("LIST") for _ in range(pages + 1)))

    def _content_s(self, size: int) -> float:
        return size / (self._model.mb_per_s * 1e6)


class _Delay:
    """Half of the time passes before what is inside, half after it: a request's way there and its
    answer's way back.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.seconds = seconds
        self._before_s = seconds / 2

    def __enter__(self) -> _Delay:
        self._clock.sleep(self._before_s)
        return self

    def __exit__(self, *_: object) -> None:
        self._clock.sleep(self.seconds - self._before_s)

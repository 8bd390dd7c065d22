"""A store in a bucket: S3 and compatible servers, Google Cloud Storage and Azure Blob Storage,
through obstore.

Uses obstore's blocking calls. They release the interpreter lock, and its asynchronous calls take
100 µs more each.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping
from math import inf

import obstore

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.store.contract import (
    ObjectEntry,
    ObjectTooLarge,
    PollInterval,
    StoreRefused,
    StoreUnavailable,
)
from deltaq.store.keys import check_folder, check_key, check_prefix, check_range
from deltaq.store.object_connection import IMPATIENT_TIMEOUTS_S, BucketConnection, Client, connect
from deltaq.store.object_errors import outcome
from deltaq.store.object_listing import ObjectListing
from deltaq.store.watch import SignalWatch

POLL_INTERVAL = PollInterval(busy_s=0.01, idle_s=0.5)
"""Every poll is a billed request, and on some servers a poll delays the write that it waits for."""

NEAR_POLL_INTERVAL = PollInterval(busy_s=0.005, idle_s=0.5, steady_s=0.03)
"""For a server that answers within `NEAR_S`, which is probably in the same network. The busy
interval is kept for longer than a low-latency producer lingers. Otherwise the poll that finds its
messages would be late by half of that time.
"""

NEAR_S = 0.003

PART_BYTES = 16 * 1024 * 1024
"""`put` sends a larger object in parts of this size."""

PARTS_IN_FLIGHT = 4

IMPATIENT_ATTEMPTS = 6
"""Number of requests with a timeout of `IMPATIENT_TIMEOUTS_S`; the next one has the normal
timeout.
"""


def open_object_store(
    scheme: str,
    bucket: str,
    prefix: str,
    options: Mapping[str, object],
    clock: Clock = SYSTEM_CLOCK,
) -> ObjectStore:
    """The store in `bucket` under `prefix`. Does no I/O. ValueError if options or the environment
    are invalid.
    """
    return ObjectStore(connect(scheme, bucket, prefix, options), clock)


class ObjectStore:
    """Objects in a bucket, under the prefix of the URL.

    A proxy may answer with status 200 in place of the store. `get` returns such an answer as
    content, which its callers verify. `delete` takes it for success, which leaves the object
    behind. The other operations detect it.
    """

    is_remote = True
    case_sensitive = True

    def __init__(self, connection: BucketConnection, clock: Clock = SYSTEM_CLOCK) -> None:
        self.url = connection.url
        self.provider = connection.provider
        self._connection = connection
        self._clock = clock
        self._answer_s = inf  # moving average of the time of `get_impatient`, in seconds
        self._listing = ObjectListing(connection)

    @property
    def poll_interval(self) -> PollInterval:
        return NEAR_POLL_INTERVAL if self._answer_s < NEAR_S else POLL_INTERVAL

    def get(self, key: str, size_max: int | None = None) -> bytes:
        check_key("get", key)
        return self._get(self._connection.client, key, size_max)

    def get_impatient(self, key: str, size_max: int | None = None) -> bytes:
        check_key("get", key)
        is_first_short = 2 * self._answer_s <= IMPATIENT_TIMEOUTS_S[0]
        for attempt in range(IMPATIENT_ATTEMPTS if self._answer_s < NEAR_S else 0):
            which = 0 if is_first_short and attempt == 0 else 1
            asked_at = self._clock.monotonic()
            try:
                return self._timed_get(self._connection.impatient_clients[which], key, size_max)
            except StoreUnavailable:
                if self._clock.monotonic() - asked_at < IMPATIENT_TIMEOUTS_S[which]:
                    # Failed before the timeout: the server has an error, so use the normal timeout
                    # and retries.
                    break
        return self._timed_get(self._connection.client, key, size_max)

    def _timed_get(self, client: Client, key: str, size_max: int | None) -> bytes:
        """Get an object, and update the average answer time. The answer "no such object" counts
        too.
        """
        started_at, is_answer = self._clock.monotonic(), True
        try:
            return self._get(client, key, size_max)
        except StoreUnavailable:
            is_answer = False
            raise
        finally:
            if is_answer:
                # One slow answer counts as one of twice the average. Otherwise a single read that
                # met a write would make the server count as slow, and the next such read would not
                # be repeated.
                took_s = min(self._clock.monotonic() - started_at, 2 * self._answer_s)
                self._answer_s = (
                    took_s
                    if self._answer_s == inf
                    else self._answer_s + (took_s - self._answer_s) / 8
                )

    def _get(self, client: Client, key: str, size_max: int | None) -> bytes:
        def content() -> bytes:
            answer = obstore.get(client, key)
            # The size is in the head of the answer: nothing of the body has been read yet.
            if size_max is not None and (size := answer.meta["size"]) > size_max:
                raise ObjectTooLarge(key, size, size_max)
            return answer.bytes().to_bytes()

        data = self._connection.attempt("get", key, content)
        self._listing.known = key
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key("get_range", key)
        check_range(key, start, length)
        # An empty range is not a valid request; one byte shows whether the object exists.
        return self._connection.get_range(key, start, max(length, 1))[:length]

    def put(self, key: str, data: bytes | memoryview) -> None:
        check_key("put", key)
        client, view = self._connection.client, memoryview(data).cast("B")
        self._connection.attempt(
            "put",
            key,
            lambda: obstore.put(
                client, key, view, chunk_size=PART_BYTES, max_concurrency=PARTS_IN_FLIGHT
            ),
        )
        self._listing.known = key

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:  # noqa: ARG002 - costs a request
        check_key("create", key)
        client, view = self._connection.create_client, memoryview(data).cast("B")
        # The condition applies to one request, so the object is never sent in parts.
        self._connection.attempt(
            "create",
            key,
            lambda: obstore.put(client, key, view, mode="create", use_multipart=False),
        )
        self._listing.known = key

    def link(self, key: str, to: str) -> None:
        raise StoreRefused(
            "link", key, f"object stores have no links, so it cannot be named {to!r} as well"
        )

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        check_prefix("list", prefix)
        return self._listing.entries(prefix, start_after)

    def list_some(self, prefix: str, start_after: str = "") -> builtins.list[ObjectEntry]:
        check_folder("list_some", prefix)
        return self._listing.some(prefix, start_after)

    def list_folders(self, prefix: str) -> builtins.list[str]:
        check_folder("list_folders", prefix)
        return self._listing.folders(prefix)

    def delete(self, key: str) -> None:
        check_key("delete", key)
        self._connection.attempt("delete", key, lambda: self._delete(key))

    def sync(self, folder: str) -> None:
        check_folder("sync", folder)

    def remove_unfinished(self) -> Iterator[int]:
        # An interrupted upload leaves no object; a lifecycle rule of the bucket aborts it.
        return iter(())

    def watch(self) -> SignalWatch:
        return SignalWatch(self._clock)

    def __repr__(self) -> str:
        return f"<ObjectStore {self.url}>"

    def __reduce__(self) -> str:
        raise TypeError(
            f"{self!r} holds credentials and connections and cannot be pickled: open it from its "
            "URL again"
        )

    def _delete(self, key: str) -> None:
        try:
            obstore.delete(self._connection.client, key)
        except FileNotFoundError as error:
            # A missing object is not an error, a missing bucket is.
            if isinstance(outcome("get", key, error, self.url), StoreRefused):
                raise

"""A store in a bucket: S3 and compatible servers, Google Cloud Storage and Azure Blob Storage, through obstore.

Uses obstore's blocking calls. They release the interpreter lock, and its asynchronous calls take 100 µs more each.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.store.contract import ObjectEntry, ObjectMissing, PollInterval, StoreError, StoreRefused, StoreUnavailable
from deltaq.store.keys import check_folder, check_key, check_prefix, is_key
from deltaq.store.object_errors import CLIENT_ERRORS, is_past_the_end, outcome, scrub
from deltaq.store.object_options import ObjectSettings, object_settings
from deltaq.store.watch import SignalWatch

if TYPE_CHECKING:
    from obstore.store import S3Credential

POLL_INTERVAL = PollInterval(busy_s=0.01, idle_s=0.5)
"""Every poll is a billed request, and on some servers a poll delays the write that it waits for."""

NEAR_POLL_INTERVAL = PollInterval(busy_s=0.005, idle_s=0.5, steady_s=0.03)
"""For a server that answers within `NEAR_S`, which is probably in the same network. The busy interval is kept for
longer than a low-latency producer lingers. Otherwise the poll that finds its messages would be late by half of that
time."""

NEAR_S = 0.003

PART_BYTES = 16 * 1024 * 1024
"""`put` sends a larger object in parts of this size."""

PARTS_IN_FLIGHT = 4

IMPATIENT_TIMEOUT_S = 0.006
"""How long `get_impatient` waits before it repeats the request, on a server that usually answers within `NEAR_S`.

MinIO delays a read of a key that is being written by up to 50 ms, 25 ms on average, although the write takes 2 ms.
"""

IMPATIENT_ATTEMPTS = 6
"""Number of requests with `IMPATIENT_TIMEOUT_S`; the next one has the normal timeout."""

LIST_CHUNK = 1000  # entries: one page of S3's listing

_ABOVE_ALL = "~\x7f"  # sorts after every key, since keys are printable ASCII; without its last character it is a key

Client: TypeAlias = S3Store | GCSStore | AzureStore
_T = TypeVar("_T")

# The process in which the client library started its threads. They do not survive a fork: a call in the child would
# hang or crash.
_process: int | None = None


@dataclass(frozen=True)
class Connection:
    """The clients of a bucket. Only `url` and `provider` may be shown; the other fields hold secrets."""

    url: str
    provider: str  # the provider or server, for error texts, e.g. `S3 at http://localhost:9000`
    client: Client = field(repr=False)  # with moderate retries
    create_client: Client = field(repr=False)  # without retries: a repeated create may be refused by its own first one
    impatient_client: Client = field(repr=False)  # with `IMPATIENT_TIMEOUT_S`
    secrets: frozenset[str] = field(repr=False)  # masked in every text
    lists_in_order: bool = True


def open_object_store(
    scheme: str, bucket: str, prefix: str, options: Mapping[str, object], clock: Clock = SYSTEM_CLOCK
) -> ObjectStore:
    """The store in `bucket` under `prefix`. Does no I/O. ValueError if options or the environment are invalid."""
    settings = object_settings(scheme, options, os.environ)
    url = f"{scheme}://{bucket}" + (f"/{prefix}" if prefix else "")
    try:
        client = _client(scheme, bucket, prefix, settings, settings.retry)
        no_retry = settings.retry | {"max_retries": 0}
        create_client = _client(scheme, bucket, prefix, settings, no_retry)
        short_timeout = settings.client | {"timeout": timedelta(seconds=IMPATIENT_TIMEOUT_S)}
        impatient_client = _client(scheme, bucket, prefix, replace(settings, client=short_timeout), no_retry)
    except CLIENT_ERRORS as error:
        fault = scrub(str(error).partition("Debug source:")[0].strip(), settings.secrets)
    else:
        return ObjectStore(
            Connection(
                url,
                settings.provider,
                client,
                create_client,
                impatient_client,
                settings.secrets,
                lists_in_order=scheme != "az",
            ),
            clock,
        )
    # Raised outside the handler, so that `__context__` does not hold the client's text, which may contain a secret.
    raise ValueError(f"{url}: {fault}; check the store.* options and the environment variables of this provider")


def _client(scheme: str, bucket: str, prefix: str, settings: ObjectSettings, retry: Mapping[str, object]) -> Client:
    # `object_settings` has checked the values, but a type checker cannot relate them to obstore's typed dictionaries.
    arguments: dict[str, Any] = {
        "prefix": prefix or None,
        "config": dict(settings.config),
        "client_options": dict(settings.client),
        "retry_config": dict(retry),
    }
    if scheme == "gs":
        return GCSStore(bucket, **arguments)
    if scheme == "az":
        return AzureStore(bucket, **arguments)
    if settings.ignores_session_token:
        # With plain configuration, the client would combine these keys with a session token from the environment.
        key = arguments["config"].pop("access_key_id")
        secret = arguments["config"].pop("secret_access_key")
        credential: S3Credential = {
            "access_key_id": key,
            "secret_access_key": secret,
            "token": None,
            "expires_at": None,
        }
        arguments["credential_provider"] = lambda: credential
    return S3Store(bucket, **arguments)


class ObjectStore:
    """Objects in a bucket, under the prefix of the URL.

    A proxy may answer with status 200 in place of the store. `get` returns such an answer as content, which its callers
    verify. `delete` takes it for success, which leaves the object behind. The other operations detect it.
    """

    def __init__(self, connection: Connection, clock: Clock = SYSTEM_CLOCK) -> None:
        self._connection = connection
        self._clock = clock
        self._answer_s = inf  # moving average of the time of `get_impatient`, in seconds
        self._known = ""  # a key read or written recently, by which an empty listing is verified

    @property
    def url(self) -> str:
        return self._connection.url

    @property
    def provider(self) -> str:
        """The provider or server, for error texts, e.g. `S3 at http://localhost:9000`."""
        return self._connection.provider

    @property
    def poll_interval(self) -> PollInterval:
        return NEAR_POLL_INTERVAL if self._answer_s < NEAR_S else POLL_INTERVAL

    @property
    def is_remote(self) -> bool:
        return True

    @property
    def case_sensitive(self) -> bool:
        return True

    def get(self, key: str) -> bytes:
        check_key("get", key)
        return self._get(self._connection.client, "get", key)

    def get_impatient(self, key: str) -> bytes:
        check_key("get", key)
        for _ in range(IMPATIENT_ATTEMPTS if self._answer_s < NEAR_S else 0):
            asked_at = self._clock.monotonic()
            try:
                return self._timed_get(self._connection.impatient_client, key)
            except StoreUnavailable:
                if self._clock.monotonic() - asked_at < IMPATIENT_TIMEOUT_S:
                    break  # failed before the timeout: the server has an error, so use the normal timeout and retries
        return self._timed_get(self._connection.client, key)

    def _timed_get(self, client: Client, key: str) -> bytes:
        """Get an object, and update the average answer time. The answer "no such object" counts too."""
        started_at, is_answer = self._clock.monotonic(), True
        try:
            return self._get(client, "get", key)
        except StoreUnavailable:
            is_answer = False
            raise
        finally:
            if is_answer:
                took_s = self._clock.monotonic() - started_at
                self._answer_s = took_s if self._answer_s == inf else self._answer_s + (took_s - self._answer_s) / 8

    def _get(self, client: Client, operation: str, key: str) -> bytes:
        data = self._attempt(operation, key, lambda: obstore.get(client, key).bytes().to_bytes())
        self._known = key
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_key("get_range", key)
        if start < 0 or length < 0:
            raise ValueError(f"get_range of {key!r}: start={start} and length={length} must not be negative")
        # An empty range is not a valid request; one byte shows whether the object exists.
        return self._attempt("get_range", key, lambda: self._range(key, start, max(length, 1)))[:length]

    def put(self, key: str, data: bytes | memoryview) -> None:
        check_key("put", key)
        client, view = self._connection.client, memoryview(data).cast("B")
        self._attempt(
            "put",
            key,
            lambda: obstore.put(client, key, view, chunk_size=PART_BYTES, max_concurrency=PARTS_IN_FLIGHT),
        )
        self._known = key

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:  # noqa: ARG002 - costs a request
        check_key("create", key)
        client, view = self._connection.create_client, memoryview(data).cast("B")
        # The condition applies to one request, so the object is never sent in parts.
        self._attempt("create", key, lambda: obstore.put(client, key, view, mode="create", use_multipart=False))
        self._known = key

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        check_prefix("list", prefix)
        entries = self._list(prefix, start_after)
        return entries if self._connection.lists_in_order else iter(sorted(entries, key=lambda entry: entry.key))

    def list_some(self, prefix: str, start_after: str = "") -> builtins.list[ObjectEntry]:
        check_folder("list_some", prefix)
        client, after = self._connection.client, start_after if is_key(start_after) else None
        stream = self._attempt(
            "list_some", prefix, lambda: iter(obstore.list(client, prefix or None, offset=after, chunk_size=LIST_CHUNK))
        )
        page = self._attempt("list_some", prefix, lambda: next(stream, None))
        return [_entry(meta) for meta in page or () if meta["path"] > start_after and is_key(meta["path"])]

    def list_folders(self, prefix: str) -> builtins.list[str]:
        check_folder("list_folders", prefix)
        folders, last = self._list_folders(prefix)
        if self._connection.lists_in_order:
            missing = next((meta["path"] for meta in self._missing("list_folders", prefix, last)), None)
            if missing is not None:  # written since, or the listing was truncated
                folders, last = self._list_folders(prefix)
                if missing > last and self._exists(missing):
                    raise StoreUnavailable("list_folders", prefix, f"the listing lacks {missing!r}, which exists")
        return folders

    def delete(self, key: str) -> None:
        check_key("delete", key)
        self._attempt("delete", key, lambda: self._delete(key))

    def sync(self, folder: str) -> None:
        check_folder("sync", folder)

    def remove_unfinished(self) -> Iterator[int]:
        return iter(())  # an interrupted upload leaves no object; a lifecycle rule of the bucket aborts it

    def watch(self) -> SignalWatch:
        return SignalWatch(self._clock)

    def __repr__(self) -> str:
        return f"<ObjectStore {self.url}>"

    def __reduce__(self) -> str:
        raise TypeError(f"{self!r} holds credentials and connections and cannot be pickled: open it from its URL again")

    def _range(self, key: str, start: int, length: int) -> bytes:
        try:
            return obstore.get_range(self._connection.client, key, start=start, length=length).to_bytes()
        except CLIENT_ERRORS as error:
            if is_past_the_end(error):
                return b""
            raise

    def _delete(self, key: str) -> None:
        try:
            obstore.delete(self._connection.client, key)
        except FileNotFoundError as error:
            # A missing object is not an error, a missing bucket is.
            if isinstance(outcome("get", key, error, self.url), StoreRefused):
                raise

    def _list_folders(self, prefix: str) -> tuple[builtins.list[str], str]:
        """The names, and an upper bound of all keys that the listing covers."""
        client = self._connection.client
        found = self._attempt("list_folders", prefix, lambda: obstore.list_with_delimiter(client, prefix or None))
        folders = sorted(folder.rstrip("/") for folder in found["common_prefixes"])
        ends = [meta["path"] for meta in found["objects"]] + [f"{folder}/{_ABOVE_ALL}" for folder in folders]
        return [folder[len(prefix) :] for folder in folders if is_key(folder)], max(ends, default="")

    def _list(self, prefix: str, start_after: str) -> Iterator[ObjectEntry]:
        # The client lists whole folders only, so the rest of the prefix is filtered here. The listing starts after the
        # prefix without its last character, which sorts before every key with the prefix.
        folder = _folder_of(prefix)
        after = max(start_after, prefix[:-1] if prefix != folder else "")
        for meta in self._pages("list", prefix, folder, after if is_key(after) else ""):
            key = meta["path"]
            if self._connection.lists_in_order:
                if key[: len(prefix)] > prefix:
                    return
                if key <= after:
                    continue  # a page may come twice
                after = key
            if key.startswith(prefix) and key > start_after and is_key(key):
                yield _entry(meta)
        if self._connection.lists_in_order:
            yield from (_entry(meta) for meta in self._missing("list", prefix, after) if is_key(meta["path"]))

    def _pages(self, operation: str, prefix: str, folder: str, after: str) -> Iterator[obstore.ObjectMeta]:
        """All objects in `folder` with keys above `after`; `operation` and `prefix` are for error texts."""
        client = self._connection.client
        stream = self._attempt(
            operation,
            prefix,
            lambda: iter(obstore.list(client, folder or None, offset=after or None, chunk_size=LIST_CHUNK)),
        )
        last = ""
        while (chunk := self._attempt(operation, prefix, lambda: next(stream, None))) is not None:
            yield from chunk
            if chunk[-1]["path"] == last:
                raise StoreUnavailable(operation, prefix, "the store repeats a page of its listing")
            last = chunk[-1]["path"]

    def _missing(self, operation: str, prefix: str, after: str) -> Iterator[obstore.ObjectMeta]:
        """The objects missing from a listing of `prefix` that ended after `after`: normally none.

        The client takes any XML that is not a listing (a proxy's page, an error with status 200) for an empty last
        page. So the end of a listing is verified: the store must list the next object in the root or, if there is none,
        any object at all. StoreUnavailable if it lists none although one is known to exist.
        """
        # The lowest key that the folder can have, as the start of a listing; it need not exist.
        start = after.rstrip(_ABOVE_ALL[-1])
        shows_something = False
        for meta in self._pages(operation, prefix, "", start if is_key(start) else f"{_folder_of(prefix)} "):
            shows_something = True
            if meta["path"][: len(prefix)] > prefix:
                return
            if meta["path"].startswith(prefix) and meta["path"] > after:
                after = meta["path"]
                yield meta
        known = self._known
        if known and not shows_something:
            anything = next(self._pages(operation, prefix, "", ""), None)
            if anything is None and self._exists(known):
                raise StoreUnavailable(operation, prefix, f"the listing lacks {known!r}, which exists")

    def _exists(self, key: str) -> bool:
        try:
            self.get_range(key, 0, 1)
        except ObjectMissing:
            return False
        return True

    def _attempt(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        """Run one call of the client and convert its errors to those of the contract."""
        self._refuse_in_forked_child(operation, key)
        try:
            return call()
        except CLIENT_ERRORS as error:
            failure: StoreError = outcome(operation, key, error, self._store_name(), self._connection.secrets)
        # Raised outside the handler, so that `__context__` does not hold the client's text, which may contain a secret.
        raise failure

    def _store_name(self) -> str:
        return f"{self._connection.url} ({self._connection.provider})"

    def _refuse_in_forked_child(self, operation: str, key: str) -> None:
        global _process
        if _process is None:
            _process = os.getpid()
        elif _process != os.getpid():
            raise StoreRefused(
                operation,
                key,
                f"this process was forked from one that had already used an object store, and {self.url} cannot be "
                "reached from it; start processes with the 'spawn' method, or fork before the first use",
            )


def _entry(meta: obstore.ObjectMeta) -> ObjectEntry:
    return ObjectEntry(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))


def _folder_of(prefix: str) -> str:
    """The folder that holds all keys with `prefix`; empty for the root."""
    return prefix[: prefix.rfind("/") + 1]

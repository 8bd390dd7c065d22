"""A store in a bucket: S3 and what speaks it, Google Cloud Storage, Azure Blob Storage, all through obstore.

Blocking calls: they release the interpreter's lock, and the client's asynchronous ones cost 100 us more each.
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

__all__ = ["Connection", "ObjectStore", "open_object_store"]

PACE = PollInterval(busy_s=0.01, idle_s=0.5)
"""Every look is a request that is paid for, and on some servers a look delays the write it waits for."""

NEAR_PACE = PollInterval(busy_s=0.005, idle_s=0.5, steady_s=0.03)
"""Of a server that answers in less than `NEAR_S`: most likely one's own. It is looked at as often for longer than a
producer lingers that wants its messages soon: else the look that finds them would come late by half of that time."""

NEAR_S = 0.003

PART_BYTES = 16 * 1024 * 1024
"""`put` sends a larger object in parts of this size."""

PARTS_IN_FLIGHT = 4

PEEK_TIMEOUT_S = 0.006
"""How long `peek` waits for an answer before it asks again, of a server that as a rule answers within `NEAR_S`.

MinIO lets a reader of a key that is being written sleep up to 50 ms, and 25 on average, where the write takes two.
"""

PEEKS = 6
"""How often `peek` asks so impatiently."""

LIST_CHUNK = 1000  # entries: one page of S3's listing

_ABOVE_ALL = "~\x7f"  # keys are of printable ASCII; without its last character it can be asked for

Client: TypeAlias = S3Store | GCSStore | AzureStore
_T = TypeVar("_T")

# The process in which the client library started its threads. They do not survive a fork, and a call that needs them
# then hangs for ever or crashes.
_process: int | None = None


@dataclass(frozen=True)
class Connection:
    """What it takes to reach a bucket. Of all this only `url` and `provider` may be shown."""

    url: str
    provider: str  # for texts: whom to ask about conditional writes, e.g. `S3 at http://localhost:9000`
    client: Client = field(repr=False)  # with moderate retries
    create_client: Client = field(repr=False)  # without any: a second attempt of a create meets its own first one
    peek_client: Client = field(repr=False)  # with `PEEK_TIMEOUT_S`
    secrets: frozenset[str] = field(repr=False)  # masked in every text
    lists_in_order: bool = True


def open_object_store(
    scheme: str, bucket: str, prefix: str, options: Mapping[str, object], clock: Clock = SYSTEM_CLOCK
) -> ObjectStore:
    """The store in `bucket` under `prefix`. Contacts nobody. ValueError if options or the environment are wrong."""
    settings = object_settings(scheme, options, os.environ)
    url = f"{scheme}://{bucket}" + (f"/{prefix}" if prefix else "")
    try:
        client = _client(scheme, bucket, prefix, settings, settings.retry)
        no_retry = settings.retry | {"max_retries": 0}
        create_client = _client(scheme, bucket, prefix, settings, no_retry)
        impatient = settings.client | {"timeout": timedelta(seconds=PEEK_TIMEOUT_S)}
        peek_client = _client(scheme, bucket, prefix, replace(settings, client=impatient), no_retry)
    except CLIENT_ERRORS as error:
        fault = scrub(str(error).partition("Debug source:")[0].strip(), settings.secrets)
    else:
        return ObjectStore(
            Connection(
                url,
                settings.provider,
                client,
                create_client,
                peek_client,
                settings.secrets,
                lists_in_order=scheme != "az",
            ),
            clock,
        )
    # Outside the handler, so that `__context__` does not lead back to a text that may hold a secret.
    raise ValueError(f"{url}: {fault}; check the store.* options and the environment variables of this provider")


def _client(scheme: str, bucket: str, prefix: str, settings: ObjectSettings, retry: Mapping[str, object]) -> Client:
    # The settings are checked, but not in a way that a type checker can follow into obstore's typed dictionaries.
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
        # Given as plain configuration, the keys would be signed together with a session token that is not theirs.
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

    What something other than the store answers with status 200 is taken for the content by `get`, whose callers check
    what they read, and for success by `delete`, which then leaves an object over. No other operation is misled.
    """

    def __init__(self, connection: Connection, clock: Clock = SYSTEM_CLOCK) -> None:
        self._connection = connection
        self._clock = clock
        self._answer_s = inf  # how long `peek` takes of late
        self._known = ""  # a key that was read or written not long ago: what a listing can be judged by

    @property
    def url(self) -> str:
        return self._connection.url

    @property
    def provider(self) -> str:
        """Whom to ask about what this store can do, e.g. `S3 at http://localhost:9000`."""
        return self._connection.provider

    @property
    def pace(self) -> PollInterval:
        return NEAR_PACE if self._answer_s < NEAR_S else PACE

    @property
    def is_remote(self) -> bool:
        return True

    @property
    def case_sensitive(self) -> bool:
        return True

    def get(self, key: str) -> bytes:
        check_key("get", key)
        return self._get(self._connection.client, "get", key)

    def peek(self, key: str) -> bytes:
        check_key("get", key)
        for _ in range(PEEKS if self._answer_s < NEAR_S else 0):
            asked_at = self._clock.monotonic()
            try:
                return self._timed_get(self._connection.peek_client, key)
            except StoreUnavailable:
                if self._clock.monotonic() - asked_at < PEEK_TIMEOUT_S:
                    break  # in trouble, not in no hurry: leave it the time that it needs
        return self._timed_get(self._connection.client, key)

    def _timed_get(self, client: Client, key: str) -> bytes:
        """Get an object, and learn how long an answer takes, also the answer that there is none."""
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
        # An empty range is no valid request; one byte still shows whether the object is there.
        return self._attempt("get_range", key, lambda: self._range(key, start, max(length, 1)))[:length]

    def put(self, key: str, data: bytes | memoryview, between: Callable[[], None] | None = None) -> None:  # noqa: ARG002 - in one piece
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
        # The condition belongs to one request, so this is never sent in parts.
        self._attempt("create", key, lambda: obstore.put(client, key, view, mode="create", use_multipart=False))
        self._known = key

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        check_prefix("list", prefix)
        entries = self._list(prefix, start_after)
        return entries if self._connection.lists_in_order else iter(sorted(entries, key=lambda entry: entry.key))

    def glance(self, prefix: str, start_after: str = "") -> builtins.list[ObjectEntry]:
        check_folder("glance", prefix)
        client, after = self._connection.client, start_after if is_key(start_after) else None
        stream = self._attempt(
            "glance", prefix, lambda: iter(obstore.list(client, prefix or None, offset=after, chunk_size=LIST_CHUNK))
        )
        page = self._attempt("glance", prefix, lambda: next(stream, None))
        return [_entry(meta) for meta in page or () if meta["path"] > start_after and is_key(meta["path"])]

    def list_folders(self, prefix: str) -> builtins.list[str]:
        check_folder("list_folders", prefix)
        folders, last = self._list_folders(prefix)
        if self._connection.lists_in_order:
            left_out = next((meta["path"] for meta in self._left_out("list_folders", prefix, last)), None)
            if left_out is not None:  # written since, or the listing was cut short
                folders, last = self._list_folders(prefix)
                if left_out > last and self._is_there(left_out):
                    raise StoreUnavailable("list_folders", prefix, f"the listing lacks {left_out!r}, which is there")
        return folders

    def delete(self, key: str) -> None:
        check_key("delete", key)
        self._attempt("delete", key, lambda: self._delete(key))

    def sync(self, folder: str) -> None:
        check_folder("sync", folder)

    def remove_unfinished(self, between: Callable[[], object] = lambda: None) -> int:  # noqa: ARG002 - as the contract
        return 0  # an interrupted upload is no object; a rule of the bucket ends it

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
            # A missing object is fine, a missing bucket is not.
            if isinstance(outcome("get", key, error, self.url), StoreRefused):
                raise

    def _list_folders(self, prefix: str) -> tuple[builtins.list[str], str]:
        """The names, and what is above all keys that the listing speaks for."""
        client = self._connection.client
        found = self._attempt("list_folders", prefix, lambda: obstore.list_with_delimiter(client, prefix or None))
        folders = sorted(folder.rstrip("/") for folder in found["common_prefixes"])
        ends = [meta["path"] for meta in found["objects"]] + [f"{folder}/{_ABOVE_ALL}" for folder in folders]
        return [folder[len(prefix) :] for folder in folders if is_key(folder)], max(ends, default="")

    def _list(self, prefix: str, start_after: str) -> Iterator[ObjectEntry]:
        # The client lists whole folders only, so the rest of the prefix is filtered here; what begins with it comes
        # after the prefix without its last character, and that is where the listing starts.
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
            yield from (_entry(meta) for meta in self._left_out("list", prefix, after) if is_key(meta["path"]))

    def _pages(self, operation: str, prefix: str, folder: str, after: str) -> Iterator[obstore.ObjectMeta]:
        """All objects in `folder` from the key after `after`, on behalf of an operation on `prefix`."""
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

    def _left_out(self, operation: str, prefix: str, after: str) -> Iterator[obstore.ObjectMeta]:
        """What a listing of `prefix` that ended after `after` lacks: nothing, as a rule.

        Any XML that is no listing (a proxy's page, an error told with status 200) is to the client a page without
        objects and without a successor. So an end is believed only when the store shows what follows it in the root,
        or, if that is nothing, any object at all. StoreUnavailable if it shows none, though one is known to be there.
        """
        # The lowest key that a folder can have: only where to look, so it need not exist.
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
            if anything is None and self._is_there(known):
                raise StoreUnavailable(operation, prefix, f"the listing lacks {known!r}, which is there")

    def _is_there(self, key: str) -> bool:
        try:
            self.get_range(key, 0, 1)
        except ObjectMissing:
            return False
        return True

    def _attempt(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        """Run one call of the client; every failure becomes an error of the contract."""
        self._refuse_in_forked_child(operation, key)
        try:
            return call()
        except CLIENT_ERRORS as error:
            failure: StoreError = outcome(operation, key, error, self._store_name(), self._connection.secrets)
        # Outside the handler, so that not even `__context__` leads back to a text that may hold a secret.
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

"""The clients of a bucket: opens them, and converts their errors to those of the store contract."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import obstore
from obstore.store import AzureStore, GCSStore, S3Store

from deltaq import metrics
from deltaq.store.contract import StoreError, StoreRefused
from deltaq.store.object_errors import CLIENT_ERRORS, is_past_the_end, outcome, scrub
from deltaq.store.object_options import ObjectSettings, object_settings

if TYPE_CHECKING:
    from obstore.store import S3Credential

IMPATIENT_TIMEOUTS_S = (0.003, 0.006)
"""How long `get_impatient` waits before it repeats a request, on a server that usually answers
within `NEAR_S`: the first applies to the first request if answers usually take at most half as
long, otherwise the second.

MinIO delays a read of a key that is being written by up to 50 ms, 25 ms on average, although the
write takes 2 ms.
"""

Client: TypeAlias = S3Store | GCSStore | AzureStore
_T = TypeVar("_T")

# The process in which the client library started its threads. They do not survive a fork: a call in
# the child would hang or crash.
_process: int | None = None


@dataclass(frozen=True)
class BucketConnection:
    """The clients of a bucket. Only `url` and `provider` may be shown; the other fields hold
    secrets.
    """

    url: str
    provider: str  # the provider or server, for error texts, e.g. `S3 at http://localhost:9000`
    client: Client = field(repr=False)  # with moderate retries
    # Without retries: a repeated create may be refused by its own first one.
    create_client: Client = field(repr=False)
    impatient_clients: tuple[Client, ...] = field(repr=False)  # with `IMPATIENT_TIMEOUTS_S`
    secrets: frozenset[str] = field(repr=False)  # masked in every text
    lists_in_order: bool = True

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """At most `length` bytes, at least one, from `start`; none if the object ends before
        `start`.
        """
        return self.attempt("get_range", key, lambda: self._range(key, start, length))

    def attempt(self, operation: str, key: str, call: Callable[[], _T]) -> _T:
        """Run one call of the client and convert its errors to those of the contract."""
        self._refuse_in_forked_child(operation, key)
        metrics.STORE_REQUESTS.add(operation=operation)
        try:
            return call()
        except CLIENT_ERRORS as error:
            failure: StoreError = outcome(
                operation, key, error, f"{self.url} ({self.provider})", self.secrets
            )
        # Raised outside the handler, so that `__context__` does not hold the client's text, which
        # may contain a secret.
        raise failure

    def _range(self, key: str, start: int, length: int) -> bytes:
        try:
            return obstore.get_range(self.client, key, start=start, length=length).to_bytes()
        except CLIENT_ERRORS as error:
            if is_past_the_end(error):
                return b""
            raise

    def _refuse_in_forked_child(self, operation: str, key: str) -> None:
        global _process
        if _process is None:
            _process = os.getpid()
        elif _process != os.getpid():
            reason = (
                "this process was forked from one that had already used an object store, and "
                f"{self.url} cannot be reached from it; start processes with the 'spawn' method, "
                "or fork before the first use"
            )
            raise StoreRefused(operation, key, reason)


def connect(
    scheme: str, bucket: str, prefix: str, options: Mapping[str, object]
) -> BucketConnection:
    """The clients of `bucket`, for keys under `prefix`. Does no I/O. ValueError for invalid options
    or environment.
    """
    settings = object_settings(scheme, options, os.environ)
    url = f"{scheme}://{bucket}" + (f"/{prefix}" if prefix else "")
    try:
        client = _client(scheme, bucket, prefix, settings, settings.retry)
        no_retry = settings.retry | {"max_retries": 0}
        create_client = _client(scheme, bucket, prefix, settings, no_retry)
        timeouts = (
            settings.client | {"timeout": timedelta(seconds=seconds)}
            for seconds in IMPATIENT_TIMEOUTS_S
        )
        hasty = (replace(settings, client=client) for client in timeouts)
        impatient_clients = tuple(
            _client(scheme, bucket, prefix, settings, no_retry) for settings in hasty
        )
    except CLIENT_ERRORS as error:
        fault = scrub(str(error).partition("Debug source:")[0].strip(), settings.secrets)
    else:
        clients = client, create_client, impatient_clients
        return BucketConnection(
            url, settings.provider, *clients, settings.secrets, lists_in_order=scheme != "az"
        )
    # Raised outside the handler, so that `__context__` does not hold the client's text, which may
    # contain a secret.
    raise ValueError(
        f"{url}: {fault}; check the store.* options and the environment variables of this provider"
    )


def _client(
    scheme: str, bucket: str, prefix: str, settings: ObjectSettings, retry: Mapping[str, object]
) -> Client:
    # `object_settings` has checked the values, but a type checker cannot relate them to obstore's
    # typed dictionaries.
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
        # With plain configuration, the client would combine these keys with a session token from
        # the environment.
        key, secret = (
            arguments["config"].pop(name) for name in ("access_key_id", "secret_access_key")
        )
        credential: S3Credential = {
            "access_key_id": key,
            "secret_access_key": secret,
            "token": None,
            "expires_at": None,
        }
        arguments["credential_provider"] = lambda: credential
    return S3Store(bucket, **arguments)

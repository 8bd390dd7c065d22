"""Proves, before the first write of a process, that a store's `create` refuses a taken key.

All guarantees of deltaq rest on that property, and some S3-compatible stores accept the condition
and ignore it.
"""

from __future__ import annotations

from contextlib import suppress
from weakref import WeakSet

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.store.contract import (
    CreateUnsupported,
    ObjectExists,
    ObjectMissing,
    Store,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)

PROBE_FOLDER = "_deltaq/probe/"

PROBE_ATTEMPTS = 5
REFUSED_ATTEMPTS = 3
PROBE_BACKOFF_S = 0.05  # doubles with each attempt

LEFT_AFTER_MS = 24 * 3600 * 1000
"""A probe object of this age was left by a crash. Younger ones are kept: deleting one in use makes
its probe fail.
"""

_FIRST, _SECOND = b"first", b"second"


class StoreUnsafe(StoreError):
    """The store does not refuse to create an existing key, so data would be lost. Use another store
    or version.
    """


def probe(store: Store, clock: Clock = SYSTEM_CLOCK) -> None:
    """Create one temporary object twice. StoreUnsafe if the second `create` succeeds or has any
    effect.

    StoreUnavailable after 5 attempts without a clear answer, StoreRefused after 3 refusals: MinIO
    denies access to a folder while another process's probe is being removed from it.
    """
    for attempt in range(PROBE_ATTEMPTS):
        key = PROBE_FOLDER + clock.unique_id()
        try:
            _probe_key(store, key)
            return
        except (StoreUnavailable, StoreRefused) as error:
            # The next attempt needs a new key: a lost answer proves nothing.
            attempts = REFUSED_ATTEMPTS if isinstance(error, StoreRefused) else PROBE_ATTEMPTS
            if attempt + 1 >= attempts:
                raise
            clock.sleep(PROBE_BACKOFF_S * 2**attempt * (0.5 + clock.random()))
        finally:
            # A client without permission to delete may still write: a few bytes remain.
            with suppress(StoreError):
                store.delete(key)


def probed(store: Store, clock: Clock = SYSTEM_CLOCK) -> None:
    """`probe`, once per store and process."""
    # No lock: two threads may both probe, which is harmless.
    if store not in _PROBED:
        probe(store, clock)
        _PROBED.add(store)


_PROBED: WeakSet[Store] = WeakSet()


def _probe_key(store: Store, key: str) -> None:
    try:
        store.create(key, _FIRST)
    except CreateUnsupported as error:
        raise StoreUnsafe("probe", key, f"{store.url}: {error.reason}") from None
    except ObjectExists as error:
        # The key is unique, so no other writer can have taken it: the store answers so for "try
        # again".
        raise StoreUnavailable("probe", key, error.reason) from None
    try:
        store.create(key, _SECOND)
    except ObjectExists:
        # Read twice: the first answer may have been damaged in transit.
        if _read(store, key) != _FIRST and _read(store, key) != _FIRST:
            raise StoreUnsafe(
                "probe", key, _verdict(store, "refused a taken key and yet lost its object")
            ) from None
    else:
        raise StoreUnsafe("probe", key, _verdict(store, "created the same key twice"))


def _read(store: Store, key: str) -> bytes | None:
    try:
        return store.get(key)
    except ObjectMissing:
        return None


def _verdict(store: Store, fault: str) -> str:
    # Only object stores have one; the URL does not show it.
    provider = getattr(store, "provider", "")
    name = f"{store.url} ({provider})" if provider else store.url
    return (
        f"{name} {fault}: it ignores create-if-absent, and writers would overwrite each other's "
        "data. Use a store, or a version of it, that honours `If-None-Match: *`"
    )


def remove_left_probes(store: Store, now_ms: int) -> int:
    """Delete the objects of probes that a crash interrupted; returns their number.
    StoreUnavailable, StoreRefused.
    """
    left = left_probes(store, now_ms)
    for key in left:
        store.delete(key)
    return len(left)


def left_probes(store: Store, now_ms: int) -> list[str]:
    """The keys of objects that interrupted probes left behind. StoreUnavailable, StoreRefused."""
    oldest_ms = now_ms - LEFT_AFTER_MS
    return [entry.key for entry in store.list(PROBE_FOLDER) if entry.modified_ms < oldest_ms]

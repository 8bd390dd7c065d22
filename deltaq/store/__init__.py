"""Storage: the store contract and its implementations. No other module of deltaq reads or writes
stored bytes.
"""

from deltaq.store.contract import (
    CreateUnsupported,
    ObjectEntry,
    ObjectExists,
    ObjectMissing,
    ObjectTooLarge,
    PollInterval,
    Store,
    StoreError,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    Watch,
)
from deltaq.store.local import LocalStore, put_in_pieces
from deltaq.store.location import open_store
from deltaq.store.memory import MemoryStore, forget_memory_store, serve_memory_store
from deltaq.store.probe import StoreUnsafe, left_probes, probe, probed, remove_left_probes

__all__ = [
    "CreateUnsupported",
    "LocalStore",
    "MemoryStore",
    "ObjectEntry",
    "ObjectExists",
    "ObjectMissing",
    "ObjectTooLarge",
    "PollInterval",
    "Store",
    "StoreError",
    "StoreFull",
    "StoreRefused",
    "StoreUnavailable",
    "StoreUnsafe",
    "Watch",
    "forget_memory_store",
    "left_probes",
    "open_store",
    "probe",
    "probed",
    "put_in_pieces",
    "remove_left_probes",
    "serve_memory_store",
]

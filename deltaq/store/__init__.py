"""Storage: the store contract and its implementations. No other module of deltaq reads or writes
stored bytes.

Modules:

* `contract`: the operations and every outcome they may have
* `local`, `memory`, `objects`: folders, memory, buckets; obstore is known only here
* `folders`, `beneath`: folders of the local disk, opened without following links; what killed
  writes leave
* `inotify`, `watch`: waking readers
* `object_connection`, `object_listing`, `object_options`, `object_errors`: of buckets: clients,
  verified listings, options; which outcome of the contract an error of S3 is
* `location`, `keys`: locations of roots; keys
* `probe`, `parallel`: proof of create-if-absent; several requests at once
* `bucket_setup`, `bucket_policies`, `bucket_lifecycle`, `bucket_admin`: `deltaq.setup`: a bucket
  and the policies of its roles; MinIO's SDK is known only in `bucket_admin`
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

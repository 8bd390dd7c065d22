"""Copies of the registry in other roots: the same entries in the same slots of the log, so every id is the same."""

from __future__ import annotations

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.entries import LogEntries
from deltaq.delta.store_errors import raising_unavailable
from deltaq.errors import KafkaError, KafkaException, UnsafeStore
from deltaq.store import ObjectExists, Store, probed
from deltaq.store import UnsafeStore as NoCreateIfAbsent


def copy_registry(source: Store, target: Store, clock: Clock) -> int:
    """Copy the entries of the registry's log that the target lacks; their number.

    An interrupted copy is continued. Raises KafkaException (_INCONSISTENT) if the registry of the target has entries of
    its own, Corrupt, Incompatible, Unavailable, UnsafeStore.
    """
    here, there = (LogEntries(store, names.SCHEMAS_FOLDER, clock) for store in (source, target))
    with raising_unavailable():
        known = there.versions()
        copied = 0
        version = 0
        while (found := here.fetch(version)) is not None:
            if version not in known:
                copied += _copy_entry(there, version, found[1], clock)
            elif version + 1 not in known:
                _check_equal(there, version, found[1])  # the last one that is there: it follows from all before it
            version += 1
        if any(other >= version for other in known):
            raise _other(target)
    return copied


def _copy_entry(there: LogEntries, version: int, data: bytes, clock: Clock) -> int:
    try:
        probed(there.store, clock)
        there.store.create(there.key(version), data)
    except NoCreateIfAbsent as error:
        raise UnsafeStore(str(error)) from error
    except ObjectExists:
        _check_equal(there, version, data)  # by an earlier attempt whose answer was lost, or by another copy
    return 1


def _check_equal(there: LogEntries, version: int, data: bytes) -> None:
    found = there.fetch(version)
    if found is None or found[1] != data:
        raise _other(there.store)


def _other(target: Store) -> KafkaException:
    reason = f"the schema registry of {target.url} has entries of its own: copy to another root"
    return KafkaException(KafkaError(KafkaError._INCONSISTENT, reason))

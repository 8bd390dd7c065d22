"""Log lines about failed background maintenance; a missing permission is a warning only once per process."""

from __future__ import annotations

import logging
from weakref import WeakKeyDictionary

from deltaq.errors import KafkaException, Unavailable
from deltaq.store import Store, StoreRefused

_log = logging.getLogger("deltaq.maintenance")

# Shared by all clients of a process: a producer of a thousand topics has the same credentials for each.
_REPORTED: WeakKeyDictionary[Store, set[str]] = WeakKeyDictionary()


def log_failure(store: Store, task: str, of: str, error: Exception) -> None:
    """Log that `task` (`maintenance`, `checkpoint`, …) failed for the topic or group `of`. It will be tried again.

    The first refusal by the store in this process is a warning, later ones are logged at INFO: a client whose policy
    permits no maintenance would otherwise warn every minute.
    """
    reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
    if not _is_refusal(error):
        _log.warning("%s of %s failed: %s", task, of, reason)
        return
    # No lock: two threads at once both log the warning, which is harmless.
    reported = _REPORTED.setdefault(store, set())
    if task in reported:
        _log.info("%s of %s was refused again: %s", task, of, reason)
        return
    reported.add(task)
    _log.warning(
        "%s of %s failed: %s. The store refused it, which is said once. If these credentials are not to maintain "
        "anything, set maintenance.enable to false, and run `python -m deltaq.maintenance` with credentials that may",
        task,
        of,
        reason,
    )


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, StoreRefused) or (isinstance(error, Unavailable) and not error.args[0].retriable())

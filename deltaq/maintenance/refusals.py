"""What a client says of maintenance that failed in the background: of what it is not permitted to do, once."""

from __future__ import annotations

import logging
from weakref import WeakKeyDictionary

from deltaq.errors import KafkaException, Unavailable
from deltaq.store import Store, StoreRefused

__all__ = ["log_failure"]

_log = logging.getLogger("deltaq.maintenance")

# One for all clients of a process: a producer of a thousand topics has the same credentials for each.
_TOLD: WeakKeyDictionary[Store, set[str]] = WeakKeyDictionary()


def log_failure(store: Store, task: str, of: str, error: Exception) -> None:
    """Log that `task` (`maintenance`, `checkpoint`, …) failed for the topic or group `of`, which is tried again.

    What the store refused is a warning for the first time in this process, then a line at level INFO: a client whose
    policy permits no maintenance would otherwise say so every minute.
    """
    reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
    if not _is_refusal(error):
        _log.warning("%s of %s failed: %s", task, of, reason)
        return
    # No lock: two threads that come here at once both say it, which does no harm.
    told = _TOLD.setdefault(store, set())
    if task in told:
        _log.info("%s of %s was refused again: %s", task, of, reason)
        return
    told.add(task)
    _log.warning(
        "%s of %s failed: %s. The store refused it, which is said once. If these credentials are not to maintain "
        "anything, set maintenance.enable to false, and run `python -m deltaq.maintenance` with credentials that may",
        task,
        of,
        reason,
    )


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, StoreRefused) or (isinstance(error, Unavailable) and not error.args[0].retriable())

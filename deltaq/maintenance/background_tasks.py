"""Maintenance on threads of a client's process, which no failure of maintenance may affect."""

from __future__ import annotations

import logging
from collections.abc import Callable
from weakref import WeakKeyDictionary

from deltaq.clock import Clock, Thread
from deltaq.errors import KafkaException, Unavailable
from deltaq.maintenance.checkpoint import CheckpointFailed
from deltaq.maintenance.throttle import Stopped
from deltaq.store import Store, StoreError, StoreRefused

_log = logging.getLogger("deltaq.maintenance")

# The refused tasks of all clients of a process: a producer of a thousand topics has the same credentials for each.
_REPORTED: WeakKeyDictionary[Store, set[str]] = WeakKeyDictionary()


class BackgroundTasks:
    """The tasks of one topic or group, each on at most one thread, which ends with its work. Thread-safe.

    `kind` is `topic` or `group`. A failure is logged; the next round, in any process, tries again.
    """

    def __init__(self, store: Store, clock: Clock, kind: str, name: str) -> None:
        self.stopped = False
        self.threads: dict[str, Thread] = {}
        """The latest thread of each task."""
        self._store = store
        self._clock = clock
        self._name = name
        self._of = f"{kind} {name!r}"
        self._lock = clock.lock()

    def start(self, task: str, work: Callable[[], object]) -> None:
        """Do `work` in the background, unless the task is running or the tasks were stopped."""
        with self._lock:
            thread = self.threads.get(task)
            if self.stopped or (thread is not None and thread.is_alive()):
                return
            try:
                self.threads[task] = self._clock.start_thread(
                    lambda: self._do(task, work), f"deltaq-{task}-{self._name}"
                )
            except RuntimeError as error:
                # Python starts no threads while it exits. The error must not reach the client, whose commit succeeded.
                _log.info("%s of %s is left to others: %s", task, self._of, error)

    def stop(self) -> list[Thread]:
        """Start no more work. Returns the threads, so that the caller can wait for them."""
        with self._lock:
            self.stopped = True
            return list(self.threads.values())

    def _do(self, task: str, work: Callable[[], object]) -> None:
        try:
            work()
        except Stopped:
            pass
        except (KafkaException, StoreError, CheckpointFailed) as error:
            log_failure(self._store, task, self._of, error)
        except Exception:  # noqa: BLE001 - a defect of maintenance must not affect the client
            _log.exception("%s of %s failed", task, self._of)


def log_failure(store: Store, task: str, of: str, error: Exception) -> None:
    """Log that `task` (`maintenance`, `checkpoint`, …) failed for the topic or group `of`.

    Refusals by the store after the first one are logged at INFO: a client whose policy permits no maintenance would
    otherwise warn every minute.
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

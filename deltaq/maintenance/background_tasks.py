"""Maintenance on threads of a client's process, which no failure of maintenance may affect."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from weakref import WeakKeyDictionary

from deltaq.clock import Clock
from deltaq.errors import KafkaException, Unavailable
from deltaq.maintenance.checkpoint import CheckpointFailed
from deltaq.maintenance.task_threads import Job, task_threads
from deltaq.maintenance.throttle import Stopped
from deltaq.store import Store, StoreError, StoreRefused

_log = logging.getLogger("deltaq.maintenance")

# The refused tasks of all clients of a process: a producer of a thousand topics has the same
# credentials for each.
_REPORTED: WeakKeyDictionary[Store, set[str]] = WeakKeyDictionary()


class BackgroundTasks:
    """The tasks of one log, each at most once at a time. Thread-safe.

    `kind` is `topic`, `group` or `transactional id`. A failure is logged; the next round, in any
    process, tries again.
    """

    def __init__(self, store: Store, clock: Clock, kind: str, name: str) -> None:
        self.stopped = False
        self.jobs: dict[str, Job] = {}
        """The latest job of each task."""
        self._store = store
        self._clock = clock
        self._name = name
        self._of = f"{kind} {name!r}"
        self._lock = clock.lock()

    def start(self, task: str, work: Callable[[], object]) -> None:
        """Do `work` in the background, unless the task waits for a thread or runs, or the tasks
        were stopped.
        """
        with self._lock:
            latest = self.jobs.get(task)
            if self.stopped or (latest is not None and latest.is_alive()):
                return
            threads = task_threads(self._store, self._clock, task)
            name, run = f"{task}-{self._name}", partial(self._do, task, work)
            job = Job(name, lambda: not self.stopped, run, threads)
            try:
                threads.add(job)
            except RuntimeError as error:
                # Python starts no threads while it exits. The error must not reach the client,
                # whose commit succeeded.
                _log.info("%s of %s is left to others: %s", task, self._of, error)
            else:
                self.jobs[task] = job

    def stop(self) -> list[Job]:
        """Start no more work. Returns the jobs, so that the caller can wait for those that run."""
        with self._lock:
            self.stopped = True
            return list(self.jobs.values())

    def do(self, task: str, work: Callable[[], object]) -> None:
        """Do `work` in the calling thread, unless no more work may begin; log its failure."""
        if not self.stopped:
            self._do(task, work)

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
    """Log that `task` (`maintenance`, `checkpoint`, …) failed for the log `of`.

    Refusals by the store after the first one are logged at INFO: a client whose policy permits no
    maintenance would otherwise warn every minute.
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
        "%s of %s failed: %s. The store refused it, which is said once. If these credentials are "
        "not to maintain anything, set maintenance.enable to false, and run `python -m "
        "deltaq.maintenance` with credentials that may",
        task,
        of,
        reason,
    )


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, StoreRefused) or (
        isinstance(error, Unavailable) and not error.args[0].retriable()
    )

"""The processes of a benchmark as threads, for tests of what is measured and not of processes."""

from __future__ import annotations

import gc
import pickle
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from benchmarks import barrier


class Threads(ThreadPoolExecutor):
    """In place of a pool of processes. What goes in and comes out is pickled as there."""

    def __init__(
        self, workers: int, context: object, begin: Callable[..., object], about: tuple[Any, ...]
    ) -> None:
        super().__init__(workers, initializer=begin, initargs=about)

    def submit(self, run: Any, /, *arguments: Any) -> Future[Any]:  # type: ignore[override]
        sent = pickle.dumps(arguments)
        return super().submit(lambda: pickle.loads(pickle.dumps(run(*pickle.loads(sent)))))


@pytest.fixture
def threads_for_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run_together` starts no processes, which takes seconds, and depends on the load of the
    machine.
    """
    monkeypatch.setattr(barrier, "ProcessPoolExecutor", Threads)
    monkeypatch.setattr(gc, "freeze", lambda: None)

"""Looks at one root for all pages that are open, and at nothing while none is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from deltaq.clock import SYSTEM_CLOCK, Clock, Thread
from deltaq.console.view import EMPTY, LagHistory, RootView, group_views, topic_views
from deltaq.errors import KafkaException
from deltaq.metrics import STORE_REQUESTS, Totals
from deltaq.store import Store
from deltaq.tools.rates import RootSample, RootWatch, measured_cost

_log = logging.getLogger("deltaq.console")

INTERVAL_S = 2.0
"""Seconds between two looks while a page is open."""

HISTORY = 150
"""Looks that charts show: five minutes."""

Listener = Callable[[RootView], object]


@dataclass(slots=True)
class _Histories:
    """The rates of topics, the lags of groups, and the sums of a root, since a page was opened."""

    rates: LagHistory = field(default_factory=lambda: LagHistory(HISTORY))
    lags: LagHistory = field(default_factory=lambda: LagHistory(HISTORY))
    sums: LagHistory = field(default_factory=lambda: LagHistory(HISTORY))


class Poller:
    """The newest view of a root. A thread looks at the root while there are listeners.
    Thread-safe.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock = SYSTEM_CLOCK,
        interval_s: float = INTERVAL_S,
        totals: Totals | None = None,
    ) -> None:
        self._clock = clock
        self._interval_s = interval_s
        self._totals = totals or Totals()
        self._watch = RootWatch(store, clock, sizes=True)
        self._before: RootSample | None = None
        self._requests = 0.0
        self._histories = _Histories()
        self._view = EMPTY
        self._looking = clock.lock()  # held during a look, which takes a while on a remote store
        self._changed = clock.condition()
        self._listeners: dict[object, Listener] = {}
        self._thread: Thread | None = None

    @property
    def is_polling(self) -> bool:
        """Whether a thread looks at the root again and again."""
        return self._thread is not None

    def view(self) -> RootView:
        """The newest view. Looks at the root first if the last look is older than the interval."""
        with self._looking:
            before = self._before
            if before is not None and self._clock.monotonic() < before.at_s + self._interval_s:
                return self._view
            return self._look()

    @contextmanager
    def subscribed(self, listener: Listener) -> Iterator[None]:
        """Call `listener` with each new view, on the thread of the poller, until the end of the
        block.
        """
        key = object()
        with self._changed:
            self._listeners[key] = listener
            if self._thread is None:
                # The last looks were some time ago, or at long intervals.
                self._histories = _Histories()
                self._thread = self._clock.start_thread(self._run, "deltaq-console")
        try:
            yield
        finally:
            with self._changed:
                del self._listeners[key]
                self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._looking:
                view = self._look()
            for listener in tuple(self._listeners.values()):
                listener(view)
            due_at = self._clock.monotonic() + self._interval_s
            with self._changed:
                while self._listeners and (left := due_at - self._clock.monotonic()) > 0:
                    self._changed.wait(left)
                if not self._listeners:
                    self._thread = None
                    return

    def _look(self) -> RootView:
        """Look at the root. A failure is a view with a problem: the pages show it, and the next
        look tries again.
        """
        try:
            now = self._watch.sample()
        except KafkaException as error:
            problem = error.error.str()
        except Exception as error:  # noqa: BLE001 - a defect must not end the thread that all pages wait for
            _log.exception("a look at the root failed")
            problem = f"unexpected {type(error).__name__}"
        else:
            self._view, self._before = self._seen(now), now
            return self._view
        self._view = replace(self._view, number=self._view.number + 1, problem=problem)
        return self._view

    def _seen(self, now: RootSample) -> RootView:
        topics, groups = topic_views(self._before, now), group_views(self._before, now)
        cost = measured_cost(self._before, now)
        histories = self._histories if self._listeners else _Histories()
        rates = histories.rates.add({name: topic.messages_per_s for name, topic in topics.items()})
        lags = histories.lags.add({name: group.lag for name, group in groups.items()})
        sent = self._totals.read()[STORE_REQUESTS.name]
        requests, self._requests = sent - self._requests, sent
        seconds = 0.0 if self._before is None else now.at_s - self._before.at_s
        view = RootView(
            self._view.number + 1,
            {name: replace(topic, rates=rates[name]) for name, topic in topics.items()},
            {name: replace(group, lags=lags[name]) for name, group in groups.items()},
            now.errors,
            cost,
            requests_per_s=requests / seconds if seconds > 0 else None,
            queues={name: count.about for name, count in now.queues.items()},
        )
        sums = histories.sums.add(
            {
                "rates": view.messages_per_s,
                "lags": float(view.lag),
                "dollars": None if self._before is None else cost.dollars,
            }
        )
        return replace(view, rates=sums["rates"], lags=sums["lags"], dollars=sums["dollars"])

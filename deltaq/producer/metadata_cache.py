"""The topic as its writer in this process last saw it."""

from __future__ import annotations

from collections.abc import Callable

from deltaq.clock import Clock
from deltaq.errors import OutcomeUnknown, Unavailable, UnknownTopic
from deltaq.producer.batches import InFlightBatches
from deltaq.topics.log import SharedTopicLog
from deltaq.topics.metadata import NewTopicPlan, TopicDefinition, create_topic, definition_of
from deltaq.topics.upload import pause_before_retry

__all__ = ["TopicDefinitionCache"]


class TopicDefinitionCache:
    """Looks the topic up, and tells its producers what has changed."""

    def __init__(self, topic: str, log: SharedTopicLog, clock: Clock, batches: InFlightBatches) -> None:
        self._topic = topic
        self._log = log
        self._clock = clock
        self._batches = batches
        self._view: TopicDefinition | None = None

    def view(self, plan: NewTopicPlan | None, timeout_s: float, *, anew: bool = False) -> TopicDefinition | None:
        """See `TopicWriter.view`."""
        view = self._view
        if view is None or (anew and not (self._batches.open or self._batches.is_committing)):
            with self._log.turn:
                log = self._log.log
                if log.load() if view is None else log.catch_up():
                    view = definition_of(log)
                elif plan is not None:
                    view = create_topic(log, plan, self._clock.monotonic() + timeout_s, exist_ok=True)
                else:
                    view = None
                self.saw(view)
        return view

    def saw(self, view: TopicDefinition | None) -> None:
        """Remember how the topic is, and tell the producers if that has changed."""
        before, self._view = self._view, view
        if view is not None and view != before:
            with self._batches.changed:
                buffers = list(self._batches.buffers)
            for buffer in buffers:
                buffer.seen(view)

    def known(self, plan: NewTopicPlan | None, deadline: float) -> TopicDefinition:
        """The topic, looked up again and again until the deadline: a store may be away for a while."""

        def look() -> TopicDefinition:
            view = self.view(plan, max(0.0, deadline - self._clock.monotonic()))
            if view is None:
                raise UnknownTopic(self._topic)
            return view

        return self._asked_again(look, deadline)

    def newest(self, deadline: float) -> TopicDefinition:
        """The topic as it is now, looked up as long as `known` does. Raises Unavailable, UnknownTopic."""

        def look() -> TopicDefinition:
            with self._log.turn:
                log = self._log.log
                log.catch_up()
                view = definition_of(log)
                self.saw(view)
                return view

        return self._asked_again(look, deadline)

    def _asked_again(self, look: Callable[[], TopicDefinition], deadline: float) -> TopicDefinition:
        failures = 0
        while True:
            try:
                return look()
            except OutcomeUnknown:
                # Its token is that of creating the topic; about the messages nothing is unknown.
                reason = "no answer yet whether the topic was created"
            except Unavailable as error:
                if not error.error.retriable():
                    raise
                reason = error.error.str()
            failures += 1
            pause_before_retry(self._clock, self._topic, failures, deadline, reason)

"""Maintenance services in a run, as many as the script says, and the counts of their effects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any
from unittest.mock import patch

from deltaq import KafkaException
from deltaq.consumer import consumer
from deltaq.consumer.topic_fetcher import TopicFetcher
from deltaq.delta.slot_proof import CLEAN_UP_GRACE_S
from deltaq.maintenance.run import FAILURES, Maintenance
from deltaq.producer import group_commit, producer
from deltaq.producer.batches import InFlightBatches
from deltaq.producer.committer import Committer
from deltaq.testing.simulation.network import Faults
from deltaq.testing.simulation.world import Machine
from deltaq.topics.log import AppendOutcome, CommittedByPeer, StalePlan, TopicLog, UploadsExpired
from tests.simulation.stage import Stage

__all__ = ["Maintainer", "put_in_order", "witnessed"]


class Maintainer:
    """Maintains the root, round after round."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        self.is_done = False
        self._stage = stage

    def act(self, machine: Machine) -> None:
        stage = self._stage
        maintenance = _maintenance(stage, machine, is_strict=stage.script.faults == Faults())
        while not stage.is_calm:
            stage.at_work.add(self.name)
            try:
                maintenance()
            except KafkaException as error:
                if stage.script.faults == Faults():
                    stage.surprise(f"{machine.name} gave up: {error}")
            finally:
                stage.at_work.discard(self.name)
            machine.clock.sleep(stage.between(0.5, stage.script.maintenance_rest_s))
        self.is_done = True


def put_in_order(stage: Stage) -> None:
    """After the faults: the next maintenance completes all unfinished work without a failure."""
    machine = stage.world.machine("last maintainer")
    maintenance = _maintenance(stage, machine, is_strict=True)
    for _ in range(2):
        maintenance()
        machine.clock.sleep(CLEAN_UP_GRACE_S + 1)


def _maintenance(stage: Stage, machine: Machine, *, is_strict: bool) -> Callable[[], None]:
    """A round of maintenance. A strict one has no fault that could explain a failure."""
    told: list[str] = []
    maintenance = Maintenance(machine.store, machine.clock, stage.script.upkeep, tell=told.append)

    def work() -> None:
        told.clear()
        done = maintenance.round()
        # It says so where it finds its clock wrong, and that is no fault of deltaq's.
        is_late = any("the clock of this machine" in line for line in told)
        if is_late:
            stage.network.count("a maintainer found its clock wrong")
        if done[FAILURES] > (is_late and stage.script.wrong_clocks) and is_strict:
            stage.surprise(f"{machine.name} failed: {'; '.join(told)}")

    return work


@contextmanager
def witnessed(stage: Stage) -> Iterator[None]:
    """Count what comes to light nowhere but inside of clients, and give their own maintenance its numbers."""
    count = stage.network.count
    with ExitStack() as patches:

        def put(target: Any, name: str, value: object) -> None:
            patches.enter_context(patch.object(target, name, value))

        given_up = "a rewrite was given up since the files were gone"
        put(TopicLog, "rewrite", _counting(TopicLog.rewrite, StalePlan, lambda: count(given_up)))

        def count_expired(outcome: AppendOutcome) -> None:
            if isinstance(outcome, UploadsExpired):
                count("uploads were void")

        put(TopicLog, "append", _noting(TopicLog.append, count_expired))
        gone = _counting(TopicFetcher._gone, None, lambda: count("a file was gone that a reader was in"))
        put(TopicFetcher, "_gone", gone)
        unknown = Committer._unknown
        put(Committer, "_unknown", _counting(unknown, None, lambda: count("an offer had an unknown outcome")))
        put(TopicLog, "revoke", _noting(TopicLog.revoke, lambda outcome: count(_of_a_withdrawal(outcome))))
        place = InFlightBatches.place
        put(
            InFlightBatches,
            "place",
            _noting(place, lambda found: found.follows and count("an offer was made behind another")),
        )
        if stage.script.company:
            put(group_commit, "CONTENTION_S", 600.0)
            put(group_commit, "LOAD_MIN", 0.0)
            put(group_commit, "_INTERVAL_MAX_S", 1.0)
            put(group_commit, "_TIMEOUT_INTERVALS", 0.2)
        if stage.script.caretaking:
            for module, name in ((producer, "BackgroundTopicMaintenance"), (consumer, "BackgroundGroupMaintenance")):
                put(module, name, partial(getattr(module, name), settings=stage.script.upkeep))
        yield


def _of_a_withdrawal(outcome: CommittedByPeer) -> str:
    return "an offer that had failed was in the log" if outcome.committed else "an offer was withdrawn"


def _noting(method: Callable[..., Any], note: Callable[[Any], object]) -> Any:
    """`method`, with its results noted."""

    @wraps(method)
    def noted(*arguments: Any, **named: Any) -> Any:
        result = method(*arguments, **named)
        note(result)
        return result

    return noted


def _counting(method: Callable[..., Any], error: type[Exception] | None, count: Callable[[], None]) -> Any:
    """`method`, with its calls counted; with an `error`, those that raise it."""

    @wraps(method)
    def counted(*arguments: Any, **named: Any) -> Any:
        if error is None:
            count()
            return method(*arguments, **named)
        try:
            return method(*arguments, **named)
        except error:
            count()
            raise

    return counted

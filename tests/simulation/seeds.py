"""Runs many seeds in several processes, and names the events that must occur in such a set."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing.queues import SimpleQueue
from unittest.mock import patch

from tests.children import NEED_NUMPY
from tests.simulation.processors import PROCESSORS, keep_to
from tests.simulation.run import simulate
from tests.simulation.scenario import scenario_of
from tests.simulator.scheduler import SimulationError

__all__ = ["COVERING", "SOMETIMES", "Result", "covering", "missing", "results", "run_seed"]

SOMETIMES: dict[str | None, tuple[str, ...]] = {
    None: (
        "a clock jumped",
        "a create was refused though the key was free",
        "a failed shared file was in the log",
        "a file was missing for a reader",
        "a file was removed",
        "a flipped bit was read",
        "a late create landed",
        "a late create was refused",
        "a late delete landed",
        "a late put landed",
        "a listing left out the newest objects",
        "a log entry was cleaned up",
        "a maintainer was killed in a round",
        "a member left",
        "a peer committed a shared file",
        "a process was killed",
        "a process was suspended",
        "a process was suspended before a request",
        "a process was suspended before an answer",
        "a process was suspended for long",
        "a read was not answered",
        "a reader got an offset out of range",
        "a request was lost",
        "a rewrite was not committed",
        "a rewrite was stale",
        "a shared file followed another",
        "a shared file had an unknown outcome",
        "a shared file was committed",
        "a slot was filled again after clean-up",
        "a tombstone was dropped",
        "a topic was deleted",
        "an answer was lost after the write",
        "an expired upload was repeated",
        "an orphan was removed",
        "an unknown outcome was resolved",
        "files were merged",
        "lost race",
        "partitions were added",
        "records expired",
        "records were superseded",
        "retention moved a reader",
        "shared files were revoked",
        "uploads expired",
    ),
    "groups": (
        "a clock jumped",
        "a commit of a former member was refused",
        "a commit of a replaced static member was refused",
        "a commit of an older generation was refused",
        "a dead member lost its partitions",
        "a dead member was removed",
        "a log entry was cleaned up",
        "a member ended its own session",
        "a member found itself removed",
        "a member gave up partitions after it was removed",
        "a member joined a group of several",
        "a member joined again",
        "a member left",
        "a member left a topic out of its subscription",
        "a member changed its subscription",
        "a member committed itself what the leader did not",
        "a member was fenced",
        "a partition was released",
        "a process was killed",
        "a process was suspended before an answer",
        "a process was suspended for long",
        "a rebalance began during another",
        "a shown offset was of an older generation",
        "a shown offset was refused because of a newer commit",
        "a static member was replaced",
        "a topic was deleted",
        "final offsets were committed with a release",
        "lost race of a group",
        "partitions were added",
        "partitions were lost",
        "the leader committed an offset of another member",
    ),
    "transactions": (
        "a call about a transaction was repeated",
        "a commit of a former member was refused",
        "a dead member lost its partitions",
        "a file was removed",
        "a late create landed",
        "a message was sent in pieces",
        "a partition was released",
        "a poll reached the tail",
        "a process was killed",
        "a process was suspended",
        "a process was suspended for long",
        "a producer was fenced",
        "a program did not learn of its transaction",
        "a topic was deleted",
        "a transaction had to be aborted",
        "a transaction was published late",
        "an answer was lost after the write",
        "an entry of an id was cleaned up",
        "an expired id was taken again",
        "an id expired",
        "an orphan was removed",
        "another process aborted a transaction",
        "files were merged",
        "offsets of a transaction were dropped",
    ),
    "share groups": (
        "a clock jumped",
        "a dead letter was copied back",
        "a dead letter was written",
        "a decision 1 was confirmed",
        "a decision 2 was confirmed",
        "a decision 3 was confirmed",
        "a file was removed",
        "a late acknowledgement was refused",
        "a late create landed",
        "a lock ended",
        "a log entry was cleaned up",
        "a message was accepted by a transaction",
        "a message was delivered after its time",
        "a partition of a share group was forgotten",
        "a process was killed",
        "a process was suspended",
        "a process was suspended before an answer",
        "a process was suspended for long",
        "a record was delivered again",
        "a record was delivered too often",
        "a redrive was killed",
        "a topic was deleted",
        "a transaction with acknowledgements was aborted",
        "a transaction's acknowledgements were published late",
        "an answer was lost after the write",
        "another process aborted a transaction",
        "files were merged",
        "lost race of a group",
        "partitions were added",
    ),
    "views": (
        "a clock jumped",
        "a late create landed",
        "a maintainer was killed in a round",
        "a process was killed",
        "a process was suspended",
        "a process was suspended before an answer",
        "a process was suspended for long",
        "a runner was fenced",
        "a runner went on from a checkpoint",
        "a tick was published",
        "a transaction had to be aborted",
        "an answer was lost after the write",
        "partitions were added",
    ),
}
"""Events that must occur somewhere in a set of runs, by kind of scenario; otherwise the runs do not
test what they are meant to.
"""

COVERING: dict[str | None, tuple[int, ...]] = {
    None: (167, 115, 64, 137, 21),
    "groups": (25, 1, 9, 94, 2, 13),
    "transactions": (980913, 980155),
    "share groups": (30, 122, 71, 2, 109),
    "views": (0, 9),
}
"""By kind of scenario, few seeds in which all of `SOMETIMES` occurred when `python -m
tests.simulation --runs` named them. Any change in the random draws changes what occurs; tests then
need more seeds and take longer.
"""

Result = tuple[int, str, "Counter[str]"]
"""Seed, what is wrong (empty: nothing), and what happened."""


def run_seed(seed: int, kind: str | None = None) -> Result:
    """Run and check one seed, with a scenario of this kind."""
    logging.disable(logging.CRITICAL)  # the clients log every fault
    try:
        verdict = simulate(seed, scenario_of(seed, kind))
    except (SimulationError, AssertionError) as error:
        return seed, str(error), Counter()
    finally:
        logging.disable(logging.NOTSET)
    return seed, verdict.problems, verdict.happened


def missing(happened: Counter[str], kind: str | None = None) -> list[str]:
    """The required events that never occurred."""
    return [event for event in SOMETIMES.get(kind, ()) if not happened[event]]


def covering(happened: Mapping[int, Counter[str]], kind: str | None = None) -> list[int]:
    """Few of the seeds in which each required event occurs that occurs in any of them, the most
    eventful ones first.
    """
    left, chosen = set(SOMETIMES.get(kind, ())), list[int]()
    while gains := {
        seed: found for seed, events in happened.items() if (found := left & events.keys())
    }:
        chosen.append(max(gains, key=lambda seed: len(gains[seed])))
        left -= gains[chosen[-1]]
    return chosen


def results(seeds: Sequence[int], kind: str | None = None) -> Iterator[Result]:
    """The results of many seeds, in their order, from as many processes as there are cores."""
    if len(seeds) == 1:
        yield run_seed(seeds[0], kind)
        return
    context = multiprocessing.get_context("spawn")  # not forked: the caller may have threads
    processors: SimpleQueue[int] = context.SimpleQueue()
    for processor in PROCESSORS:
        processors.put(processor)
    with (
        patch.dict(os.environ, NEED_NUMPY),  # by which views have rules
        ProcessPoolExecutor(
            len(PROCESSORS) or os.cpu_count(), context, _begin, (processors,)
        ) as pool,
    ):
        yield from pool.map(partial(run_seed, kind=kind), seeds, chunksize=5)


def _begin(processors: SimpleQueue[int]) -> None:
    """Initialise a process: take a processor for itself."""
    if not processors.empty():
        keep_to(processors.get())

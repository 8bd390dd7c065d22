"""Many seeds, each played in one of several processes, and what has to happen in such a set."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.queues import SimpleQueue

from deltaq.testing.simulation.scheduler import SimulationError
from tests.simulation.play import play
from tests.simulation.processors import PROCESSORS, keep_to

__all__ = ["SOMETIMES", "Result", "missing", "results", "run_seed"]

SOMETIMES = (
    "a clock jumped",
    "a create was refused though the key was free",
    "a file was gone that a reader was in",
    "a file was swept",
    "a file was taken along",
    "a flipped bit was read",
    "a group was in use",
    "a late create landed",
    "a late create was refused",
    "a late delete landed",
    "a late put landed",
    "a listing left out the newest objects",
    "a log entry was cleaned up",
    "a maintainer was killed half-way",
    "a member was fenced",
    "a process slept for long",
    "a process stood still",
    "a process stood still before it had its answer",
    "a process stood still with a request in hand",
    "a process was killed",
    "a read was not answered",
    "a reader was told that its offset is gone",
    "a request was lost",
    "a rewrite came to nothing",
    "a rewrite was given up since the files were gone",
    "a slot that had been cleaned up was filled again",
    "a tombstone was dropped",
    "a topic was deleted",
    "an answer was lost after the write",
    "an offer had an unknown outcome",
    "an offer that had failed was in the log",
    "an offer was committed",
    "an offer was made behind another",
    "an offer was withdrawn",
    "an orphan was removed",
    "an unknown outcome was settled",
    "an upload was void and made again",
    "files were merged",
    "lost race",
    "partitions were added",
    "records expired",
    "records were superseded",
    "retention moved a reader",
    "uploads were void",
)
"""Events that must occur somewhere in a set of runs; otherwise the runs do not test what they are meant to."""

Result = tuple[int, str, "Counter[str]"]
"""Seed, what is wrong (empty: nothing), and what happened."""


def run_seed(seed: int) -> Result:
    """Play one seed."""
    logging.disable(logging.CRITICAL)  # the clients complain about every fault, rightly
    try:
        verdict = play(seed)
    except (SimulationError, AssertionError) as error:
        return seed, str(error), Counter()
    return seed, verdict.problems, verdict.happened


def missing(happened: Counter[str]) -> list[str]:
    """The required events that never occurred."""
    return [event for event in SOMETIMES if not happened[event]]


def results(seeds: range) -> Iterator[Result]:
    """The results of many seeds, in their order, from as many processes as there are cores."""
    if len(seeds) == 1:
        yield run_seed(seeds[0])
        return
    context = multiprocessing.get_context("spawn")  # not forked: the caller may have threads
    processors: SimpleQueue[int] = context.SimpleQueue()
    for processor in PROCESSORS:
        processors.put(processor)
    with ProcessPoolExecutor(len(PROCESSORS) or os.cpu_count(), context, _begin, (processors,)) as pool:
        yield from pool.map(run_seed, seeds, chunksize=5)


def _begin(processors: SimpleQueue[int]) -> None:
    """What each process does first: take a processor for itself."""
    if not processors.empty():
        keep_to(processors.get())

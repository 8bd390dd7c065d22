"""Play many seeds: `python -m tests.simulation [--seed SEED] [--runs RUNS]`; a failing seed is printed and repeats."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from deltaq.testing.history import dump_history
from deltaq.testing.simulation.scheduler import SimulationError
from tests.simulation.play import play

__all__ = ["SOMETIMES", "Result", "missing", "results", "run_seed"]

SOMETIMES = (
    "a create was refused though the key was free",
    "a group was in use",
    "a late create landed",
    "a late create was refused",
    "a late put landed",
    "a listing left out the newest objects",
    "a log entry was cleaned up",
    "a member was fenced",
    "a process slept for long",
    "a process stood still",
    "a process stood still with a request in hand",
    "a process was killed",
    "a read was not answered",
    "a request was lost",
    "a slot that had been cleaned up was filled again",
    "a topic was deleted",
    "an answer was lost after the write",
    "an unknown outcome was settled",
    "lost race",
    "partitions were added",
)
"""What has to happen somewhere in a set of runs; else the runs do not test what they are meant to."""

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
    """What should have happened sometimes, and never did."""
    return [event for event in SOMETIMES if not happened[event]]


def main(arguments: list[str]) -> int:
    """0 if every play kept every promise; with more than one seed, also everything must have happened sometimes."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--runs", type=int, default=1, help="how many seeds, one after the other (default: 1)")
    parser.add_argument("--history", type=Path, help="write what the clients of the seed did and saw to this file")
    given = parser.parse_args(arguments)
    if given.history is not None:
        given.history.write_text("".join(f"{line}\n" for line in dump_history(play(given.seed).operations)))
    happened: Counter[str] = Counter()
    failed = []
    for number, (seed, problems, events) in enumerate(results(range(given.seed, given.seed + given.runs)), 1):
        happened += events
        if problems:
            failed.append(seed)
            print(f"\nSEED {seed} FAILED; it repeats with: make simulate SEED={seed}\n{problems}", flush=True)
        if number % 50 == 0 or number == given.runs:
            print(f"{number} of {given.runs} seeds played, {len(failed)} failed", flush=True)
    print("\n".join(f"{count:8} {event}" for event, count in sorted(happened.items())))
    never = missing(happened) if given.runs >= 200 else []
    if never:
        print(f"never happened: {', '.join(never)}")
    return 1 if failed or never else 0


def results(seeds: range) -> Iterator[Result]:
    """The results of many seeds, in their order, from as many processes as there are cores."""
    if len(seeds) == 1:
        yield run_seed(seeds[0])
        return
    # Not forked: the caller may have threads.
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(run_seed, seeds, chunksize=5)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

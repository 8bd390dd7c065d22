"""What each operation of a store takes by itself: `python -m benchmarks.operations --root
s3://bucket/prefix`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from time import perf_counter_ns
from uuid import uuid4

from benchmarks.distribution import Percentiles, distribution
from benchmarks.machine import OthersLoad, describe
from deltaq.store import ObjectExists, ObjectMissing, Store, open_store

ENTRY = os.urandom(1024)  # a log entry
BATCH = os.urandom(100 * 1024)  # the data file of a flush
LARGE = os.urandom(1024 * 1024)

OPERATIONS = (
    "create 1 KB",
    "create, refused",
    "get 1 KB",
    "get, missing",
    "list of 10",
    "list behind the last of 10",
    "put 100 KB",
    "put 1 MB",
    "delete",
)


def measure_operations(store: Store, rounds: int) -> dict[str, Percentiles]:
    """Every operation `rounds` times, alternating, one at a time, in a folder of its own that is
    emptied afterwards.

    The milliseconds of each, by its name in OPERATIONS. AssertionError if one had another outcome
    than it should.
    """
    folder = f"operations/{uuid4().hex}/"
    for number in range(10):
        store.create(f"{folder}ten/{number}", ENTRY)
    taken: dict[str, list[int]] = {name: [] for name in OPERATIONS}
    try:
        for number in range(rounds):
            for name, operation in _round(store, f"{folder}{number}/", f"{folder}ten/"):
                start = perf_counter_ns()
                operation()
                taken[name].append(perf_counter_ns() - start)
    finally:
        for entry in list(store.list(folder)):
            store.delete(entry.key)
    return {name: distribution(nanoseconds) for name, nanoseconds in taken.items()}


def _round(store: Store, folder: str, ten: str) -> Sequence[tuple[str, Callable[[], object]]]:
    key = f"{folder}entry"
    operations: tuple[Callable[[], object], ...] = (
        lambda: store.create(key, ENTRY),
        lambda: _fails(ObjectExists, lambda: store.create(key, ENTRY)),
        lambda: store.get(key),
        lambda: _fails(ObjectMissing, lambda: store.get(f"{folder}none")),
        lambda: _counts(10, store, ten, ""),
        lambda: _counts(0, store, ten, f"{ten}9"),
        lambda: store.put(f"{folder}batch", BATCH),
        lambda: store.put(f"{folder}large", LARGE),
        lambda: store.delete(f"{folder}large"),
    )
    return tuple(zip(OPERATIONS, operations, strict=True))


def _fails(expected: type[Exception], operation: Callable[[], object]) -> None:
    try:
        operation()
    except expected:
        return
    raise AssertionError(f"no {expected.__name__}")


def _counts(expected: int, store: Store, prefix: str, start_after: str) -> None:
    found = sum(1 for _ in store.list(prefix, start_after))
    if found != expected:
        raise AssertionError(f"{found} objects are listed instead of {expected}")


def main(given: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.operations", description=__doc__)
    parser.add_argument(
        "--root", required=True, help="a path or URL; credentials come from the environment"
    )
    parser.add_argument(
        "--rounds", type=int, default=500, help="how often each operation is measured"
    )
    arguments = parser.parse_args(given)
    others = OthersLoad()
    measured = measure_operations(open_store(arguments.root), arguments.rounds)
    print(", ".join(f"{name} {value}" for name, value in describe(arguments.root).items()))
    busy = others.cores()
    print(
        f"{arguments.rounds} rounds, milliseconds"
        + ("" if busy is None else f"; others kept {busy:.2f} cores busy")
    )
    print(f"{'':28}{'p50':>8}{'p99':>8}{'max':>8}")
    for name, taken in measured.items():
        print(f"{name:28}{taken.p50:8.2f}{taken.p99:8.2f}{taken.max:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

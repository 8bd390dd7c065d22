"""Run many seeds: `python -m tests.simulation [--seed SEED] [--runs RUNS] [--kind KIND]`; a failing
seed is printed and repeats.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.checker.history import dump_history
from tests.simulation.run import simulate
from tests.simulation.scenario import KINDS, scenario_of
from tests.simulation.seeds import covering, missing, results


def main(arguments: list[str]) -> int:
    """Exit status 0 if no run found a problem and, with several seeds, every required event
    occurred in some run.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument(
        "--runs", type=int, default=1, help="how many seeds, one after the other (default: 1)"
    )
    parser.add_argument(
        "--kind", choices=KINDS, help="the kind of all scenarios (default: drawn from the seed)"
    )
    parser.add_argument(
        "--history", type=Path, help="write what the clients of the seed did and saw to this file"
    )
    given = parser.parse_args(arguments)
    if given.history is not None:
        verdict = simulate(given.seed, scenario_of(given.seed, given.kind))
        given.history.write_text("".join(f"{line}\n" for line in dump_history(verdict.operations)))
    suffix = f" KIND='{given.kind}'" if given.kind else ""
    happened: Counter[str] = Counter()
    by_seed: dict[int, Counter[str]] = {}
    failed = []
    for number, (seed, problems, events) in enumerate(
        results(range(given.seed, given.seed + given.runs), given.kind), 1
    ):
        happened += events
        by_seed[seed] = events
        if problems:
            failed.append(seed)
            print(
                f"\nSEED {seed} FAILED; it repeats with: make simulate "
                f"SEED={seed}{suffix}\n{problems}",
                flush=True,
            )
        if number % 50 == 0 or number == given.runs:
            print(f"{number} of {given.runs} seeds, {len(failed)} failed", flush=True)
    print("\n".join(f"{count:8} {event}" for event, count in sorted(happened.items())))
    print(f"the required ones of these occurred in seeds {covering(by_seed, given.kind)}")
    never = missing(happened, given.kind) if given.runs >= 200 else []
    if never:
        print(f"never happened: {', '.join(never)}")
    return 1 if failed or never else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

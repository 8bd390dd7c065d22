"""Compare deltaq with what was observed of Kafka: `python -m tests.fidelity [--kafka HOST:PORT]
[NAME ...]`.

Each observation is equal, different at the places that are shown, or not applicable. Exit status 0
if the differences are exactly those that the guide to migration justifies. With `--kafka`,
confluent-kafka itself plays the programs with a broker, which shows that they ask what was
observed; then there must be no difference.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from deltaq.store import forget_memory_store
from tests.fidelity.answers import Answer, paths_that_differ, value_at
from tests.fidelity.differences import DIFFERENCES, justification
from tests.fidelity.observations import DOCUMENTED_ANSWERS, NOT_APPLICABLE, OBSERVED, OF_GROUPS
from tests.fidelity.programs import DOCUMENTED, PROGRAMS
from tests.fidelity.session import deltaq_at, kafka_at, play

_AT_ONCE = 4
"""Programs that are played at the same time. They mostly wait."""

_TRIES = 3
"""How often a program is played with a broker until it finds what was observed: some answers depend
on its timing.
"""


def main(arguments: Sequence[str]) -> int:
    """Play the programs, print what they find, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fidelity", description=__doc__)
    parser.add_argument(
        "--kafka", metavar="HOST:PORT", help="play with confluent-kafka and this broker"
    )
    parser.add_argument(
        "--record",
        action="store_true",
        help="keep the broker's answers to the programs about the documentation",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="observations (default: all)")
    given = parser.parse_args(arguments)
    if given.record and given.kafka is None:
        parser.error("--record needs --kafka: only a broker's answers are kept")
    if unknown := set(given.names) - PROGRAMS.keys():
        parser.error(f"no program is called {', '.join(sorted(unknown))}")
    if given.record:
        return _record(given.names or sorted(DOCUMENTED), given.kafka)
    names = given.names or sorted(PROGRAMS)
    find = _with_deltaq if given.kafka is None else partial(_with_kafka, address=given.kafka)
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        answers = dict(zip(names, threads.map(find, names), strict=True))
    paths = {
        name: list(paths_that_differ(OBSERVED[name], answer, name))
        for name, answer in answers.items()
    }
    for name, differing in paths.items():
        print(f"{'different' if differing else 'equal':15}{name}")
        for path in differing:
            print(f"{'':15}  {_described(path, answers[name])}")
    if not given.names and given.kafka is None:
        _print_others()
    expected = set[str]() if given.kafka else {path for row in DIFFERENCES.values() for path in row}
    unexpected = {path for differing in paths.values() for path in differing} ^ {
        path for path in expected if path.split("/")[0] in names
    }
    equal = sum(not differing for differing in paths.values())
    print(f"{len(names)} played: {equal} equal, {len(names) - equal} different")
    for path in sorted(unexpected):
        print(f"not as justified: {path}")
    return 1 if unexpected else 0


def _record(names: Sequence[str], address: str) -> int:
    """Keep what a broker answers to programs, each of which is played twice. The status is 1 if one
    answers differently the second time: it asks for what depends on timing.
    """
    kept = json.loads(DOCUMENTED_ANSWERS.read_text()) if DOCUMENTED_ANSWERS.exists() else {}
    differing = []
    for name in names:
        first, second = (play(PROGRAMS[name], kafka_at(address)) for _ in range(2))
        print(f"{'recorded' if first == second else 'NOT THE SAME':15}{name}", flush=True)
        if first == second:
            kept[name] = first
        else:
            differing += list(paths_that_differ(first, second, name))
    current = {name: kept[name] for name in sorted(kept.keys() & DOCUMENTED)}
    DOCUMENTED_ANSWERS.write_text(json.dumps(current, indent=1, ensure_ascii=False) + "\n")
    for path in differing:
        print(f"not the same: {path}")
    return 1 if differing else 0


def _with_deltaq(name: str) -> Answer:
    root = uuid.uuid4().hex
    try:
        return play(PROGRAMS[name], deltaq_at(f"memory://{root}"))
    finally:
        forget_memory_store(root)


def _with_kafka(name: str, address: str) -> Answer:
    for _ in range(_TRIES):
        found = play(PROGRAMS[name], kafka_at(address))
        if found == OBSERVED[name]:
            break
    return found


def _described(path: str, answer: Answer) -> str:
    observed, found = (
        json.dumps(value_at(each, path)) for each in (OBSERVED[path.split("/")[0]], answer)
    )
    reason = justification(path)
    return f"{path}: {observed} was observed, not {found}" + (f" [{reason}]" if reason else "")


def _print_others() -> None:
    for name in OF_GROUPS:
        print(f"{'of groups':15}{name}: tests/unit/groups/test_kafka_observations.py")
    for name, reason in NOT_APPLICABLE.items():
        print(f"{'not applicable':15}{name}: {reason}")


if __name__ == "__main__":
    logging.getLogger("deltaq").setLevel(logging.CRITICAL)  # programs provoke what clients warn of
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # clients of a broker may still wait for it

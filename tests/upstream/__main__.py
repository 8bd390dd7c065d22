"""Run upstream's tests on deltaq: `python -m tests.upstream CHECKOUT [ARGUMENT OF PYTEST ...]`.

CHECKOUT is a clone of confluent-kafka-python, whose tests of share consumers are run, or of kombu,
whose tests of all transports are run. Exit status 0 if the tests that fail are those that
`justified` names. Those of confluent-kafka take nine minutes: they sleep.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.upstream.justified import JUSTIFIED

_ROOT = Path(__file__).resolve().parents[2]
_RESULT = re.compile(r"^(PASSED|SKIPPED|FAILED|ERROR) (?:\S+\.py::(\S+))?", re.MULTILINE)

# What stands in for confluent-kafka, and its tests. Those of deserializing consumers ask for the
# private parts of confluent-kafka's own class.
OF_CONFLUENT = (
    ("confluent", ("tests/test_ShareConsumer.py", "tests/test_ShareConsumer_callbacks.py")),
    ("cimpl", ("tests/test_DeserializingShareConsumer.py",)),
    ("confluent", ("tests/integration/share_consumer",)),
)
OF_KOMBU = (("", (str(_ROOT / "tests/upstream/kombu_on_deltaq.py"),)),)


def main(arguments: Sequence[str]) -> int:
    """Run the tests, print what differs, and return the exit status."""
    checkout, options = Path(arguments[0]), arguments[1:]
    runs = OF_KOMBU if (checkout / "t").is_dir() else OF_CONFLUENT
    results = [
        result for place, paths in runs for result in _run(checkout, place, [*paths, *options])
    ]
    passed, skipped = (sum(of == word for of, _ in results) for word in ("PASSED", "SKIPPED"))
    failed = {name for of, name in results if of in ("FAILED", "ERROR")}
    for reason, names in JUSTIFIED.items():
        print(f"{len(failed.intersection(names)):3} {reason}")
    unexpected = failed - {name for names in JUSTIFIED.values() for name in names}
    for name in sorted(unexpected):
        print(f"not as justified: {name}")
    print(f"{passed} passed, {skipped} skipped, {len(failed)} failed")
    return 1 if unexpected or not passed else 0


def _run(checkout: Path, place: str, arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The results of some tests, each with its name."""
    path = os.pathsep.join(map(str, (_ROOT / "tests/upstream", checkout, _ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "DELTAQ_IN_PLACE_OF": place}
    options = ["-p", "no:randomly", "-p", "no:cacheprovider", "-rA", "-q"]
    options += ["-p", "with_deltaq"] if place else ["-c", os.devnull, "--noconftest"]
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--timeout=90", *arguments],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    for found in _RESULT.finditer(answer.stdout):
        yield found[1], found[2] or ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

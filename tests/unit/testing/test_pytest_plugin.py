"""The fixtures, as a service's own test run has them: pytest runs as another process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

SERVICE = """
from deltaq import Producer

class Shop:
    def __init__(self, root):
        self.producer = Producer({"bootstrap.servers": root, "message.timeout.ms": 300})
        self.failed = []

    def order(self, item):
        self.producer.produce("orders", item, on_delivery=self.delivered)
        self.producer.flush(20)

    def delivered(self, error, message):
        if error is not None:
            self.failed.append(message.value())
"""


MODULES = {
    "each test has a root of its own that is forgotten afterwards": """
from deltaq.store import open_store

roots = []

def test_first(deltaq_root, deltaq_messages):
    Shop(deltaq_root).order("tea")
    assert [message.value() for message in deltaq_messages("orders")] == [b"tea"]
    roots.append(deltaq_root)

def test_second(deltaq_root, deltaq_messages):
    assert deltaq_root not in roots
    assert deltaq_messages("orders") == []
    assert list(open_store(roots[0]).list("")) == []
""",
    "the store of the root is what clients write to": """
def test_store(deltaq_store, deltaq_root):
    Shop(deltaq_root).order("tea")
    assert deltaq_store.url == deltaq_root
    assert deltaq_store.list_folders("topics/") == ["orders"]
""",
    "faults are in the way of clients that only know the root": """
from deltaq.testing import Effect, Fault, Rule

def test_faults(deltaq_root, deltaq_faults, deltaq_messages):
    shop = Shop(deltaq_root)
    shop.order("tea")
    deltaq_faults.add(Rule("put", "topics/orders/*.parquet", Fault.no_space()))
    shop.order("coffee")
    shop.order("milk")
    assert shop.failed == [b"coffee"]
    assert deltaq_faults.effects == {Effect.NO_SPACE: 1}
    deltaq_faults.add(Rule("read", "*", Fault.error_before(), times=None))
    assert [message.value() for message in deltaq_messages("orders")] == [b"tea", b"milk"]
""",
    "a client that hangs at the end of a test is let go": """
import threading
from deltaq.testing import Fault, Rule

threads = []

def test_hang(deltaq_root, deltaq_faults):
    deltaq_faults.add(Rule("get", "*", Fault.slow(), times=None))
    threads.append(threading.Thread(target=Topic("t", bootstrap_servers=deltaq_root).exists))
    threads[0].start()
    while not deltaq_faults.blocked:
        pass

def test_released():
    threads[0].join(20)
    assert not threads[0].is_alive()
""",
    "the clock is that of the faults when a test has both": """
import threading
from deltaq.testing import Fault, Rule

def test_clock(deltaq_faults, deltaq_clock):
    deltaq_faults.add(Rule("put", "*", Fault.slow(3600)))
    thread = threading.Thread(target=deltaq_faults.put, args=("k", b"late"))
    thread.start()
    deltaq_clock.until_waiting()
    assert list(deltaq_faults.inner.list("")) == []
    deltaq_clock.advance(3600)
    thread.join(20)
    assert deltaq_faults.get("k") == b"late"

def test_no_clock(deltaq_faults):
    deltaq_faults.add(Rule("put", "*", Fault.slow(0.01)))
    deltaq_faults.put("k", b"late")
""",
    "messages are those of all partitions typed by their model": """
import pytest
from pydantic import BaseModel
from deltaq.testing import messages_of

class Order(BaseModel):
    id: int

def test_typed(deltaq_root, deltaq_messages):
    orders = Topic("orders", Order, partitions=3, bootstrap_servers=deltaq_root)
    with Producer(bootstrap_servers=deltaq_root) as producer:
        for number in range(9):
            producer.produce(orders, Order(id=number), partition=2 - number % 3)
    found = [(message.partition(), message.offset(), message.value()) for message in deltaq_messages(orders)]
    assert found == [(p, o, Order(id=3 * o + 2 - p)) for p in range(3) for o in range(3)]
    assert [m.value()["id"] for m in messages_of(deltaq_root, "orders")] == [2, 5, 8, 1, 4, 7, 0, 3, 6]

def test_damage(deltaq_root, deltaq_store, deltaq_messages):
    Topic("damaged", bootstrap_servers=deltaq_root).create()
    deltaq_store.put("topics/damaged/_delta_log/00000000000000000001.json", b"{")
    with pytest.raises(KafkaException, match="version 1"):
        deltaq_messages("damaged")
""",  # noqa: E501
}
"""Modules of tests beside the service, by what each of them shows."""


@dataclass(frozen=True)
class Run:
    """What pytest printed, and how many tests of each module passed."""

    printed: str
    passed: Counter[str]


@pytest.fixture(scope="module")
def run_of_all(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run for all modules: to start pytest takes longer than these tests."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "shop.py").write_text(SERVICE)
    for number, module in enumerate(MODULES.values()):
        (folder / f"test_{number}.py").write_text(
            f"from shop import Shop\nfrom deltaq import *\n{module}"
        )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rA",
        "-p",
        "pytest_deltaq",
        "-p",
        "no:randomly",
        "-W",
        "error",
    ]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    answer = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return Run(
        answer.stdout, Counter(re.findall(r"^PASSED test_(\d+)\.py::", answer.stdout, re.MULTILINE))
    )


@pytest.mark.parametrize(("number", "module"), [*enumerate(MODULES.values())], ids=MODULES)
def test_the_tests_of_a_service_pass(run_of_all: Run, number: int, module: str) -> None:
    assert run_of_all.passed[str(number)] == module.count("\ndef test_") > 0, run_of_all.printed


def test_a_run_without_our_fixtures_loads_nothing_of_deltaq(pytester):
    pytester.makepyfile(
        """
import sys

def test_light():
    assert "pytest_deltaq" in sys.modules
    assert [name for name in sys.modules if name.split(".")[0] in ("deltaq", "pyarrow", "pydantic", "obstore")] == []
"""  # noqa: E501
    )
    result = pytester.runpytest_subprocess(
        "-p", "pytest_deltaq", "-p", "no:randomly", "-p", "no:hypothesispytest"
    )
    result.assert_outcomes(passed=1)


def test_the_tests_in_the_guide_pass(pytester):
    guide = (Path(__file__).parent.parent.parent.parent / "docs/guides/testing.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    pytester.makepyfile(test_guide="\n".join(blocks))
    result = pytester.runpytest_subprocess(
        "-p", "pytest_deltaq", "-p", "no:randomly", "-W", "error"
    )
    result.assert_outcomes(passed=guide.count("\ndef test_"))

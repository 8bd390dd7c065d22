"""The fixtures, as a service's own test run has them: each test runs pytest as another process."""

from __future__ import annotations

import re
from collections.abc import Callable
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


@pytest.fixture
def passes(pytester: pytest.Pytester) -> Callable[[str, int], None]:
    """Runs a module of tests beside a service; all of them pass."""

    def run(module: str, tests: int) -> None:
        pytester.makepyfile(shop=SERVICE, test_shop=f"from shop import Shop\nfrom deltaq import *\n{module}")
        result = pytester.runpytest_subprocess("-p", "pytest_deltaq", "-p", "no:randomly", "-W", "error")
        result.assert_outcomes(passed=tests)

    return run


def test_each_test_has_a_root_of_its_own_that_is_forgotten_afterwards(passes):
    passes(
        """
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
        2,
    )


def test_the_store_of_the_root_is_what_clients_write_to(passes):
    passes(
        """
def test_store(deltaq_store, deltaq_root):
    Shop(deltaq_root).order("tea")
    assert deltaq_store.url == deltaq_root
    assert deltaq_store.list_folders("topics/") == ["orders"]
""",
        1,
    )


def test_faults_are_in_the_way_of_clients_that_only_know_the_root(passes):
    passes(
        """
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
        1,
    )


def test_a_client_that_hangs_at_the_end_of_a_test_is_let_go(passes):
    passes(
        """
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
        2,
    )


def test_the_clock_is_that_of_the_faults_when_a_test_has_both(passes):
    passes(
        """
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
        2,
    )


def test_messages_are_those_of_all_partitions_typed_by_their_model(passes):
    passes(
        """
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
""",
        2,
    )


def test_a_run_without_our_fixtures_loads_nothing_of_deltaq(pytester):
    pytester.makepyfile(
        """
import sys

def test_light():
    assert "pytest_deltaq" in sys.modules
    assert [name for name in sys.modules if name.split(".")[0] in ("deltaq", "pyarrow", "pydantic", "obstore")] == []
"""
    )
    result = pytester.runpytest_subprocess("-p", "pytest_deltaq", "-p", "no:randomly", "-p", "no:hypothesispytest")
    result.assert_outcomes(passed=1)


def test_the_tests_in_the_guide_pass(pytester):
    guide = (Path(__file__).parent.parent.parent.parent / "docs/guides/testing.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", guide, re.DOTALL | re.MULTILINE)
    pytester.makepyfile(test_guide="\n".join(blocks))
    result = pytester.runpytest_subprocess("-p", "pytest_deltaq", "-p", "no:randomly", "-W", "error")
    result.assert_outcomes(passed=guide.count("\ndef test_"))

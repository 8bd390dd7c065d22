"""pytest fixtures for programs that use deltaq. pytest finds them once deltaq is installed.

pytest imports this package in every run, so it loads `deltaq` only when a fixture is used, and is
not a part of it: a module of deltaq that is loaded before coverage measurement starts would count
as not covered.
"""

# ruff: noqa: PLC0415 - deltaq is imported only when a fixture is used
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from deltaq.message import Message
    from deltaq.store import Store
    from deltaq.testing import FaultyStore, ManualClock
    from deltaq.topic import Topic

__all__ = ["deltaq_clock", "deltaq_faults", "deltaq_messages", "deltaq_root", "deltaq_store"]


@pytest.fixture
def deltaq_root() -> Iterator[str]:
    """A root in memory, private to the test: the `bootstrap.servers` of all clients in this
    process.
    """
    from deltaq.clock import SYSTEM_CLOCK
    from deltaq.store import forget_memory_store

    name = f"test-{SYSTEM_CLOCK.unique_id()}"
    yield f"memory://{name}"
    forget_memory_store(name)


@pytest.fixture
def deltaq_store(deltaq_root: str) -> Store:
    """The store of `deltaq_root`, without faults: it shows the true content."""
    from deltaq.store import open_store

    return open_store(deltaq_root)


@pytest.fixture
def deltaq_faults(
    deltaq_root: str, deltaq_store: Store, request: pytest.FixtureRequest
) -> Iterator[FaultyStore]:
    """A `FaultyStore` that all clients use which open `deltaq_root` after this fixture was created.

    Its faults measure seconds by `deltaq_clock` if the test uses that fixture too, otherwise by the
    system's clock.
    """
    from deltaq.clock import SYSTEM_CLOCK
    from deltaq.store import serve_memory_store
    from deltaq.testing import FaultyStore

    own_clock = "deltaq_clock" in request.fixturenames
    clock = request.getfixturevalue("deltaq_clock") if own_clock else SYSTEM_CLOCK
    faults = FaultyStore(deltaq_store, clock=clock)
    serve_memory_store(deltaq_root.removeprefix("memory://"), faults)
    yield faults
    faults.clear()
    faults.release()  # no thread must hang after the test


@pytest.fixture
def deltaq_clock() -> ManualClock:
    """A `ManualClock`, which moves only when the test moves it. Pass it to clients as `clock=`."""
    from deltaq.testing import ManualClock

    return ManualClock()


@pytest.fixture
def deltaq_messages(deltaq_store: Store) -> Callable[[str | Topic], list[Message]]:
    """A function: `deltaq_messages(topic)` returns all messages of a topic of `deltaq_root`, read
    without faults.
    """
    from deltaq.testing import messages_of

    return lambda topic: messages_of(deltaq_store, topic)

"""Fixtures for the tests of programs that use deltaq; pytest finds them by itself once deltaq is installed.

A package beside `deltaq`, since importing anything from `deltaq` loads all of it: a test run that uses no fixture of
ours must not pay for that, nor load it before coverage is being measured.
"""

# ruff: noqa: PLC0415 - nothing of deltaq is imported before a fixture is used
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
    """A root in memory of the test's own, to be used as `bootstrap.servers` by any client of this process."""
    from deltaq.clock import SYSTEM_CLOCK
    from deltaq.store import forget_memory_store

    name = f"test-{SYSTEM_CLOCK.unique_id()}"
    yield f"memory://{name}"
    forget_memory_store(name)


@pytest.fixture
def deltaq_store(deltaq_root: str) -> Store:
    """The store behind `deltaq_root`, without any fault: what it holds is the truth."""
    from deltaq.store import open_store

    return open_store(deltaq_root)


@pytest.fixture
def deltaq_faults(deltaq_root: str, deltaq_store: Store, request: pytest.FixtureRequest) -> Iterator[FaultyStore]:
    """A `FaultyStore` in the way of every client that opens `deltaq_root` after this fixture was made.

    Seconds of its faults are those of `deltaq_clock` if the test has that fixture too, else of the system's clock.
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
    faults.release()  # no thread is left hanging when the test is over


@pytest.fixture
def deltaq_clock() -> ManualClock:
    """A `ManualClock`, to be given to clients as `clock=`; it stands still until the test moves it."""
    from deltaq.testing import ManualClock

    return ManualClock()


@pytest.fixture
def deltaq_messages(deltaq_store: Store) -> Callable[[str | Topic], list[Message]]:
    """`deltaq_messages(topic)`: all messages that a topic of `deltaq_root` holds now, whatever faults there are."""
    from deltaq.testing import messages_of

    return lambda topic: messages_of(deltaq_store, topic)

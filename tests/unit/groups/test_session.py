"""One session of a group member, on a manual clock."""

from __future__ import annotations

from deltaq.clock import Clock
from deltaq.groups.fencing import NO_MEMBER
from deltaq.groups.log import GroupLog
from deltaq.groups.session import Candidate
from deltaq.groups.state import GroupHead, Member
from deltaq.store.memory import MemoryStore
from deltaq.testing import ManualClock
from tests.doubles.groups import RANGE, sizes

SESSION_S = 6.0


class SlowStore(MemoryStore):
    """A memory store in which each read takes a second."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("slow", clock)
        self._clock = clock

    def get(self, key: str) -> bytes:
        self._clock.sleep(1.0)
        return super().get(key)


def test_a_member_joins_in_its_first_session_though_reading_the_log_takes_longer_than_a_session() -> None:
    clock = ManualClock(auto_advance=True)
    store = SlowStore(clock)
    written = GroupLog(store, "g", clock)
    for _ in range(10):
        written.change("LEAVE", NO_MEMBER, lambda head: GroupHead(head.generation + 1), 1e9)
    begun = clock.monotonic()
    log = GroupLog(store, "g", clock)
    member = Member(("t",), "c", "host", int(SESSION_S * 1000), protocols=(("range", ""),))
    session = Candidate(store, log, member, RANGE, 1.0, clock).session(lambda: None)
    session.join(sizes(t=1), (), is_refused=False)
    assert clock.monotonic() - begun > SESSION_S
    assert session.view is not None

"""One commit of a member that takes turns: it reads until the next slot is its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from deltaq.clock import Clock
from deltaq.delta.log import Committed, DeltaLog
from deltaq.delta.position import LogCleaned
from deltaq.groups.commit_turns import REST_PARAMETER, CommitTurns

_POLL_S = 0.004
"""Seconds between two reads of the log while a member leaves the next slot to others."""


@dataclass(eq=False)
class CommitInTurn:
    """One commit of the member `member_id`. Make it before the member waits for any lock: the time
    from its commit before until then is its rest.
    """

    _turns: CommitTurns
    _clock: Clock
    _member_id: str
    _rest_ms: int | None = field(init=False)
    _tries: int = 0

    def __post_init__(self) -> None:
        self._rest_ms = self._turns.rest_ms()

    def catch_up(
        self, log: DeltaLog[None], deadline: float, others: Callable[[], int] = lambda: 0
    ) -> None:
        """Read to the end of the log. A member leaves the next slots to those that commit without
        rest too, and have waited longer. `others()` is the number of further members as last read;
        some slots are left to those of them that take no turns. Raises as `DeltaLog.catch_up`.
        """
        if log.is_whole and self._turns.ahead():
            self._await_turn(log, deadline, others)
        else:
            log.catch_up()

    def _await_turn(self, log: DeltaLog[None], deadline: float, others: Callable[[], int]) -> None:
        """Read until no member is ahead. The entry that ends the wait is the newest, so no read of
        the end follows.

        Entries of members that have given up the first one do not prolong the wait: if it has died,
        a member that waits longer than the others would wait for ever while they commit.
        """
        turns, clock = self._turns, self._clock
        log.take_over()
        read_at = waits_since = clock.monotonic()
        first = ""
        try:
            while ahead := turns.ahead():
                if ahead[0] != first:
                    first, waits_since = ahead[0], read_at
                elif read_at >= min(deadline, waits_since + turns.leave_s(len(ahead))):
                    return turns.gave_up(ahead)
                is_end = log.read_next() is None
                read_at = clock.monotonic()
                if is_end:
                    clock.sleep(_POLL_S)
            until = min(deadline, read_at + turns.extra_s(others()))
            while clock.monotonic() < until and log.read_next() is None:
                clock.sleep(_POLL_S)
        except LogCleaned:
            log.load()

    def parameters(self) -> dict[str, str]:
        """What the entry of the next try has of it."""
        self._tries += 1
        if self._rest_ms is None and self._tries == 1:
            return {}
        return {REST_PARAMETER: str(self._rest_ms or 0)}

    def committed(self, committed: Committed) -> None:
        """Learn that it was written."""
        seconds = committed.seconds / (committed.lost_races + 1)
        self._turns.committed(self._member_id, committed.entry.version, seconds)

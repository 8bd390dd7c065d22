"""The maintenance services of a run, and the counts of events inside clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from deltaq import KafkaException, metrics
from deltaq.delta.slot_proof import CLEAN_UP_GRACE_S
from deltaq.delta.table_state import TableState
from deltaq.groups import log, offsets
from deltaq.groups.offset_commits import HandOver, OffsetCommitter
from deltaq.groups.offsets import CommittedOffset, PendingOffsets
from deltaq.groups.state import GroupHead, MemberIdentity
from deltaq.groups.stored_offsets import DelegatedOffsets
from deltaq.maintenance import background, log_maintenance
from deltaq.maintenance.report import FAILURES
from deltaq.maintenance.run import Maintenance
from deltaq.producer import group_commit
from tests.simulation.harness import Harness
from tests.simulator.network import Faults
from tests.simulator.world import Machine

__all__ = ["Maintainer", "finish_maintenance", "instrumented"]


class Maintainer:
    """Maintains the root, round after round."""

    def __init__(self, harness: Harness, name: str) -> None:
        self.name = name
        self.is_done = False
        self._harness = harness

    def act(self, machine: Machine) -> None:
        harness = self._harness
        maintenance = _maintenance(harness, machine, is_strict=harness.scenario.faults == Faults())
        while not harness.faults_ended:
            harness.in_round.add(self.name)
            try:
                maintenance()
            except KafkaException as error:
                if harness.scenario.faults == Faults():
                    harness.report_unexpected(f"{machine.name} gave up: {error}")
            finally:
                harness.in_round.discard(self.name)
            machine.clock.sleep(harness.between(0.5, harness.scenario.maintenance_rest_s))
        self.is_done = True


def finish_maintenance(harness: Harness) -> None:
    """After the faults: the next maintenance completes all unfinished work without a failure."""
    machine = harness.world.machine("last maintainer")
    maintenance = _maintenance(harness, machine, is_strict=True)
    for _ in range(2):
        maintenance()
        machine.clock.sleep(CLEAN_UP_GRACE_S + 1)


def _maintenance(harness: Harness, machine: Machine, *, is_strict: bool) -> Callable[[], None]:
    """A round of maintenance. A strict one has no fault that could explain a failure."""
    lines: list[str] = []
    maintenance = Maintenance(
        machine.store,
        machine.clock,
        harness.scenario.maintenance,
        notify=lines.append,
        transactional_id_expiration_ms=harness.scenario.id_expiration_ms,
    )

    def work() -> None:
        lines.clear()
        done = maintenance.round()
        # A wrong clock of the machine is reported, and is not a defect.
        is_late = any("the clock of this machine" in line for line in lines)
        if is_late:
            harness.network.count("a maintainer found its clock wrong")
        if done[FAILURES] > (is_late and harness.scenario.wrong_clocks) and is_strict:
            harness.report_unexpected(f"{machine.name} failed: {'; '.join(lines)}")

    return work


_HAPPENED: dict[metrics.Metric, str] = {
    metrics.PIPELINED_BATCHES: "a shared file followed another",
    metrics.UNKNOWN_OUTCOMES: "a shared file had an unknown outcome",
    metrics.EXPIRED_UPLOADS: "uploads expired",
    metrics.MISSING_FILES: "a file was missing for a reader",
    metrics.STALE_REWRITES: "a rewrite was stale",
}
_REVOKED = {
    "revoked": "shared files were revoked",
    "committed": "a failed shared file was in the log",
}
_REFUSED = {
    "ILLEGAL_GENERATION": "a commit of an older generation was refused",
    "UNKNOWN_MEMBER_ID": "a commit of a former member was refused",
    "FENCED_INSTANCE_ID": "a commit of a replaced static member was refused",
}
_LOST = {
    "_TIMED_OUT": "a member ended its own session",
    "UNKNOWN_MEMBER_ID": "a member found itself removed",
    "FENCED_INSTANCE_ID": "a static member found itself replaced",
    "_MAX_POLL_EXCEEDED": "a member polled too late",
}


def _named(event: metrics.Event) -> str | None:
    if event.metric is metrics.REVOCATIONS:
        return _REVOKED[event.labels["outcome"]]
    if event.metric is metrics.COMMITS_REFUSED:
        return _REFUSED[event.labels["reason"]]
    if event.metric is metrics.SESSIONS_LOST:
        return _LOST.get(event.labels["reason"])
    return _HAPPENED.get(event.metric)


@contextmanager
def instrumented(harness: Harness) -> Iterator[None]:
    """Count the events of the clients in the run, and give group commit and their maintenance small
    limits.
    """

    def count(event: metrics.Event) -> None:
        # Else a client of another test has caused it.
        is_of_run = harness.world.scheduler.current() is not None
        if is_of_run and (what := _named(event)) is not None:
            harness.network.count(what)

    with ExitStack() as patches, metrics.listening(count):

        def put(target: Any, name: str, value: object) -> None:
            patches.enter_context(patch.object(target, name, value))

        put(OffsetCommitter, "hand_over", _counting_late_releases(harness))
        put(DelegatedOffsets, "pause", _counting_own_commits(harness))
        put(log, "acceptable", _counting_refused_offsets(harness))
        if harness.scenario.eager_group_commit:
            put(group_commit, "CONTENTION_S", 600.0)
            put(group_commit, "LOAD_MIN", 0.0)
            put(group_commit, "INTERVAL_MAX_S", 1.0)
            put(group_commit, "TIMEOUT_INTERVALS", 0.2)
        if harness.scenario.background_maintenance:
            for module, name in (
                (background, "BackgroundTopicMaintenance"),
                (log_maintenance, "BackgroundLogMaintenance"),
            ):
                put(
                    module,
                    name,
                    partial(getattr(module, name), settings=harness.scenario.maintenance),
                )
        yield


def _counting_late_releases(harness: Harness) -> Callable[..., None]:
    """`OffsetCommitter.hand_over`, with a count of those on behalf of members that the group has
    removed.
    """
    hand_over = OffsetCommitter.hand_over

    def counting(
        self: OffsetCommitter, operation: str, plan: HandOver, *, commit_stored: bool
    ) -> None:
        def counted(head: GroupHead, identity: MemberIdentity) -> GroupHead | None:
            if identity.member_id not in head.members:
                harness.network.count("a member gave up partitions after it was removed")
            return plan(head, identity)

        hand_over(self, operation, counted, commit_stored=commit_stored)

    return counting


def _counting_own_commits(harness: Harness) -> Callable[..., None]:
    """`DelegatedOffsets.pause`, counted."""
    pause = DelegatedOffsets.pause

    def counting(self: DelegatedOffsets, now: float) -> None:
        harness.network.count("a member committed itself what the leader did not")
        pause(self, now)

    return counting


def _counting_refused_offsets(harness: Harness) -> Callable[..., list[CommittedOffset]]:
    """`acceptable`, with counts of what it refuses."""

    def counting(
        state: TableState, head: GroupHead, shown: Iterable[PendingOffsets]
    ) -> list[CommittedOffset]:
        of_members = list(shown)
        for of_member in of_members:
            if of_member.generation != head.generation:
                harness.network.count("a shown offset was of an older generation")
            elif any(
                state.txn_slot_max(offset.app_id) > of_member.after for offset in of_member.offsets
            ):
                harness.network.count("a shown offset was refused because of a newer commit")
        return offsets.acceptable(state, head, of_members)

    return counting

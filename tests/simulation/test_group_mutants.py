"""The simulation notices defects of groups: each mutation of deltaq fails the checks of some
seed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from zlib import crc32

import pytest

from deltaq.consumer.assignment import Assignment
from deltaq.consumer.reconciliation import Reconciler
from deltaq.errors import Fenced
from deltaq.groups import offsets, rebalance, state
from deltaq.groups.heartbeat import Heartbeat, LivenessCheck, MemberWatch
from deltaq.groups.log import GroupLog
from deltaq.groups.offset_commits import OffsetCommitter
from deltaq.groups.offsets import ToCommit
from deltaq.groups.session import Session
from deltaq.groups.state import Owner, PartitionCount
from tests.depth import fifth
from tests.simulation.actors.members import SESSION_S
from tests.simulation.noticing import expect_notice
from tests.simulation.scenario import Scenario, calmed, scenario_of
from tests.simulator.network import Faults

# --- which commits the log accepts ---


def accepts_commits_of_former_members(patch: pytest.MonkeyPatch) -> None:
    check = state.check_may_commit

    def lax(head, group, identity, keys):
        if identity.member_id in head.members:
            check(head, group, identity, keys)

    patch.setattr("deltaq.groups.log.check_may_commit", lax)


def accepts_commits_of_an_older_generation(patch: pytest.MonkeyPatch) -> None:
    check = state.check_may_commit
    patch.setattr(
        "deltaq.groups.log.check_may_commit",
        lambda head, group, identity, keys: check(
            head, group, replace(identity, generation=head.generation), keys
        ),
    )


def accepts_commits_of_partitions_of_others(patch: pytest.MonkeyPatch) -> None:
    check = state.check_may_commit

    def lax(head, group, identity, keys):
        mine = head.owned(identity.member_id)
        check(head, group, identity, [key for key in keys if key in mine])

    patch.setattr("deltaq.groups.log.check_may_commit", lax)


def commits_final_offsets_for_a_newer_generation(patch: pytest.MonkeyPatch) -> None:
    change = GroupLog.change

    def ahead(self, operation, identity, plan, deadline, offsets=()):
        newer = replace(identity, generation=identity.generation + 1) if offsets else identity
        return change(self, operation, newer, plan, deadline, offsets)

    patch.setattr(GroupLog, "change", ahead)


# That the leader commits for the owner only is tested in `unit/groups/test_offsets.py`: in one
# generation no member shows a partition of another one, except a static member that was replaced.
def commits_delegated_offsets_after_newer_ones(patch: pytest.MonkeyPatch) -> None:
    acceptable = offsets.acceptable

    def lax(state, head, shown):
        return acceptable(
            state, head, [replace(of_member, after=state.version) for of_member in shown]
        )

    patch.setattr(offsets, "acceptable", lax)


def commits_delegated_offsets_of_an_older_generation(patch: pytest.MonkeyPatch) -> None:
    acceptable = offsets.acceptable

    def lax(state, head, shown):
        return acceptable(
            state, head, [replace(of_member, generation=head.generation) for of_member in shown]
        )

    patch.setattr(offsets, "acceptable", lax)


def commits_delegated_offsets_that_are_damaged(patch: pytest.MonkeyPatch) -> None:
    parse = offsets.parse_pending

    def lax(content, member_id):
        beat, _, shown = (content or b"").partition(b" ")
        text = shown[9:]
        return parse(b"%b %08x %b" % (beat, crc32(text), text), member_id)

    patch.setattr("deltaq.groups.heartbeat.parse_pending", lax)


def shows_offsets_that_it_has_not_read(patch: pytest.MonkeyPatch) -> None:
    located = ToCommit.located
    patch.setattr(
        ToCommit,
        "located",
        lambda self, topic_id: replace(located(self, topic_id), offset=self.wanted.offset + 1),
    )


# --- who owns a partition ---


def believes_the_last_reader_of_a_topic(patch: pytest.MonkeyPatch) -> None:
    """A member that joins before it has seen partitions that were added takes them from their
    owners.
    """
    patch.setattr(PartitionCount, "is_newer", lambda self, than: True)


def hands_partitions_over_before_their_release(patch: pytest.MonkeyPatch) -> None:
    def hasty(head, assigned, generation):
        owners = dict(head.owners)
        for member_id, keys in assigned.items():
            for key in keys:
                before = owners.get(key)
                if before is None or before.member_id != member_id:
                    owners[key] = Owner(member_id, generation)
        return owners

    patch.setattr(rebalance, "_handed_out", hasty)


def lets_the_next_owner_commit_for_an_older_generation(patch: pytest.MonkeyPatch) -> None:
    handed_out = rebalance._handed_out
    patch.setattr(rebalance, "_handed_out", lambda head, assigned, _: handed_out(head, assigned, 0))


def releases_nothing(patch: pytest.MonkeyPatch) -> None:
    """A partition stays with its owner, though it is assigned to another member."""
    change = GroupLog.change

    def stingy(self, operation, *arguments, **named):
        return (
            self.head() if operation == "RELEASE" else change(self, operation, *arguments, **named)
        )

    patch.setattr(GroupLog, "change", stingy)


def forgets_members_that_join_at_once(patch: pytest.MonkeyPatch) -> None:
    """A join that lost the race for a slot is written unchanged to the next one."""
    change = GroupLog.change

    def stale(self, operation, identity, plan, *arguments, **named):
        planned = []

        def once(head):
            planned.append(plan(head))
            return planned[0]

        return change(
            self, operation, identity, once if operation == "JOIN" else plan, *arguments, **named
        )

    patch.setattr(GroupLog, "change", stale)


# --- who lives ---


def counts_the_first_sighting_as_silence(patch: pytest.MonkeyPatch) -> None:
    check = LivenessCheck.check

    def hasty(self, members):
        before = set(self._seen)
        found = check(self, members)
        for name in self._seen.keys() - before:
            content, seen_at = self._seen[name]
            self._seen[name] = content, seen_at - SESSION_S
        return found

    patch.setattr(LivenessCheck, "check", hasty)


def removes_no_dead_members(patch: pytest.MonkeyPatch) -> None:
    dead = MemberWatch.dead

    def blind(self, head, member_id):
        dead(self, head, member_id)
        return frozenset()

    patch.setattr(MemberWatch, "dead", blind)


def removes_dead_members_late(patch: pytest.MonkeyPatch) -> None:
    check = LivenessCheck.check

    def patient(self, members):
        return check(
            self,
            {
                name: replace(m, session_timeout_ms=2 * m.session_timeout_ms)
                for name, m in members.items()
            },
        )

    patch.setattr(LivenessCheck, "check", patient)


def leaves_the_leader_unwatched(patch: pytest.MonkeyPatch) -> None:
    watched = MemberWatch._watched

    def trusting(self, head, member_id):
        return watched(self, head, member_id) if head.leader == member_id else {}

    patch.setattr(MemberWatch, "_watched", trusting)


def goes_on_after_its_own_silence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Heartbeat, "silent_at", property(lambda self: float("inf"), lambda self, silent_at: None)
    )


def keeps_its_partitions_after_its_removal(patch: pytest.MonkeyPatch) -> None:
    show_life = Session._show_life

    def stubborn(self):
        try:
            return show_life(self)
        except Fenced:
            return self._head

    patch.setattr(Session, "_show_life", stubborn)


# --- changed subscriptions ---


def reads_on_what_a_subscription_leaves_out(patch: pytest.MonkeyPatch) -> None:
    """The group learns of the subscription before the member has stopped."""
    patch.setattr(Reconciler, "give_up", lambda self, consumer: None)


def assigns_what_the_group_is_about_to_take(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reconciler, "_is_current", lambda self, view: True)


def commits_nothing_of_what_a_subscription_leaves_out(patch: pytest.MonkeyPatch) -> None:
    give_up = Reconciler.give_up

    def careless(self, consumer):
        auto_commit, self._auto_commit = self._auto_commit, False
        give_up(self, consumer)
        self._auto_commit = auto_commit

    patch.setattr(Reconciler, "give_up", careless)


# --- what is read and committed ---


def reads_released_partitions_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Assignment, "remove", lambda self, unwanted: None)


def starts_behind_the_committed_offset(patch: pytest.MonkeyPatch) -> None:
    committed = GroupLog.committed

    def ahead(self, partitions):
        found = committed(self, partitions)
        return [
            None if offset is None else replace(offset, offset=offset.offset + 1)
            for offset in found
        ]

    patch.setattr(GroupLog, "committed", ahead)


def starts_before_the_committed_offset(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupLog, "committed", lambda self, partitions: [None] * len(partitions))


def commits_a_record_that_it_has_not_read(patch: pytest.MonkeyPatch) -> None:
    located = OffsetCommitter._located

    def ahead(self, offsets):
        results, known = located(self, offsets)
        return results, [replace(offset, offset=offset.offset + 1) for offset in known]

    patch.setattr(OffsetCommitter, "_located", ahead)


def commits_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    def newest_first(self):
        while self._queue:
            self._sender.send_and_report(self._queue.pop())

    patch.setattr(OffsetCommitter, "_commit_queued", newest_first)


def hands_over_without_the_final_offsets(patch: pytest.MonkeyPatch) -> None:
    hand_over = OffsetCommitter.hand_over
    patch.setattr(
        OffsetCommitter,
        "hand_over",
        lambda self, operation, plan, *, commit_stored: hand_over(
            self, operation, plan, commit_stored=False
        ),
    )


MOVING = {
    "members": 5,
    "partitions": 3,
    "messages": 60,
    "crashes": False,
    "pauses": False,
    "sleeps": False,
    "static": False,
    "auto_commit": False,
}

CHANGING = MOVING | {"resubscribes": True, "strategy": "cooperative-sticky"}

SHARING = {"remote": True, "auto_commit": True}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("mutation", "last", "more"),
    fifth(
        [
            (accepts_commits_of_former_members, 38, {}),
            # A partition must come back to a member that still commits what it read before.
            (accepts_commits_of_an_older_generation, 14, MOVING),
            (accepts_commits_of_partitions_of_others, 7, {}),
            (commits_final_offsets_for_a_newer_generation, 4, {"auto_commit": True}),
            (believes_the_last_reader_of_a_topic, 1, {"auto_create": True}),
            (commits_delegated_offsets_after_newer_ones, 1, SHARING),
            (commits_delegated_offsets_of_an_older_generation, 39, SHARING),
            (
                commits_delegated_offsets_that_are_damaged,
                0,
                SHARING | {"faults": Faults(damage=0.2)},
            ),
            (shows_offsets_that_it_has_not_read, 0, SHARING),
            (hands_partitions_over_before_their_release, 8, {}),
            (lets_the_next_owner_commit_for_an_older_generation, 8, {}),
            (releases_nothing, 0, {}),
            (forgets_members_that_join_at_once, 8, {}),
            (counts_the_first_sighting_as_silence, 4, {}),
            (removes_no_dead_members, 8, {"crashes": True}),
            (removes_dead_members_late, 8, {"crashes": True}),
            (leaves_the_leader_unwatched, 8, {"crashes": True}),
            (goes_on_after_its_own_silence, 0, {"pauses": True}),
            (keeps_its_partitions_after_its_removal, 7, {"pauses": True}),
            (reads_released_partitions_on, 0, {"strategy": "cooperative-sticky"}),
            (reads_on_what_a_subscription_leaves_out, 27, CHANGING),
            (assigns_what_the_group_is_about_to_take, 8, CHANGING | {"strategy": "range"}),
            (
                commits_nothing_of_what_a_subscription_leaves_out,
                0,
                {"is_calm": True, "resubscribes": True},
            ),
            (starts_behind_the_committed_offset, 8, {}),
            (starts_before_the_committed_offset, 8, {}),
            (commits_a_record_that_it_has_not_read, 8, {}),
            (commits_in_the_wrong_order, 7, {}),
            (hands_over_without_the_final_offsets, 14, {"is_calm": True}),
        ]
    ),
)
def test_a_broken_group_is_noticed(mutation, last, more, monkeypatch):
    expect_notice(mutation, last, lambda seed: members_alone(seed, **more), monkeypatch)


def members_alone(seed: int, **more: Any) -> Scenario:
    """Members on a topic that stays as it is, without maintenance."""
    scenario = scenario_of(seed, "groups")
    still = {
        "maintainers": 0,
        "background_maintenance": False,
        "recreates": False,
        "grows": False,
        "is_calm": False,
    }
    return replace(calmed(scenario) if more.get("is_calm") else scenario, **(still | more))

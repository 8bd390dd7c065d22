"""The simulation finds what it is for: no deltaq with a defect in the way of a record gets through it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from deltaq.errors import Unavailable
from deltaq.group import group_log, group_state
from deltaq.log.actions import CommitInfo
from deltaq.log.delta_log import DeltaLog
from deltaq.log.fetcher import Fetcher
from deltaq.testing.simulation.scheduler import SimulationError
from tests.simulation.play import play
from tests.simulation.script import script_of

SEEDS_MAX = 60


def does_not_recognise_its_own_entry(patch: pytest.MonkeyPatch) -> None:
    """Takes a slot that refused it for somebody else's, and writes the same files again."""
    look = DeltaLog._look

    def blind(self, *arguments):
        entry = look(self, *arguments)
        return (
            None
            if entry is None
            else replace(entry, info=replace(entry.info or CommitInfo("", 0, ""), txn_id="somebody else"))
        )

    patch.setattr(DeltaLog, "_look", blind)


def calls_what_is_unknown_a_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeltaLog, "_gave_up", lambda self, cause, token, maybe: Unavailable("no answer in time"))


def believes_slots_that_clean_up_has_re_opened(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeltaLog, "_is_proven", lambda self, version: True)


def forgets_a_record_of_each_file(patch: pytest.MonkeyPatch) -> None:
    hand_over = Fetcher._hand_over

    def careless(self, topic, followed, cursors, parts):
        parts = [replace(part, rows=part.rows.slice(0, max(1, part.rows.num_rows - 1))) for part in parts]
        hand_over(self, topic, followed, cursors, parts)

    patch.setattr(Fetcher, "_hand_over", careless)


def does_not_publish_what_it_read_before_an_error(patch: pytest.MonkeyPatch) -> None:
    """Keeps in mind the version it has read, not the one it has made known."""
    tail = Fetcher._tail

    def forgetful(self, followed):
        try:
            return tail(self, followed)
        except Unavailable:
            followed.published = followed.log.version
            raise

    patch.setattr(Fetcher, "_tail", forgetful)


def lets_anybody_commit(patch: pytest.MonkeyPatch) -> None:
    """Commits of members that were put out of the group count too."""
    commit_actions = group_state.commit_actions

    def lax(state, head, group, member_id, offsets, now_ms):
        member = next(iter(head.members), None)
        return commit_actions(state, head, group, member, offsets, now_ms)

    patch.setattr(group_log, "commit_actions", lax)


@pytest.mark.parametrize(
    ("mutation", "kind"),
    [
        (does_not_recognise_its_own_entry, "storm"),
        (calls_what_is_unknown_a_failure, "storm"),
        (believes_slots_that_clean_up_has_re_opened, "sleepers"),
        (forgets_a_record_of_each_file, "all goes well"),
        (does_not_publish_what_it_read_before_an_error, "storm"),
        (lets_anybody_commit, "sleepers"),
    ],
)
def test_a_deltaq_that_does_not_get_through(mutation: Callable[[pytest.MonkeyPatch], None], kind: str, monkeypatch):
    mutation(monkeypatch)
    found = next((seed for seed in range(SEEDS_MAX) if problems(seed, kind)), None)
    assert found is not None, f"{SEEDS_MAX} seeds did not notice"


def problems(seed: int, kind: str) -> str:
    # Many members of one partition: so that somebody is always there to be fenced.
    script = replace(script_of(seed, kind), partitions=1, producers=4, members=3)
    try:
        return play(seed, script).problems
    except SimulationError as error:
        return str(error)

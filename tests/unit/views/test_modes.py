"""When a view is evaluated in full, and when by rules."""

from __future__ import annotations

from deltaq.views.modes import TRIAL_TICKS, TRY_S, ViewMode


def ticks(mode: ViewMode, *, full_s: float, rules_s: float, count: int) -> list[bool]:
    """Spend that time in ticks; for each, whether it was by rules."""
    found = []
    for _ in range(count):
        found.append(mode.by_rules)
        mode.spent(rules_s if mode.by_rules else full_s)
        mode.by_rules = mode.decided()
    return found


def test_a_mode_that_is_given_is_kept():
    assert ticks(ViewMode("full"), full_s=9.0, rules_s=0.1, count=3) == [False] * 3
    given = ViewMode("incremental")
    assert ticks(given, full_s=0.1, rules_s=9.0, count=3) == [False, True, True]
    assert given.stays_by_rules


def test_a_view_without_rules_stays_in_full():
    for wanted in ("incremental", "auto"):
        mode = ViewMode(wanted, refused="LIMIT")
        assert ticks(mode, full_s=9.0, rules_s=0.1, count=3) == [False] * 3
        assert not mode.stays_by_rules


def test_rules_are_not_tried_for_a_view_that_takes_no_time():
    assert not any(ticks(ViewMode("auto"), full_s=TRY_S / 2, rules_s=0.0, count=30))


def test_rules_that_are_quicker_stay_after_a_trial():
    mode = ViewMode("auto")
    assert ticks(mode, full_s=2 * TRY_S, rules_s=TRY_S, count=1) == [False]
    assert ticks(mode, full_s=0.0, rules_s=TRY_S, count=TRIAL_TICKS - 1) == [True] * 7
    assert not mode.stays_by_rules
    assert ticks(mode, full_s=0.0, rules_s=TRY_S, count=30) == [True] * 30
    assert mode.stays_by_rules


def test_rules_that_are_slower_are_tried_again_when_a_view_takes_twice_as_long():
    mode = ViewMode("auto")
    spent = ticks(mode, full_s=TRY_S, rules_s=3 * TRY_S, count=40)
    assert spent == [False] + [True] * TRIAL_TICKS + [False] * 31
    assert not any(ticks(mode, full_s=1.9 * TRY_S, rules_s=0.0, count=5))
    assert ticks(mode, full_s=2 * TRY_S, rules_s=0.0, count=3) == [False, True, True]


def test_one_slow_tick_does_not_end_a_trial():
    mode = ViewMode("auto")
    ticks(mode, full_s=2 * TRY_S, rules_s=0.0, count=1)
    ticks(mode, full_s=0.0, rules_s=100.0, count=1)
    assert ticks(mode, full_s=0.0, rules_s=TRY_S, count=20) == [True] * 20

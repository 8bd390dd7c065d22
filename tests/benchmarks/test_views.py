"""Views are measured in full and by rules, and are right in both."""

from __future__ import annotations

import pytest

from benchmarks.suite import Place
from benchmarks.views import CostOfViews, Ticks, ViewPlan, measure_views
from deltaq.views.modes import Mode


def test_targets_compare_states_and_modes():
    taken: list[tuple[Mode, int, float]] = [
        ("full", 1_000_000, 100.0),
        ("incremental", 1_000_000, 10.0),
        ("full", 10_000_000, 400.0),
        ("incremental", 10_000_000, 14.0),
    ]
    small = [
        Ticks(views, mode, state, 1_000, cpu_ms, is_right=True)
        for views in ("bank", "pairs")
        for mode, state, cpu_ms in taken
    ]
    small.append(Ticks("again", "incremental", 10_000_000, 1_000, 18.0, is_right=True))
    large = Ticks("bank", "incremental", 1_000_000, 100_000, 50.0, is_right=True)
    found = CostOfViews((*small, large), (80.0, 100.0, 400.0))
    assert found.is_clean
    assert [(target.found, target.met) for target in found.targets()] == [
        ("14.00 ms", True),
        ("1.40 times", False),
        ("28.57 times", True),
        ("1.40 times", False),
        ("28.57 times", True),
        ("9.00 ms", True),
        ("2,000,000", True),
        ("100.00 ms", True),
    ]
    wrong = Ticks("bank", "full", 1, 1, 1.0, is_right=False)
    assert not CostOfViews((*small, large, wrong), (80.0,)).is_clean


@pytest.mark.slow
def test_each_mode_has_the_balances_of_all_transfers(tmp_path):
    plan = ViewPlan((50, 500), 20, 200, ticks=3, ages=2)
    (found,) = measure_views(plan, Place(str(tmp_path), "", lambda line: None))
    assert found.is_clean
    assert len(found.ticks) == 11
    assert len(found.ages_ms) == 2

"""What a process knows of a group that it runs, and its gauges; how ticks say their modes."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from deltaq import Producer, Topic
from deltaq.errors import InvalidConfig
from deltaq.metrics import prometheus_text, view_samples
from deltaq.store import forget_memory_store, open_store
from deltaq.testing import ManualClock
from deltaq.views import Views
from deltaq.views.health import ViewsHealth
from deltaq.views.runner import GroupRunner
from tests.doubles.views import runner

ROOT = "memory://view-health"


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    yield
    forget_memory_store("view-health")


def numbers(*values: int) -> None:
    with Producer(bootstrap_servers=ROOT) as producer:
        for value in values:
            producer.produce("numbers", {"n": value})


def group(clock: ManualClock) -> Views:
    Topic("numbers", pa.schema([("n", pa.int64())]), bootstrap_servers=ROOT).create()
    views = Views("g", store=open_store(ROOT), clock=clock)
    views.view("ruled", "select n % 2 as odd, count(*) as c from numbers group by 1",
               mode="incremental")  # fmt: skip
    views.view("whole", "select max(n) as m from numbers", mode="full")
    return views


def test_a_group_that_has_not_run_here_knows_nothing():
    views = group(ManualClock())
    assert views.health() == ViewsHealth("g", None, {}, {}, {})
    assert [*view_samples(views)] == []


def test_a_runner_knows_how_far_it_is_and_how_views_are_evaluated(
    monkeypatch: pytest.MonkeyPatch,
):
    clock = ManualClock()
    views = group(clock)
    numbers(1, 2, 3)
    with runner(views, progress=views._progress) as running:
        running.tick()
        found = views.health()
        assert (found.behind_s, found.lag) == (0.0, {"numbers": 0})
        assert found.by_rules == {"ruled": True, "whole": False}
        assert found.state_rows == {"ruled": 2, "whole": 0}
        clock.advance(5)
        assert views.health().behind_s == 5.0
        # Nothing has come, so the views are current, though no tick is published.
        assert running.tick() is None
        assert views.health().behind_s == 0.0
        numbers(4, 5)
        clock.advance(2)
        with monkeypatch.context() as patch:
            patch.setattr(GroupRunner, "_publish", _refused)
            with pytest.raises(InvalidConfig):
                running.tick()
        found = views.health()
        assert (found.behind_s, found.lag) == (2.0, {"numbers": 2})
        running.tick()
        assert views.health().lag == {"numbers": 0}
    text = prometheus_text(view_samples(views))
    assert 'deltaq_views_mode{group="g",view="ruled"} 1\n' in text
    assert 'deltaq_views_mode{group="g",view="whole"} 0\n' in text
    assert 'deltaq_views_records_lag{group="g",topic="numbers"} 0\n' in text
    assert 'deltaq_views_behind_seconds{group="g"} 0\n' in text
    assert 'deltaq_views_state_rows{group="g",view="ruled"} ' in text


def _refused(*_: object) -> None:
    raise InvalidConfig("no", key="x")


def test_a_first_tick_that_has_not_come_lags_by_all_records(monkeypatch: pytest.MonkeyPatch):
    views = group(ManualClock())
    numbers(1, 2, 3)
    monkeypatch.setattr(GroupRunner, "_publish", _refused)
    with pytest.raises(InvalidConfig):
        views.run(until="now")
    assert views.health() == ViewsHealth("g", None, {"numbers": 3}, {}, {})


def test_a_tick_says_which_views_it_has_evaluated_by_rules():
    views = group(ManualClock())
    with runner(views, progress=views._progress) as running:
        numbers(1)
        first = running.tick()
        numbers(2)
        second = running.tick()
    assert first is not None
    assert second is not None
    # A runner begins in full.
    assert (first.ruled, second.ruled) == ((), ("ruled",))
    assert views.last_tick() == second

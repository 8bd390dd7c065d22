"""Tumbling, hopping and session windows as views: a row that comes late corrects its windows, by
rules and in full alike. The windows are found in plain Python, too.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaq import Producer, Topic
from deltaq.store import MemoryStore
from deltaq.views import Views
from deltaq.views.modes import MODES, Mode
from tests.depth import depth
from tests.doubles.views import runner

BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC)
CLICKS = pa.schema([("user", pa.string()), ("at_time", pa.timestamp("us", "UTC"))])
GUIDE = Path(__file__).parents[3] / "docs/guides/views.md"

Click: TypeAlias = tuple[str, int]
"""A user, and when, in seconds after the begin."""

Windows: TypeAlias = Counter[tuple[Any, ...]]


def guide_sql(name: str) -> str:
    """The SQL of a view in the guide."""
    found = re.search(rf'views\.view\(\s+"{name}",\s+"""(.*?)"""', GUIDE.read_text(), re.S)
    assert found is not None, name
    return found[1]


# --- the same in plain Python, in seconds ---


def tumbling(clicks: Iterable[Click]) -> Windows:
    """Clicks by user and minute."""
    counts = Counter((user, second // 60 * 60) for user, second in clicks)
    return Counter((user, start, n) for (user, start), n in counts.items())


def hopping(clicks: Iterable[Click]) -> Windows:
    """Clicks by user in windows of five minutes, one of which begins with each minute."""
    counts = Counter(
        (user, start)
        for user, second in clicks
        for start in range(second // 60 * 60 - 240, second // 60 * 60 + 1, 60)
    )
    return Counter((user, start, n) for (user, start), n in counts.items())


def sessions(clicks: Iterable[Click]) -> Windows:
    """Clicks of a user with no more than 30 minutes between them."""
    by_user: dict[str, list[int]] = defaultdict(list)
    for user, second in clicks:
        by_user[user].append(second)
    found: Windows = Counter()
    for user, seconds in by_user.items():
        seconds.sort()
        begin = last = seconds[0]
        n = 0
        for second in [*seconds, seconds[-1] + 9999]:
            if second - last > 30 * 60:
                found[user, begin, last, n] += 1
                begin, n = second, 0
            last, n = second, n + 1
    return found


ORACLES: dict[str, Callable[[Iterable[Click]], Windows]] = {
    "by_minute": tumbling,
    "last_five": hopping,
    "sessions": sessions,
}


# --- groups ---


@dataclass
class Clicks:
    """A root with clicks, and the windows over them."""

    store: MemoryStore
    written: list[Click]

    @classmethod
    def create(cls) -> Clicks:
        found = cls(MemoryStore(uuid4().hex), [])
        Topic("clicks", CLICKS, store=found.store, partitions=2).create()
        return found

    def write(self, clicks: Sequence[Click]) -> None:
        """Write clicks."""
        with Producer({"bootstrap.servers": self.store.url}, store=self.store) as producer:
            for user, second in clicks:
                at = BEGIN + timedelta(seconds=second)
                producer.produce("clicks", {"user": user, "at_time": at}, key=user)
        self.written += clicks

    def views(self, mode: Mode) -> Views:
        """The windows as views."""
        views = Views("windows", store=self.store)
        for name in ORACLES:
            key = ["user", "begun"] if name == "sessions" else None
            views.view(name, guide_sql(name), key=key, mode=mode)
        return views


def published(views: Views, name: str) -> Windows:
    """The windows of a view, with times in seconds after the begin."""
    rows = views.read()[name].to_arrow().to_pylist()
    return Counter(tuple(map(_plain, row.values())) for row in rows)


def _plain(value: Any) -> Any:
    return round((value - BEGIN).total_seconds()) if isinstance(value, datetime) else value


clicks = st.lists(
    st.tuples(st.sampled_from(["a", "a", "b"]), st.integers(0, 9).flatmap(
        lambda n: st.integers(n * 900 - 20, n * 900 + 80))),
    max_size=5,
)  # fmt: skip


@settings(max_examples=depth(5, 400), suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.sampled_from(["full", "incremental"]), st.lists(clicks, min_size=2, max_size=5))
def test_windows_are_right_in_each_tick(mode: Mode, history: list[list[Click]]):
    there = Clicks.create()
    views = there.views(mode)
    with runner(views) as running:
        for written in history:
            there.write(written)
            running.tick()
            for name, oracle in ORACLES.items():
                assert published(views, name) == oracle(there.written), name


@pytest.mark.parametrize("mode", MODES)
def test_a_late_row_corrects_its_windows_and_joins_its_sessions(mode: Mode):
    there = Clicks.create()
    views = there.views(mode)
    with runner(views) as running:
        there.write([])
        running.tick()
        there.write([("a", 0), ("a", 40 * 60), ("a", 41 * 60)])
        running.tick()
        assert published(views, "sessions") == Counter({("a", 0, 0, 1): 1, ("a", 2400, 2460, 2): 1})
        there.write([("a", 20 * 60), ("a", 10)])
        running.tick()
        assert published(views, "sessions") == Counter({("a", 0, 2460, 5): 1})
        assert published(views, "by_minute")["a", 0, 2] == 1
        found = published(views, "last_five")
    assert [found["a", start, 2] for start in range(-300, 61, 60)] == [0, 1, 1, 1, 1, 1, 0]
    assert views.check() == []


def test_all_windows_have_rules():
    rules = {found.view: str(found) for found in Clicks.create().views("incremental").explain()}
    assert rules["by_minute"].startswith("by_minute: by rules: aggregate (user, TIME_BUCKET")
    assert rules["last_five"] == "last_five: by rules: aggregate (user, start)"
    assert rules["sessions"].startswith("sessions: by rules: groups anew (windows by user)")

"""The views of a bank are right at each tick, over millions of transactions that come out of order.

The workload is that of a known comparison of streaming engines: accounts 0 to 9, transfers of 1
within 60 seconds, each up to ten seconds late. Each tick is compared with sums by numpy over the
offsets that it names: a total of zero alone would hide transactions that are lost or doubled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from deltaq import Producer, Topic
from deltaq.views import Tick, ViewChange, Views
from tests.depth import depth
from tests.doubles.views import runner

ACCOUNTS, SECONDS, LATE_S = 10, 60, 10
COLUMNS = pa.schema([(name, pa.int64()) for name in ("id", "source", "target", "second", "amount")])
SQL = {
    "accepted": "select id from transactions",
    "paired": (
        "select a.id, b.id as other from transactions a left join transactions b on a.id = b.id"
    ),
    "credits": (
        "select target as account, sum(amount) as c, count(*) as n from transactions group by 1"
    ),
    "debits": "select source as account, sum(amount) as d from transactions group by 1",
    "balance": "select account, c - d as b from credits join debits using (account)",
    "total": "select sum(b) as total from balance",
    "credits_at": (
        "select target as account, second, sum(amount) as c from transactions group by 1, 2"
    ),
    "debits_at": (
        "select source as account, second, sum(amount) as d from transactions group by 1, 2"
    ),
    "balance_at": (
        "select account, second, coalesce(c, 0) - coalesce(d, 0) as b "
        "from credits_at full join debits_at using (account, second)"
    ),
    "total_at": "select second, sum(b) as total from balance_at group by 1",
}

Numbers = npt.NDArray[np.int64]


def transactions(count: int) -> dict[str, Numbers]:
    """Transactions in the order in which they come, by column."""
    chance = np.random.default_rng(42)
    number = np.arange(count)
    second = SECONDS * number // count
    order = np.argsort(second + chance.uniform(0, LATE_S, count), kind="stable")
    source, target = chance.integers(0, ACCOUNTS, (2, count))
    columns = (number, source, target, second, np.ones(count, np.int64))
    return {name: column[order] for name, column in zip(COLUMNS.names, columns, strict=True)}


@dataclass
class Followed:
    """What a follower of the views has, and what the transactions add up to."""

    views: Views
    came: dict[str, Numbers]
    end: int = 0
    rows: dict[str, dict[tuple[int, ...], int]] = field(default_factory=dict)
    _changes: dict[str, Iterator[ViewChange]] = field(default_factory=dict)
    _credits: Numbers = field(default_factory=lambda: np.zeros((ACCOUNTS, SECONDS), np.int64))
    _debits: Numbers = field(default_factory=lambda: np.zeros((ACCOUNTS, SECONDS), np.int64))

    def check(self, tick: Tick) -> None:
        """Take what a tick has changed, and compare."""
        (end,) = tick.inputs["transactions"].ends
        new = {name: column[self.end : end] for name, column in self.came.items()}
        self.end = end
        np.add.at(self._credits, (new["target"], new["second"]), new["amount"])
        np.add.at(self._debits, (new["source"], new["second"]), new["amount"])
        assert self._weights(tick, "accepted") == (len(new["id"]), int(new["id"].sum()))
        assert self._weights(tick, "paired") == (len(new["id"]), int(new["id"].sum()))
        for name in ("credits", "debits", "balance", "total", "balance_at", "total_at"):
            self._take(tick, name)
        self._compare()

    def _weights(self, tick: Tick, name: str) -> tuple[int, int]:
        """The number of rows that have come, none of which has a null, and the sum of their ids."""
        change = self._change(tick, name)
        assert change is not None
        rows = change.rows
        assert set(rows.column("weight").to_pylist()) == {1}
        assert all(column.null_count == 0 for column in rows.columns)
        ids = [rows.column(column).to_numpy() for column in rows.column_names[:-1]]
        assert all((column == ids[0]).all() for column in ids)
        return rows.num_rows, int(ids[0].sum())

    def _change(self, tick: Tick, name: str) -> ViewChange | None:
        written = tick.views[name]
        if written.start == written.end:
            return None
        if name not in self._changes:
            self._changes[name] = self.views.follow(name)
        change = next(self._changes[name])
        assert change.tick == tick.number
        return change

    def _take(self, tick: Tick, name: str) -> None:
        change = self._change(tick, name)
        rows = self.rows.setdefault(name, {})
        for row in [] if change is None else change.rows.to_pylist():
            key = tuple(row[column] for column in ("account", "second") if column in row)
            value = next(int(row[column]) for column in ("c", "d", "b", "total") if column in row)
            if row["weight"] > 0:
                rows[key] = value
            elif rows.get(key) == value:
                del rows[key]

    def _compare(self) -> None:
        by_account, debits = self._credits.sum(axis=1), self._debits.sum(axis=1)
        assert self.rows["credits"] == {(a,): int(c) for a, c in enumerate(by_account) if c}
        assert self.rows["debits"] == {(a,): int(d) for a, d in enumerate(debits) if d}
        both = [a for a in range(ACCOUNTS) if by_account[a] and debits[a]]
        assert self.rows["balance"] == {(a,): int(by_account[a] - debits[a]) for a in both}
        assert self.rows["total"] == {(): sum(int(by_account[a] - debits[a]) for a in both)}
        there = np.argwhere((self._credits > 0) | (self._debits > 0)).tolist()
        left = self._credits - self._debits
        assert self.rows["balance_at"] == {(a, s): int(left[a, s]) for a, s in there}
        assert self.rows["total_at"] == {(s,): 0 for _, s in there}


@pytest.mark.timeout(depth(120, 7200))
@pytest.mark.parametrize(
    ("count", "rows"),
    depth(
        [(3_000, 1_000)],
        [(1_000_000, 1_000), (10_000_000, 10_000), (10_000_000, 100_000)],
    ),
)
def test_the_views_of_a_bank_are_right_at_each_tick(tmp_path: Path, count: int, rows: int):
    Topic("transactions", COLUMNS, partitions=1, bootstrap_servers=str(tmp_path)).create()
    views = Views("bank", str(tmp_path))
    for name, sql in SQL.items():
        views.view(name, sql, mode="incremental")
    followed = Followed(views, transactions(count))
    with (
        Producer({"bootstrap.servers": str(tmp_path)}) as producer,
        runner(views) as running,
    ):
        for start in range(0, count, rows):
            part = {name: column[start : start + rows] for name, column in followed.came.items()}
            producer.produce_arrow("transactions", pa.table(part, COLUMNS))
            producer.flush()
            tick = running.tick()
            assert tick is not None
            followed.check(tick)
    assert followed.end == count
    assert followed.rows["total"] == {(): 0}
    assert views.check() == []

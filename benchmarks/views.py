"""Views of a bank, in full and by rules: processor time of a tick next to the rows that are there,
and how old a view is when its reader has it.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic, process_time

import numpy as np
import pyarrow as pa

from benchmarks.finding import Table, Target, at_least, at_most
from benchmarks.suite import Place
from deltaq import Producer, Topic
from deltaq.views import Views
from deltaq.views.engine import ViewEngine, engine
from deltaq.views.modes import Mode
from deltaq.views.program import ViewProgram, ViewQuery, compiled

ACCOUNTS = 10
TRANSFERS = pa.schema(
    [("id", pa.int64()), ("source", pa.int64()), ("target", pa.int64()), ("amount", pa.int64())]
)
_RECORDS = pa.schema([*TRANSFERS, ("_partition", pa.int32()), ("_offset", pa.int64())])
BANK = {
    "credits": "select target as account, sum(amount) as c from transfers group by 1",
    "debits": "select source as account, sum(amount) as d from transfers group by 1",
    "balance": "select account, c - d as b from credits join debits using (account)",
    "total": "select sum(b) as total from balance",
}
PAIRED = {
    "pairs": "select a.id, b.id as other from transfers a left join transfers b on a.id = b.id"
}
"""A view with all rows on both sides of a join."""

AGAIN = {"again": "select a.id, b.amount from transfers a join transfers b on a.id = b.id"}
"""A join whose new rows have keys that have been there for long, anywhere among the others."""

_WARM_UP = 5
"""Messages before the first age: they wait for the start of the runner."""

_FRESH = """
import sys
from deltaq.views import Views
views = Views("fresh", sys.argv[1])
views.view("newest", "select max(id) as id, count(*) as n from transfers")
views.run(every=0.05)
"""


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """Ticks of `tick_rows` rows over states of so many rows, and large ticks; ages of a view."""

    states: tuple[int, ...]
    tick_rows: int
    large_rows: int
    ticks: int
    ages: int


@dataclass(frozen=True, slots=True)
class Ticks:
    """What ticks took, the median in milliseconds of processor time. `is_right`: at the end all
    rows of the bank were those of numpy.
    """

    views: str
    mode: Mode
    state: int
    rows: int
    cpu_ms: float
    is_right: bool


@dataclass(frozen=True, slots=True)
class CostOfViews:
    """The outcome. `ages_ms`: from `produce` until a reader has the view."""

    ticks: tuple[Ticks, ...]
    ages_ms: tuple[float, ...]

    @property
    def is_clean(self) -> bool:
        """Whether all views were right."""
        return all(found.is_right for found in self.ticks)

    @property
    def others_cores(self) -> tuple[float, ...]:
        """Not measured."""
        return ()

    def tables(self) -> Iterator[Table]:
        """The ticks, and the ages."""
        yield Table(
            "A tick of views, median, one thread",
            ("views", "mode", "rows before", "rows of the tick", "CPU ms", "rows per CPU s"),
            tuple(
                (
                    of.views,
                    of.mode,
                    f"{of.state:,}",
                    f"{of.rows:,}",
                    f"{of.cpu_ms:.1f}",
                    f"{of.rows / of.cpu_ms * 1000:,.0f}",
                )
                for of in self.ticks
            ),
        )
        yield Table(
            f"From produce to a reader of the view, {len(self.ages_ms)} times, every=0.05",
            ("", "p50 ms", "most ms"),
            (("age", f"{statistics.median(self.ages_ms):.0f}", f"{max(self.ages_ms):.0f}"),),
        )

    def targets(self) -> Iterator[Target]:
        """Those of small ticks, of growth, of large ticks and of age."""
        small = {(of.views, of.mode, of.state): of for of in self.ticks if of.rows < 10_000}
        states = sorted({state for _, _, state in small})
        least, most = states[0], states[-1]
        bank = small["bank", "incremental", most]
        yield at_most(f"bank, {bank.rows:,} rows over {most:,}", 15, bank.cpu_ms, " ms")
        for views in ("bank", "pairs"):
            by_rules = small[views, "incremental", most].cpu_ms
            grown = by_rules / small[views, "incremental", least].cpu_ms
            yield at_most(f"{views}: {most:,} rows next to {least:,}", 1.3, grown, " times")
            cheaper = small[views, "full", most].cpu_ms / by_rules
            yield at_least(f"{views}: full next to rules at {most:,} rows", 20, cheaper, " times")
        again = small["again", "incremental", most].cpu_ms / 2
        yield at_most(
            f"{bank.rows:,} old keys over {most:,} rows, a side of a join", 10, again, " ms"
        )
        large = max(self.ticks, key=lambda of: of.rows)
        speed = large.rows / large.cpu_ms * 1000
        yield at_least(f"bank, rows a CPU second at {large.rows:,} a tick", 1_000_000, speed)
        yield at_most("age of a view, p50", 150, statistics.median(self.ages_ms), " ms")


def measure_views(plan: ViewPlan, place: Place) -> Iterator[CostOfViews]:
    """Carry out a plan: one outcome."""
    found = []
    modes: tuple[Mode, ...] = ("full", "incremental")
    for state in plan.states:
        for views, sql in (("bank", BANK), ("pairs", PAIRED)):
            for mode in modes:
                place.report(f"{views} {mode} over {state:,} rows")
                found.append(_ticks(views, sql, mode, state, plan.tick_rows, plan.ticks))
        place.report(f"again over {state:,} rows")
        found.append(_ticks("again", AGAIN, "incremental", state, plan.tick_rows, plan.ticks))
    place.report(f"ticks of {plan.large_rows:,} rows")
    found.append(_ticks("bank", BANK, "incremental", plan.states[0], plan.large_rows, plan.ticks))
    place.report("the age of a view")
    yield CostOfViews(tuple(found), tuple(_ages(place.root, plan.ages)))


def _ticks(views: str, sql: dict[str, str], mode: Mode, state: int, rows: int, count: int) -> Ticks:
    """Ticks of so many new rows, after a first one that has all rows before them."""
    program = compiled(views, [ViewQuery(name, text) for name, text in sql.items()])
    drawn, taken = _Transfers(), []
    modes = dict.fromkeys(sql, mode)
    with engine(program, modes, keeps_inputs=False) as found:
        found.create_input("transfers", _RECORDS, is_keyed=False)
        found.add_rows("transfers", _RECORDS, drawn.next(state).to_batches())
        found.evaluate()
        for view in program.views:
            found.restore(view.name, found.columns(view.name).empty_table())
        bank = _publish(program, found, {})
        for _ in range(count):
            given = drawn.again(rows) if sql is AGAIN else drawn.next(rows)
            begun = process_time()
            found.add_rows("transfers", _RECORDS, given.to_batches())
            found.evaluate()
            bank = _publish(program, found, bank)
            taken.append((process_time() - begun) * 1000)
    is_right = views != "bank" or bank == drawn.bank()
    return Ticks(views, mode, state, rows, statistics.median(taken), is_right)


def _publish(program: ViewProgram, found: ViewEngine, bank: dict[object, int]) -> dict[object, int]:
    """Take the changes of all views; what each account of the bank has now."""
    changes = {view.name: found.changes(view) for view in program.views}
    found.accept()
    if "balance" not in changes:
        return bank
    rows = changes["balance"].come.to_pylist()
    return bank | {row["account"]: int(row["b"]) for row in rows}


class _Transfers:
    """Transfers as they come, and what they add up to."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(42)
        self._count = 0
        self._sums = np.zeros(ACCOUNTS, dtype=np.int64)

    def next(self, count: int) -> pa.Table:
        """So many more."""
        source, target = self._random.integers(0, ACCOUNTS, (2, count))
        amount = self._random.integers(1, 100, count)
        np.add.at(self._sums, target, amount)
        np.subtract.at(self._sums, source, amount)
        number = np.arange(self._count, self._count + count)
        self._count += count
        zeros = np.zeros(count, dtype=np.int32)
        arrays = [number, source, target, amount, zeros, number]
        return pa.table([pa.array(array) for array in arrays], schema=_RECORDS)

    def again(self, count: int) -> pa.Table:
        """So many more, with the ids of earlier ones."""
        ids = pa.array(self._random.integers(0, self._count, count))
        return self.next(count).set_column(0, "id", ids)

    def bank(self) -> dict[object, int]:
        """The balance of each account."""
        return {account: int(of) for account, of in enumerate(self._sums)}


def _ages(root: str, count: int) -> Iterator[float]:
    """From `produce` until a reader has the view, in milliseconds; a runner is another process."""
    topic = Topic("transfers", TRANSFERS, bootstrap_servers=root).create(exist_ok=True)
    first = sum(topic.describe().next_offsets.values()) + 1
    conf = {"bootstrap.servers": root, "linger.ms": 0}
    with (
        subprocess.Popen([sys.executable, "-c", _FRESH, root]) as runner,
        Producer(conf) as producer,
    ):
        try:
            changes = Views("fresh", root).follow("newest", every=0.005)
            for number in range(first, first + _WARM_UP + count):
                row = {"id": number, "source": 1, "target": 2, "amount": 1}
                begun = monotonic()
                producer.produce("transfers", row)
                producer.flush()
                newest = 0
                while newest != number:
                    newest = max(row["id"] or 0 for row in next(changes).rows.to_pylist())
                if number >= first + _WARM_UP:
                    yield (monotonic() - begun) * 1000
        finally:
            runner.terminate()

"""Each tick of the views next to the same sums in plain Python, over the offsets that it names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deltaq import Topic
from examples.bank.layout import bank_views, transactions

Rows = Counter[tuple[Any, ...]]


@dataclass
class PlainSums:
    """The sums over transactions, in plain Python."""

    count: int = 0
    credits: Counter[int] = field(default_factory=Counter)
    debits: Counter[int] = field(default_factory=Counter)

    def add(self, found: Iterable[Mapping[str, Any]]) -> None:
        """Take in transactions."""
        for row in found:
            self.count += 1
            self.credits[row["to_account"]] += row["amount"]
            self.debits[row["from_account"]] += row["amount"]

    @property
    def balance(self) -> dict[int, int]:
        """Of the accounts that have credits and debits."""
        both = self.credits.keys() & self.debits.keys()
        return {account: self.credits[account] - self.debits[account] for account in both}

    @property
    def total(self) -> int | None:
        """Of all balances; None without any. It is 0 once all accounts have a balance."""
        return sum(self.balance.values()) if self.balance else None

    def rows(self) -> dict[str, Rows]:
        """The rows that each view must have."""
        return {
            "credits": Counter(self.credits.items()),
            "debits": Counter(self.debits.items()),
            "balance": Counter(self.balance.items()),
            "total": Counter([(self.total,)]),
        }


@dataclass
class PublishedViews:
    """The rows of the views after each tick, from the records that ticks have written."""

    _rows: dict[str, dict[bytes, tuple[Any, ...]]] = field(default_factory=dict)

    def add(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Take in what a tick has written of a view: rows by key, and tombstones, whose columns are
        empty.
        """
        rows = self._rows.setdefault(name, {})
        for record in records:
            rows.pop(record["_key"], None)
            if record["tick"] is not None:
                rows[record["_key"]] = tuple(
                    value
                    for column, value in record.items()
                    if column != "tick" and not column.startswith("_")
                )

    def rows(self) -> dict[str, Rows]:
        """The rows that each view has."""
        return {name: Counter(rows.values()) for name, rows in self._rows.items()}

    @property
    def total(self) -> int | None:
        """What the view `total` shows."""
        ((total,),) = self._rows["total"].values()
        return None if total is None else int(total)


@dataclass(frozen=True)
class AuditedTick:
    """A tick: its total, that of plain Python, and the views that differ from plain Python."""

    number: int
    time_ms: int
    total: int | None
    expected: int | None
    differing: tuple[str, ...]


class Auditor:
    """Compares tick after tick."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._views = bank_views(root)
        self._transactions = transactions(root)
        self._read_until: dict[int, int] | None = None
        self._sums = PlainSums()
        self._published = PublishedViews()
        self._number = 0

    @property
    def transactions(self) -> int:
        """How many transactions the ticks cover."""
        return self._sums.count

    def covers_all(self) -> bool:
        """Whether the last tick that was compared covers all transactions that there are."""
        return self._read_until == self._transactions.describe().next_offsets

    def next(self) -> AuditedTick | None:
        """Compare the next tick; None if there is none yet.

        Raises InvalidConfig if it is not there though later ones are.
        """
        last = self._views.last_tick()
        if last is None or last.number == self._number:
            return None
        cut = self._views.read(at=self._number + 1)
        self._sums.add(
            self._transactions.to_arrow(
                start=self._read_until, end=cut.offsets["transactions"]
            ).to_pylist()
        )
        for name, of in cut.published.views.items():
            topic = Topic(f"{self._views.group}.{name}", bootstrap_servers=self._root)
            self._published.add(name, topic.to_arrow(start=of.start, end=of.end).to_pylist())
        self._read_until, self._number = cut.offsets["transactions"], cut.tick
        found, expected = self._published.rows(), self._sums.rows()
        return AuditedTick(
            cut.tick,
            cut.published.time_ms,
            self._published.total,
            self._sums.total,
            tuple(name for name in expected if found.get(name) != expected[name]),
        )

    def check(self) -> list[str]:
        """The views that differ from their SQL at the last tick, evaluated from nothing."""
        return [found.view for found in self._views.check()]

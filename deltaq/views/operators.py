"""Operators on rows as methods, for those who think in steps. They write SQL, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from deltaq.errors import InvalidConfig
from deltaq.tools.duckdb_tables import quoted

JoinKind: TypeAlias = Literal["inner", "left", "right", "full"]


@dataclass(frozen=True, slots=True)
class Selection:
    """A query that grows by methods; `sql` is its text. Expressions, conditions and aggregates are
    SQL, too. Begin with `source`.
    """

    sql: str
    _item: str = ""

    def map(self, *columns: str) -> Selection:
        """These expressions of each row, such as `"amount * 2 AS twice"`. Raises InvalidConfig
        without any.
        """
        return Selection(f"SELECT {_listed(columns, 'map')} FROM {self._from}")

    def filter(self, condition: str) -> Selection:
        """The rows for which a condition holds."""
        return Selection(f"SELECT * FROM {self._from} WHERE {condition}")

    def join(
        self, other: Selection, on: Sequence[str] | str, *, kind: JoinKind = "inner"
    ) -> Selection:
        """The pairs of rows that are equal in columns, which both have, or for which a condition
        over `l` and `r` holds, such as `"l.account = r.id"`. Raises InvalidConfig without a column.
        """
        how = "" if kind == "inner" else f"{kind.upper()} "
        tied = f"ON {on}" if isinstance(on, str) else f"USING ({_listed(on, 'join')})"
        return Selection(f"SELECT * FROM {self._from} AS l {how}JOIN {other._from} AS r {tied}")

    def union(self, other: Selection) -> Selection:
        """The rows of both: one that is in both comes twice."""
        return self._with("UNION ALL", other)

    def intersect(self, other: Selection) -> Selection:
        """The rows that are in both, as often as in the one with fewer of them."""
        return self._with("INTERSECT ALL", other)

    def difference(self, other: Selection) -> Selection:
        """The rows without those of another, as often as there are more of them here."""
        return self._with("EXCEPT ALL", other)

    def group_by_agg(self, by: Sequence[str] | str, *aggregates: str) -> Selection:
        """Aggregates of each group with equal values, such as `"sum(amount) AS total"`. Raises
        InvalidConfig without a value.
        """
        groups = [by] if isinstance(by, str) else [*by]
        head = _listed(groups, "group_by_agg")
        numbers = ", ".join(str(number + 1) for number in range(len(groups)))
        columns = ", ".join([head, *aggregates])
        return Selection(f"SELECT {columns} FROM {self._from} GROUP BY {numbers}")

    def agg(self, *aggregates: str) -> Selection:
        """Aggregates of all rows: one row, also of none. Raises InvalidConfig without any."""
        return Selection(f"SELECT {_listed(aggregates, 'agg')} FROM {self._from}")

    def distinct(self) -> Selection:
        """Each row once."""
        return Selection(f"SELECT DISTINCT * FROM {self._from}")

    @property
    def _from(self) -> str:
        """What stands in FROM."""
        return self._item or f"({self.sql})"

    def _with(self, operator: str, other: Selection) -> Selection:
        return Selection(f"SELECT * FROM {self._from} {operator} SELECT * FROM {other._from}")


def source(name: str) -> Selection:
    """All rows of a topic or a view. Those of a topic have `_partition`, `_offset` and its other
    columns of that kind, which a view cannot have: `map` begins with the columns that are wanted.
    """
    return Selection(f"SELECT * FROM {quoted(name)}", quoted(name))


def _listed(expressions: Sequence[str], method: str) -> str:
    if not expressions:
        raise InvalidConfig(f"{method} needs one expression of SQL at least", key=method)
    return ", ".join(expressions)

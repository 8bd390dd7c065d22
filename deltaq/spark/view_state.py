"""The state of views in Spark: tables whose rows are parts, folders of Parquet that never change.

Each tick adds a part with its changes. Four parts of about one size are merged to one, as in a
log-structured merge tree. The parts are in the root, beside the ticks of the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.functions import count, lit
from pyspark.sql.types import StructType

from deltaq.clock import Clock
from deltaq.spark.columns import quoted
from deltaq.spark.native import READER
from deltaq.spark.native_paths import lacks_file_system
from deltaq.views.checkpoints import RowsMissing
from deltaq.views.state import due


@dataclass(frozen=True, slots=True)
class StatePart:
    """A folder with rows."""

    name: str
    rows: int

    def __len__(self) -> int:
        return self.rows

    @classmethod
    def of_text(cls, text: str) -> StatePart:
        """The part that a checkpoint names. Raises ValueError."""
        name, _, rows = text.rpartition(":")
        return cls(name, int(rows))

    @property
    def text(self) -> str:
        """How a checkpoint names it."""
        return f"{self.name}:{self.rows}"


@dataclass(frozen=True, slots=True)
class StateFolder:
    """Writes and reads parts in a folder, by its address for Spark."""

    session: SparkSession
    address: str
    clock: Clock

    def write(self, rows: DataFrame) -> StatePart | None:
        """A part with these rows; None without any. Raises InvalidConfig if Spark cannot write the
        root.
        """
        name, seen = self.clock.unique_id(), Observation()
        try:
            counted = rows.observe(seen, count(lit(1)).alias("rows"))
            counted.write.parquet(self._path(name), mode="error")
        except Exception as error:
            lacking = lacks_file_system(self.address, error)
            if lacking is None:
                raise
            raise lacking from error
        number = int(seen.get["rows"])
        return StatePart(name, number) if number else None

    def read(self, parts: Sequence[StatePart], columns: StructType) -> DataFrame:
        """The rows of parts. Raises RowsMissing."""
        if not parts:
            return self.session.createDataFrame([], columns)
        reader = self.session.read.schema(columns).options(**READER)
        try:
            return reader.parquet(*(self._path(part.name) for part in parts))
        except AnalysisException as error:
            raise RowsMissing(str(error)) from error

    def _path(self, name: str) -> str:
        return f"{self.address}/{name}"


@dataclass(eq=False)
class StateParts:
    """The rows of one table of state. `types` are its columns, with their types in Spark."""

    folder: StateFolder
    types: Mapping[str, str]
    parts: list[StatePart] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    @property
    def columns(self) -> StructType:
        """The columns as Spark reads them."""
        kinds = (f"{quoted(name)} {kind}" for name, kind in self.types.items())
        return cast(StructType, StructType.fromDDL(", ".join(kinds)))

    def frame(self, parts: Sequence[StatePart] | None = None) -> DataFrame:
        """All rows, or those of some parts. Raises RowsMissing."""
        return self.folder.read(self.parts if parts is None else parts, self.columns)

    def restore(self, parts: Sequence[StatePart]) -> DataFrame:
        """Take these parts, for none; their rows. Raises RowsMissing."""
        self.parts += parts
        rows = self.frame()
        # Spark does not miss a file that is not in its folder any more.
        if (found := rows.count()) != len(self):
            raise RowsMissing(f"{len(self) - found} of {len(self)} rows are not there")
        return rows

    def add(self, rows: DataFrame) -> None:
        """Add rows, as a part."""
        part = self.folder.write(typed(rows, self.types))
        if part is not None:
            self.parts.append(part)

    def add_arrow(self, tables: Iterable[pa.Table]) -> None:
        """Add rows of this process, each table as a part."""
        for table in tables:
            if table.num_rows:
                self.add(self.folder.session.createDataFrame(table))

    def due(self) -> list[StatePart]:
        """The parts that are to be merged."""
        return due(self.parts)

    def replace(self, merged: Sequence[StatePart], rows: DataFrame) -> None:
        """Put the rows of some parts in their place, in fewer."""
        before = self.parts
        self.parts = [part for part in before if part not in merged]
        self.add(rows)


def typed(rows: DataFrame, types: Mapping[str, str]) -> DataFrame:
    """These columns of a frame, in these types."""
    return rows.selectExpr(
        *(f"cast({quoted(name)} as {kind}) as {quoted(name)}" for name, kind in types.items())
    )

"""Spark's own Delta filters a topic's table by every type of column, and finds what plain Python
finds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.doubles.filtered_topic import FILTERS, Written, compacted, rows_of_files
from tests.spark.native_spark import NativeSpark

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

# Each is a query of its own, and takes Spark a quarter of a second.
FEW_FILTERS = [wanted for wanted in FILTERS if wanted.name in {"is null", "eq"}]
FEW_FILTERS += {wanted.column: wanted for wanted in FILTERS if wanted.name == "gt"}.values()


def test_a_filter_of_native_delta_agrees_with_plain_python(
    native: NativeSpark, tmp_path: Path
) -> None:
    """In a table of appended and merged files, known by a checkpoint, and of some that another
    writer has committed.
    """
    written = compacted(tmp_path).checkpoint().share_and_commit_by_peer(rows_of_files()[1::2])
    wrong = [
        f"{wanted}: {found} instead of {expected}"
        for wanted in FEW_FILTERS
        if (found := sorted(native.keys(written.table, wanted.in_sql("`"))))
        != (expected := written.picked(wanted, nan_is_largest=True))
    ]
    assert wrong == []


def test_bounds_returned_by_native_delta_are_values_of_the_table(
    native: NativeSpark, tmp_path: Path
) -> None:
    """Spark computes no `min` and `max` that the statistics of all files tell."""
    plain, shared = rows_of_files()[0], rows_of_files()[1]
    written = Written(tmp_path / "tight").create().append([plain]).append([shared])
    mixed = Written(tmp_path / "shared").create().append([plain]).share_and_commit_by_peer([shared])
    columns = ["id", "tiny", "small", "medium", "ratio", "single", "day", "name", "at", "_offset"]
    asked = [
        f"{aggregate}({column})" for column in columns for aggregate in ("min", "max", "count")
    ]
    answers = [native.values(table.table, [*asked, "count(*)"]) for table in (written, mixed)]
    expected: list[Any] = []
    for column in columns:
        values = [row[column] for row in written.rows if row[column] is not None]
        if column == "at":
            values = [value.replace(tzinfo=None) for value in values]
        expected += [min(values, default=None), max(values, default=None), len(values)]
    assert answers == [[str(value) for value in [*expected, len(written.rows)]]] * 2

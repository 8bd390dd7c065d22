"""The shop's reader of Delta tables, on topics that are being written."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pytest
from deltalake.exceptions import DeltaError

from deltaq import Producer, Topic
from examples.shop import queries
from examples.shop.layout import ENRICHED, PRODUCTS, PURCHASES
from examples.shop.queries import PAUSES_S, DuckDb

pytestmark = pytest.mark.spark

DELTA_TABLE = deltalake.DeltaTable


class Failing:
    """Opens tables as delta-rs does; the next `failures` reads of a log find a gap."""

    def __init__(self) -> None:
        self.failures = 0

    def __call__(self, path: str) -> Any:
        failing = self

        class Table(DELTA_TABLE):
            def update_incremental(self) -> None:
                failing.strike()
                super().update_incremental()

        failing.strike()
        return Table(path)

    def strike(self) -> None:
        if self.failures:
            self.failures -= 1
            raise DeltaError("Expected contiguous commit files, but found gap")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    failing = Failing()
    monkeypatch.setattr(queries, "DeltaTable", failing)
    monkeypatch.setattr(queries, "PAUSES_S", (0.0,) * len(PAUSES_S))
    monkeypatch.setattr(queries, "DUCKDB_VIEWS", {})
    return failing


@pytest.fixture
def produce(tmp_path: Path) -> Callable[[], None]:
    for name in (PURCHASES, PRODUCTS, ENRICHED):
        Topic(name, bootstrap_servers=str(tmp_path)).create()

    def once() -> None:
        with Producer({"bootstrap.servers": str(tmp_path)}) as producer:
            producer.produce(PURCHASES, b"x")

    return once


def test_a_log_that_changes_while_it_is_read_is_read_again(
    tmp_path: Path, failing: Failing, produce: Callable[[], None]
) -> None:
    failing.failures = 2
    with contextlib.closing(DuckDb(str(tmp_path))) as engine:
        for purchases in range(1, 4):
            produce()
            failing.failures = len(PAUSES_S)
            assert engine.ask(f"SELECT count(*) AS n FROM {PURCHASES}_table") == [{"n": purchases}]
            assert failing.failures == 0


def test_a_log_that_cannot_be_read_ends_the_reader(
    tmp_path: Path, failing: Failing, produce: Callable[[], None]
) -> None:
    produce()
    with contextlib.closing(DuckDb(str(tmp_path))) as engine:
        failing.failures = len(PAUSES_S) + 1
        with pytest.raises(DeltaError, match="gap"):
            engine.ask(f"SELECT count(*) AS n FROM {PURCHASES}_table")

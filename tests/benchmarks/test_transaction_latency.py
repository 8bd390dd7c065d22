"""Transactions are measured next to plain produces, and what they add is reckoned in creates."""

from __future__ import annotations

from benchmarks.suite import Place
from benchmarks.transaction_latency import (
    LatencyOfTransactions,
    measure_latency_of_transactions,
)

MEASURED = {
    "create": 2.0,
    "produce, flush": 10.0,
    "one message in a transaction": 13.0,
    "produce to two topics, flush, commit offsets": 20.0,
    "two topics with offsets in a transaction": 26.0,
}


def test_what_a_transaction_adds_is_counted_in_creates():
    found = LatencyOfTransactions(1, MEASURED, is_clean=True)
    (table,) = found.tables()
    assert [row[-1] for row in table.rows] == ["1.50", "3.00"]
    assert [target.met for target in found.targets()] == [True, False]


def test_each_message_of_each_way_arrives_once(tmp_path):
    (found,) = measure_latency_of_transactions(2, Place(str(tmp_path), "", lambda line: None))
    assert found.is_clean
    assert found.p50_ms.keys() == MEASURED.keys()

"""What was observed with confluent-kafka 2.16.1 and Apache Kafka 4.4, and where each observation is
compared.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.fidelity.answers import Answer

__all__ = ["DOCUMENTED_ANSWERS", "NOT_APPLICABLE", "OBSERVED", "OF_GROUPS"]

_GROUP_TESTS = Path(__file__).parents[1] / "unit" / "groups"

DOCUMENTED_ANSWERS = Path(__file__).with_name("documented.json")
"""The answers to programs about the client's documentation. `python -m tests.fidelity --kafka …
--record` writes it.
"""

OBSERVED: dict[str, Answer] = json.loads(
    Path(__file__).with_name("observations.json").read_text()
) | json.loads(DOCUMENTED_ANSWERS.read_text())
"""The answers that the programs of this folder are compared with."""

OF_GROUPS: tuple[str, ...] = tuple(
    json.loads((_GROUP_TESTS / "kafka_observations.json").read_text())
)
"""Observations of several members of a group, compared in
tests/unit/groups/test_kafka_observations.py.
"""

_NO_TRANSACTIONS = "this version has no transactions"

NOT_APPLICABLE: dict[str, str] = {
    "rebalance_consumer_protocol": "deltaq has one group protocol; see rebalance_default_strategy",
    "txn_abort_purges_unsent": _NO_TRANSACTIONS,
    "txn_config": _NO_TRANSACTIONS,
    "txn_default_isolation": _NO_TRANSACTIONS,
    "txn_fencing": _NO_TRANSACTIONS,
    "txn_fencing_idle_old": _NO_TRANSACTIONS,
    "txn_interleaved_with_plain": _NO_TRANSACTIONS,
    "txn_list_offsets_isolation": _NO_TRANSACTIONS,
    "txn_produce_error_then_abort": _NO_TRANSACTIONS,
    "txn_send_offsets": _NO_TRANSACTIONS,
    "txn_state_errors": _NO_TRANSACTIONS,
    "txn_timeout": _NO_TRANSACTIONS,
    "txn_two_partitions_and_topics": _NO_TRANSACTIONS,
    "txn_visibility": _NO_TRANSACTIONS,
}
"""Observations that deltaq cannot be compared with, and why."""

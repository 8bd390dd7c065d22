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

NOT_APPLICABLE: dict[str, str] = {
    "rebalance_consumer_protocol": "deltaq has one group protocol; see rebalance_default_strategy",
}
"""Observations that deltaq cannot be compared with, and why."""

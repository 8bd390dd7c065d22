"""What kombu asks of each transport that it is tested with, asked of that of deltaq."""

from __future__ import annotations

from pathlib import Path

import pytest
from kombu import Connection
from t.integration.common import BaseExchangeTypes as TestExchangeTypes
from t.integration.common import BaseMessage as TestMessage
from t.integration.common import BasePriority as TestPriority
from t.integration.common import BasicFunctionality as TestFunctionality

import deltaq.kombu

__all__ = ["TestExchangeTypes", "TestFunctionality", "TestMessage", "TestPriority"]


@pytest.fixture
def connection(tmp_path: Path) -> Connection:
    return Connection(f"{deltaq.kombu.SCHEME}://{tmp_path}/root")


@pytest.fixture
def invalid_connection() -> Connection:
    return Connection(f"{deltaq.kombu.SCHEME}:///dev/null/root")

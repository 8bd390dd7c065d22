"""Maintenance that the store refuses is said once for each kind of work, other failures each
time.
"""

from __future__ import annotations

import logging

import pytest

from deltaq.delta.store_errors import unavailable
from deltaq.errors import Unavailable
from deltaq.maintenance.background_tasks import log_failure
from deltaq.store import MemoryStore, Store, StoreRefused, StoreUnavailable

REFUSED = StoreRefused("delete", "topics/a/x.parquet", "403 Forbidden")
AWAY = StoreUnavailable("delete", "topics/a/x.parquet", "503 Slow Down")


def levels(
    caplog: pytest.LogCaptureFixture, store: Store, *failures: tuple[str, str, Exception]
) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.INFO, "deltaq.maintenance"):
        for task, of, error in failures:
            log_failure(store, task, of, error)
    return [record.levelname for record in caplog.records if record.name == "deltaq.maintenance"]


@pytest.mark.parametrize("error", [REFUSED, unavailable(REFUSED)])
def test_a_refusal_is_a_warning_once_for_each_store_and_task(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = MemoryStore("one"), MemoryStore("other")
    again = [
        ("maintenance", "topic 'a'", error),
        ("maintenance", "topic 'b'", error),
        ("root-maintenance", "topic 'a'", error),
    ]
    assert levels(caplog, one, *again) == ["WARNING", "INFO", "WARNING"]
    assert levels(caplog, other, *again) == ["WARNING", "INFO", "WARNING"]


@pytest.mark.parametrize("error", [AWAY, unavailable(AWAY), Unavailable("away")])
def test_a_transient_failure_is_a_warning_each_time(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    assert (
        levels(caplog, MemoryStore("one"), *[("maintenance", "topic 'a'", error)] * 3)
        == ["WARNING"] * 3
    )


def test_the_warning_names_the_refused_operation_and_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    levels(caplog, MemoryStore("one"), ("maintenance", "group 'g'", unavailable(REFUSED)))
    (line,) = [
        record.getMessage() for record in caplog.records if record.name == "deltaq.maintenance"
    ]
    assert line.startswith(
        "maintenance of group 'g' failed: delete of 'topics/a/x.parquet': 403 Forbidden."
    )
    assert "maintenance.enable" in line
    assert "python -m deltaq.maintenance" in line

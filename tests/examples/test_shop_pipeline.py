"""How the pipeline of the shop starts its queries."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from examples.shop.pipeline import ATTEMPTS, start

SLOW = "Python worker failed to connect back."


class Query:
    """A query that runs, or has ended with an error."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error
        self.isActive = error is None
        self.lastProgress = {"batchId": 0}

    def exception(self) -> Exception | None:
        return self._error


class Writer:
    """Starts queries, which end with these errors."""

    def __init__(self, *errors: Exception | None) -> None:
        self._errors = iter(errors)
        self.started: list[Query] = []

    def start(self) -> Query:
        self.started.append(Query(next(self._errors)))
        return self.started[-1]


def started(*errors: Exception | None) -> tuple[Any, list[Query]]:
    writer: Any = Writer(*errors)
    return start(writer, threading.Event()), writer.started


def test_a_query_whose_worker_was_too_slow_is_started_again() -> None:
    query, queries = started(RuntimeError(SLOW), RuntimeError(SLOW), None)
    assert len(queries) == 3
    assert query is queries[-1]


@pytest.mark.parametrize("errors", [[SLOW] * ATTEMPTS, ["the topic does not exist", SLOW]])
def test_a_query_that_fails_in_another_way_or_too_often_ends_the_pipeline(
    errors: list[str],
) -> None:
    with pytest.raises(RuntimeError, match=errors[0]):
        started(*map(RuntimeError, errors))

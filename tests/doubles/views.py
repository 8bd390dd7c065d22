"""A runner of a group of views whose ticks a test makes itself."""

from __future__ import annotations

from typing import Any

from deltaq.views import Views
from deltaq.views.runner import GroupRunner


def runner(views: Views, **options: Any) -> GroupRunner:
    """What `Views.run` begins, unless `options` of the runner say otherwise."""
    given: dict[str, Any] = {"moves_with_retention": False, "modes": views._modes} | options
    queries = tuple(views._queries.values())
    return GroupRunner(views.program, queries, views._store, views._clock, **given)

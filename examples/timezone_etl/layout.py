"""The topics of the example, and the format of their messages."""

from __future__ import annotations

import time
from collections.abc import Iterable
from zoneinfo import ZoneInfo

from deltaq import Topic

CLOCKS = {"timezone1": ZoneInfo("America/New_York"), "timezone2": ZoneInfo("Europe/Paris")}
"""Topic -> the zone of its clock. Messages are JSON, `{"date": "2024-02-05 10:01:52.884548 -0500",
"message": "0"}`.
"""

DATE_FORMAT = "%Y-%m-%d %H:%M:%S.%f %z"

UNIFIED = "timezone_unified"
"""A typed topic: a table with the columns `timestamp` (epoch milliseconds) and `message`."""


def wait_for_topics(root: str, names: Iterable[str]) -> None:
    """Wait until topics of these names exist."""
    missing = [Topic(name, bootstrap_servers=root) for name in names]
    reported = False
    while missing := [topic for topic in missing if not topic.exists()]:
        if not reported:
            print(f"waiting for {', '.join(topic.name for topic in missing)} in {root}", flush=True)
            reported = True
        time.sleep(0.5)

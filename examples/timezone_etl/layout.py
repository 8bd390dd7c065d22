"""What the programs agree on: the topics, and what is in them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from zoneinfo import ZoneInfo

from deltaq import Topic

CLOCKS = {"timezone1": ZoneInfo("America/New_York"), "timezone2": ZoneInfo("Europe/Paris")}
"""Topic -> the zone of its clock. Messages are JSON, `{"date": "2024-02-05 10:01:52.884548 -0500", "message": "0"}`."""

DATE_FORMAT = "%Y-%m-%d %H:%M:%S.%f %z"

UNIFIED = "timezone_unified"
"""A typed topic, so that it is a table with columns of its own: `timestamp` (epoch milliseconds) and `message`."""


def arguments(description: str | None) -> argparse.ArgumentParser:
    """A parser of the arguments that every program has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--root", default="./deltaq-data", help="where the topics are: a folder, or s3://bucket/prefix")
    return parser


def wait_for_topics(root: str, names: Iterable[str]) -> None:
    """Return as soon as there are topics of these names."""
    missing = [Topic(name, bootstrap_servers=root) for name in names]
    told = False
    while missing := [topic for topic in missing if not topic.exists()]:
        if not told:
            print(f"waiting for {', '.join(topic.name for topic in missing)} in {root}", flush=True)
            told = True
        time.sleep(0.5)

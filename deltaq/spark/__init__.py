"""Spark: the data source `deltaq`, which Spark discovers automatically, and what a driver uses
beside it.
"""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from deltaq.spark.latest import latest_by_key
    from deltaq.spark.native import read_topic
    from deltaq.spark.progress import ConsumerGroupListener, offsets_behind
    from deltaq.spark.session import spark_session
    from deltaq.spark.upsert import upsert_to_topic

__all__ = [
    "ConsumerGroupListener",
    "latest_by_key",
    "offsets_behind",
    "read_topic",
    "spark_session",
    "upsert_to_topic",
]

# Loaded when first used: Spark's workers import this package, and need none of them.
_LOADED_WHEN_USED = {
    "ConsumerGroupListener": "progress",
    "latest_by_key": "latest",
    "offsets_behind": "progress",
    "read_topic": "native",
    "spark_session": "session",
    "upsert_to_topic": "upsert",
}


if not typing.TYPE_CHECKING:  # else a type checker accepts any name

    def __getattr__(name: str) -> object:
        if name not in _LOADED_WHEN_USED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(
            importlib.import_module("deltaq.spark." + _LOADED_WHEN_USED[name]), name
        )
        globals()[name] = value
        return value

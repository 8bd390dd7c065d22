"""The producer client and its write path: accumulate, upload, commit, report."""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from deltaq.producer.producer import Producer
    from deltaq.producer.serializing import SerializingProducer

__all__ = ["Producer", "SerializingProducer"]

# Loaded when first used: a task of Spark encodes records with parts of this package, and needs no
# client.
_LOADED_WHEN_USED = {"Producer": "producer", "SerializingProducer": "serializing"}


if not typing.TYPE_CHECKING:  # else a type checker accepts any name

    def __getattr__(name: str) -> object:
        if name not in _LOADED_WHEN_USED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(
            importlib.import_module("deltaq.producer." + _LOADED_WHEN_USED[name]), name
        )
        globals()[name] = value
        return value

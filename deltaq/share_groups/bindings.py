"""Bindings of a share group that is a queue of AMQP: which records of an exchange it is to take.
Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from deltaq.serde.json_text import compact_json, strict_json


class Binding(NamedTuple):
    """A queue takes the records of a topic, that of an exchange, whose routing key fits. `type` is
    that of the exchange: `direct`, `topic` or `fanout`.
    """

    topic: str
    type: str
    routing_key: str


def encoded_bindings(bindings: Collection[Binding]) -> str:
    """Bindings as the text of a domain."""
    return compact_json({"bindings": sorted(bindings)})


def parse_bindings(text: str) -> frozenset[Binding]:
    """The bindings in the text of a domain. Raises ValueError, KeyError, TypeError."""
    body: Any = strict_json(text)
    found = frozenset(Binding(*each) for each in body["bindings"])
    if not all(isinstance(part, str) for each in found for part in each):
        raise ValueError("a part of a binding is no text")
    return found

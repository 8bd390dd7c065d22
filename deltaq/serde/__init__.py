"""Conversion of values to bytes or typed columns."""

from __future__ import annotations

from deltaq.serde.typed import TopicSchema, schema_conflict, schema_of

__all__ = ["TopicSchema", "schema_conflict", "schema_of"]

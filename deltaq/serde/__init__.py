"""Values as bytes or as typed columns."""

from __future__ import annotations

from deltaq.serde.typed import TopicSchema, schema_of

__all__ = ["TopicSchema", "schema_of"]

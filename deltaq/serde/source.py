"""The schema of a topic from what users have: columns of Arrow, or a pydantic model."""

from __future__ import annotations

from deltaq.serde.schema import SchemaSource, TopicSchema


def schema_of(source: SchemaSource) -> TopicSchema:
    """The schema of a topic whose values have these columns or are instances of this model.

    Raises InvalidConfig for a column that a Delta table cannot have, TypeError for any other kind
    of source.
    """
    from deltaq.serde.validated import validated_schema  # noqa: PLC0415 - loads pydantic

    return validated_schema(source)

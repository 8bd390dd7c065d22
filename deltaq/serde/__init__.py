"""Conversion of values to bytes or typed columns. Serializers have confluent-kafka's names.

Modules:

* `schema`, `source`, `columns`: the schema of a typed topic's values, what it is made from, and the
  columns that there may be
* `models`, `validated`, `model_validation`, `read_back`, `column_values`: models of pydantic, which
  is known only here: as columns, validated, and read back unchanged; which values a column may hold
* `widening`: which types hold all values of others
* `serializers`, `documents`, `conversion`, `json_text`, `errors`: serializers and deserializers,
  with confluent-kafka's names; both parts of a message through them; JSON as text; their errors
"""

from __future__ import annotations

from deltaq.serde.documents import (
    ArrowDeserializer,
    ArrowSerializer,
    ModelDeserializer,
    ModelSerializer,
    PlainJSONDeserializer,
    PlainJSONSerializer,
)
from deltaq.serde.errors import (
    ConsumeError,
    KeyDeserializationError,
    KeySerializationError,
    MissingLibrary,
    ProduceError,
    SerializationError,
    ValueDeserializationError,
    ValueSerializationError,
)
from deltaq.serde.serializers import (
    Deserializer,
    DoubleDeserializer,
    DoubleSerializer,
    IntegerDeserializer,
    IntegerSerializer,
    MessageField,
    SerializationContext,
    Serializer,
    StringDeserializer,
    StringSerializer,
)

__all__ = [
    "ArrowDeserializer",
    "ArrowSerializer",
    "ConsumeError",
    "Deserializer",
    "DoubleDeserializer",
    "DoubleSerializer",
    "IntegerDeserializer",
    "IntegerSerializer",
    "KeyDeserializationError",
    "KeySerializationError",
    "MessageField",
    "MissingLibrary",
    "ModelDeserializer",
    "ModelSerializer",
    "PlainJSONDeserializer",
    "PlainJSONSerializer",
    "ProduceError",
    "SerializationContext",
    "SerializationError",
    "Serializer",
    "StringDeserializer",
    "StringSerializer",
    "ValueDeserializationError",
    "ValueSerializationError",
]

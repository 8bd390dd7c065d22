"""Conversion of values to bytes or typed columns. Serializers have confluent-kafka's names."""

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

"""An Avro service with a schema registry: a schema, its next version, a refused version and a
refused record.

Usage: python avro_service.py BOOTSTRAP_SERVERS SCHEMA_REGISTRY_URL
"""

from __future__ import annotations

import json
import sys
from typing import Any

from confluent_kafka import DeserializingConsumer, SerializingProducer
from confluent_kafka.error import ValueSerializationError
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, SchemaRegistryError
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.serialization import StringDeserializer, StringSerializer

TOPIC = "shipments"

FIRST: dict[str, Any] = {
    "type": "record",
    "name": "Shipment",
    "namespace": "shop",
    "fields": [{"name": "id", "type": "int"}, {"name": "city", "type": "string"}],
}
NEXT = {
    **FIRST,
    "fields": [*FIRST["fields"], {"name": "weight", "type": ["null", "double"], "default": None}],
}
BAD = {**FIRST, "fields": [*FIRST["fields"], {"name": "weight", "type": "double"}]}


def produce(
    servers: str, registry: Any, schema: dict[str, Any], shipments: list[dict[str, Any]]
) -> None:
    """Produce shipments with a version of the schema, which the first message registers."""
    producer: Any = SerializingProducer(
        {
            "bootstrap.servers": servers,
            "key.serializer": StringSerializer("utf_8"),
            "value.serializer": AvroSerializer(registry, json.dumps(schema)),
        }
    )
    for shipment in shipments:
        producer.produce(TOPIC, key=shipment["city"], value=shipment)
    print("not delivered:", producer.flush(30))
    try:
        producer.produce(TOPIC, key="nowhere", value={"id": "one", "city": "Graz"})
    except ValueSerializationError as error:
        print("refused record:", error.args[0].name())


def consume(servers: str, registry: Any, count: int) -> list[dict[str, Any]]:
    """Read shipments, whatever version they were written with, as the newest one."""
    consumer: Any = DeserializingConsumer(
        {
            "bootstrap.servers": servers,
            "group.id": "warehouse",
            "auto.offset.reset": "earliest",
            "key.deserializer": StringDeserializer("utf_8"),
            "value.deserializer": AvroDeserializer(registry, json.dumps(NEXT)),
        }
    )
    consumer.subscribe([TOPIC])
    found: list[dict[str, Any]] = []
    while len(found) < count:
        message = consumer.poll(1.0)
        if message is not None:
            found.append(message.value())
    consumer.close()
    return found


def main(servers: str, registry_url: str) -> None:
    """Write with two versions of a schema, and read with the second one."""
    registry = SchemaRegistryClient({"url": registry_url})
    produce(servers, registry, FIRST, [{"id": 1, "city": "Graz"}, {"id": 2, "city": "Linz"}])
    subject = f"{TOPIC}-value"
    print("subjects:", registry.get_subjects())
    print("compatible:", registry.test_compatibility(subject, Schema(json.dumps(NEXT), "AVRO")))
    try:
        registry.register_schema(subject, Schema(json.dumps(BAD), "AVRO"))
    except SchemaRegistryError as error:
        print("refused version:", error.http_status_code, error.error_code)
    produce(servers, registry, NEXT, [{"id": 3, "city": "Wels", "weight": 1.5}])
    print("versions:", registry.get_versions(subject))
    latest: Any = registry.get_latest_version(subject)
    print(
        "latest:",
        latest.version,
        [field["name"] for field in json.loads(latest.schema.schema_str)["fields"]],
    )
    for shipment in sorted(consume(servers, registry, 3), key=lambda shipment: shipment["id"]):
        print(shipment)


if __name__ == "__main__":
    main(*sys.argv[1:3])

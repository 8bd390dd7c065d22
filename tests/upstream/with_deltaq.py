"""A plugin of pytest that has the tests of confluent-kafka run with `deltaq.compat.confluent`, or,
with DELTAQ_IN_PLACE_OF=cimpl, with confluent-kafka's own Python on top of `deltaq.compat.cimpl`.

Addresses of brokers and of the schema registry stand for one root: a folder of the run, or what
BROKERS names.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import tempfile
import types
from dataclasses import replace
from pathlib import Path

import deltaq.compat.cimpl
import deltaq.compat.confluent
from deltaq.config import client, group
from deltaq.config.setting import Setting

_MODULES = (
    "admin",
    "aio",
    "cimpl",
    "deserializing_consumer",
    "error",
    "schema_registry",
    "serialization",
    "serializing_producer",
)
_ROOT = os.environ.setdefault("BROKERS", str(Path(tempfile.mkdtemp(), "root")) + os.sep)
os.environ.setdefault("SR_URL", _ROOT)
_BROKERS = re.compile(r"[\w.]+:\d+")

_checked = client._checked


def _at_the_root(setting: Setting, key: str, value: object) -> object:
    if setting.name == "bootstrap.servers" and _BROKERS.fullmatch(str(value)):
        value = _ROOT
    return _checked(setting, key, value)


client._checked = _at_the_root
# The broker of these tests has locks of a second.
_LOCK = "share.record.lock.duration.ms"
group.GROUP_SETTINGS = {
    **group.GROUP_SETTINGS,
    _LOCK: replace(group.GROUP_SETTINGS[_LOCK], default=1_000),
}
if os.environ.get("DELTAQ_IN_PLACE_OF") == "cimpl":
    sys.modules["confluent_kafka.cimpl"] = deltaq.compat.cimpl
else:
    sys.modules["confluent_kafka"] = deltaq.compat.confluent
    for _name in _MODULES:
        sys.modules[f"confluent_kafka.{_name}"] = importlib.import_module(
            f"deltaq.compat.confluent.{_name}"
        )
# The tests import a starter of brokers, which BROKERS makes needless, and clients that they do not
# use.
for _name, _class in {
    "trivup.clusters.KafkaCluster": "KafkaCluster",
    "confluent_kafka.avro": "AvroConsumer",
    "confluent_kafka.schema_registry._async.schema_registry_client": "AsyncSchemaRegistryClient",
}.items():
    sys.modules[_name] = types.ModuleType(_name)
    setattr(sys.modules[_name], _class, object)

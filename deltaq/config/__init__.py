"""Configuration of clients and topics, with Kafka's names.

Modules:

* `client_table`, `topic_table`, `no_effect`: the settings of clients and of topics: name, type,
  default, range (`isolation.level` and `transactional.id` too); Kafka's settings that are accepted
  without effect
* `group`: the settings of groups, and what a group's log stores of them
* `client`, `topic`, `declare`, `setting`: parsing and checking what users set; the kinds of
  settings
"""

from __future__ import annotations

from deltaq.config.client import (
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
    ShareConsumerConfig,
    parse_client_config,
)
from deltaq.config.client_table import CLIENT_SETTINGS
from deltaq.config.setting import Setting
from deltaq.config.topic import (
    TopicSettings,
    check_topic_properties,
    topic_config,
    topic_properties,
)
from deltaq.config.topic_table import TOPIC_SETTINGS

__all__ = [
    "CLIENT_SETTINGS",
    "TOPIC_SETTINGS",
    "AdminConfig",
    "ClientConfig",
    "ConsumerConfig",
    "ProducerConfig",
    "Setting",
    "ShareConsumerConfig",
    "TopicSettings",
    "check_topic_properties",
    "parse_client_config",
    "topic_config",
    "topic_properties",
]

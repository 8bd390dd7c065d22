"""Configuration of clients and topics, with Kafka's names."""

from __future__ import annotations

from deltaq.config.client import (
    AdminConfig,
    ClientConfig,
    ConsumerConfig,
    ProducerConfig,
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
    "TopicSettings",
    "check_topic_properties",
    "parse_client_config",
    "topic_config",
    "topic_properties",
]

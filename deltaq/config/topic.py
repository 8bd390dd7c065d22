"""Topic settings: validated when set, stored as table properties `deltaq.<name>`, read back as
typed values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from deltaq.config.declare import DAY_MS
from deltaq.config.setting import SettingValue, unknown_setting
from deltaq.config.topic_table import TOPIC_SETTINGS
from deltaq.errors import InvalidConfig, KafkaError

PROPERTY_PREFIX = "deltaq."


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The settings of a topic that have an effect, by Kafka's names with `_` for `.`; units are in
    the names.

    -1 means no limit in `retention_ms` and `retention_bytes`. `cleanup_policy` holds `delete`,
    `compact`, both or neither; `compression_type` is a codec or `producer`;
    `message_timestamp_type` is `CreateTime` or `LogAppendTime`.
    """

    partitions: int
    retention_ms: int
    retention_bytes: int
    cleanup_policy: tuple[str, ...]
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    file_delete_delay_ms: int
    metadata_max_retention_ms: int
    min_cleanable_dirty_ratio: float
    segment_bytes: int
    max_message_bytes: int
    compression_type: str
    message_timestamp_type: str

    @property
    def files_kept_ms(self) -> int:
        """Milliseconds for which a file is kept after it has left the topic: no log entry names a
        file that is gone, and a reader of a day ago finds its files, also where
        `file.delete.delay.ms` is that of a Kafka broker.
        """
        return max(self.file_delete_delay_ms, self.metadata_max_retention_ms, DAY_MS)

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> TopicSettings:
        """The settings from a table's properties, with defaults for settings that have no property.

        Properties of other software, and settings of a later deltaq, are ignored. Raises
        InvalidConfig (INVALID_CONFIG) for an invalid value.
        """
        wanted = {f.name for f in fields(cls)}
        values: dict[str, Any] = {
            setting.attribute: _value(setting.name, properties)
            for setting in TOPIC_SETTINGS.values()
            if setting.attribute in wanted
        }
        return cls(**values)


def topic_properties(config: Mapping[str, object]) -> dict[str, str]:
    """The table properties for the topic settings in `config`, with values validated and in
    canonical spelling.

    A value of None selects the default and gives no property. Raises InvalidConfig (INVALID_CONFIG)
    for an unknown setting or an invalid value.
    """
    properties = {}
    for key, value in config.items():
        if key not in TOPIC_SETTINGS:
            raise unknown_setting(key, TOPIC_SETTINGS, KafkaError.INVALID_CONFIG)
        if value is not None:
            parsed = TOPIC_SETTINGS[key].parse(value, code=KafkaError.INVALID_CONFIG)
            properties[PROPERTY_PREFIX + key] = setting_text(parsed)
    return properties


def check_topic_properties(properties: Mapping[str, str]) -> None:
    """Raises InvalidConfig (INVALID_CONFIG) for settings that contradict each other."""
    settings = TopicSettings.from_properties(properties)
    if settings.max_compaction_lag_ms < settings.min_compaction_lag_ms:
        raise InvalidConfig(
            f"max.compaction.lag.ms {settings.max_compaction_lag_ms} is below min.compaction.lag.ms"
            f" {settings.min_compaction_lag_ms}",
            key="max.compaction.lag.ms",
            code=KafkaError.INVALID_CONFIG,
        )


def topic_config(properties: Mapping[str, str]) -> dict[str, str]:
    """Every topic setting with its effective value, as Kafka's admin client shows it. Raises
    InvalidConfig.
    """
    return {name: setting_text(_value(name, properties)) for name in TOPIC_SETTINGS}


def _value(name: str, properties: Mapping[str, str]) -> SettingValue:
    return TOPIC_SETTINGS[name].parse(
        properties.get(PROPERTY_PREFIX + name), code=KafkaError.INVALID_CONFIG
    )


def setting_text(value: SettingValue) -> str:
    """A typed value as admin clients have it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)

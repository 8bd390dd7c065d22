"""The settings of topics and groups in the form of Kafka's admin API: describing and changing them.
Pure functions, no I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import ClassVar

from deltaq.admin.calls import OrderedEnum
from deltaq.config import TOPIC_SETTINGS, topic_config
from deltaq.config.group import GROUP_SETTINGS, checked_group_setting
from deltaq.config.setting import unknown_setting
from deltaq.config.topic import PROPERTY_PREFIX, setting_text
from deltaq.errors import InvalidConfig, KafkaError, KafkaException, printable
from deltaq.topic import checked_properties

SETTABLE = tuple(name for name in TOPIC_SETTINGS if name != "partitions")


class ResourceType(OrderedEnum):
    """Kafka's resource types. In deltaq topics and groups have settings."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    BROKER = 4
    TRANSACTIONAL_ID = 5


class ConfigSource(IntEnum):
    """Where the value of a setting comes from. deltaq uses DYNAMIC_TOPIC_CONFIG, GROUP_CONFIG and
    DEFAULT_CONFIG.

    Members are numbers, because `confluent_kafka` has the number in `ConfigEntry.source`.
    """

    UNKNOWN_CONFIG = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    GROUP_CONFIG = 8


class AlterConfigOpType(Enum):
    """An operation on one setting. APPEND and SUBTRACT apply only to settings that are lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(slots=True)
class ConfigEntry:
    """One setting with its value as text. In a request, `incremental_operation` is the change to
    make.
    """

    name: str
    value: str | None
    source: ConfigSource = ConfigSource.UNKNOWN_CONFIG
    is_read_only: bool = False
    is_default: bool = False
    is_sensitive: bool = False
    is_synonym: bool = False
    synonyms: Mapping[str, ConfigEntry] = field(default_factory=dict)
    incremental_operation: AlterConfigOpType | None = None

    def __str__(self) -> str:
        return printable(f'{self.name}="{self.value}"')


class ConfigResource:
    """A resource that has settings, with the settings to change. Equal to another one of the same
    type and name.

    `restype` is a ResourceType, its name in upper or lower case, or its number.
    """

    Type: ClassVar[type[ResourceType]] = ResourceType

    def __init__(
        self,
        restype: ResourceType | str | int,
        name: str,
        set_config: Mapping[str, str] | None = None,
        described_configs: Mapping[str, ConfigEntry] | None = None,
        error: KafkaError | None = None,
        incremental_configs: Sequence[ConfigEntry] | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise ValueError("Expected resource name to be a string")
        self.restype = _resource_type(restype)
        self.name = name
        self.set_config_dict = dict(set_config or {})
        self.incremental_configs = list(incremental_configs or ())
        self.configs = described_configs
        self.error = error

    def set_config(self, name: str, value: str, overwrite: bool = True) -> None:
        """Add a setting for `alter_configs`. With `overwrite=False`, an existing value is kept."""
        if overwrite or name not in self.set_config_dict:
            self.set_config_dict[name] = value

    def add_incremental_config(self, config_entry: ConfigEntry) -> None:
        """Add a change for `incremental_alter_configs`."""
        self.incremental_configs.append(config_entry)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, ConfigResource) else NotImplemented

    def __lt__(self, other: object) -> bool:
        return self._key() < other._key() if isinstance(other, ConfigResource) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __len__(self) -> int:
        return len(self.set_config_dict)

    def __repr__(self) -> str:
        error = "" if self.error is None else f",{self.error!r}"
        return f"ConfigResource({self.restype},{printable(self.name)}{error})"

    def _key(self) -> tuple[ResourceType, str]:
        return self.restype, self.name


def _resource_type(given: ResourceType | str | int) -> ResourceType:
    if isinstance(given, ResourceType):
        return given
    try:
        return ResourceType[given.upper()] if isinstance(given, str) else ResourceType(given)
    except (KeyError, ValueError):
        raise ValueError(
            f'Unknown resource type "{given}": should be a ConfigResource.Type'
        ) from None


def topic_of(resource: ConfigResource) -> str:
    """The name of the topic. Raises KafkaException (_UNSUPPORTED_FEATURE) for a resource that is
    not a topic.
    """
    if resource.restype is not ResourceType.TOPIC:
        reason = (
            f"only topics and groups have stored settings, not {resource.restype.name}; clients "
            "get theirs from the program"
        )
        raise KafkaException(KafkaError(KafkaError._UNSUPPORTED_FEATURE, reason))
    return resource.name


def described(properties: Mapping[str, str]) -> dict[str, ConfigEntry]:
    """All settings of a topic with these table properties, by name."""
    values = topic_config(properties)
    entries = {}
    for name in SETTABLE:
        is_default = PROPERTY_PREFIX + name not in properties
        source = ConfigSource.DEFAULT_CONFIG if is_default else ConfigSource.DYNAMIC_TOPIC_CONFIG
        entries[name] = ConfigEntry(name, values[name], source, is_default=is_default)
    return entries


def replaced(wanted: Mapping[str, object], properties: Mapping[str, str]) -> dict[str, str | None]:
    """The property changes that set the `wanted` settings and reset all others; None removes.
    Raises InvalidConfig.
    """
    settings = {PROPERTY_PREFIX + name for name in SETTABLE}
    return {**dict.fromkeys(sorted(settings & properties.keys())), **checked_properties(wanted)}


def altered(entries: Sequence[ConfigEntry], properties: Mapping[str, str]) -> dict[str, str | None]:
    """The property changes that `entries` request; None removes. Raises InvalidConfig for an
    invalid change.
    """
    _check_once(entries)
    changes: dict[str, str | None] = {}
    for entry in entries:
        key = PROPERTY_PREFIX + entry.name
        if entry.name not in SETTABLE:
            raise unknown_setting(entry.name, SETTABLE, KafkaError.INVALID_CONFIG)
        changes[key] = None
        if entry.incremental_operation is not AlterConfigOpType.DELETE:
            changes.update(checked_properties({entry.name: _new_value(entry, properties)}))
    return changes


def _check_once(entries: Sequence[ConfigEntry]) -> None:
    """Raise InvalidConfig for a setting that is changed twice."""
    times = Counter(entry.name for entry in entries)
    for name, number in times.items():
        if number > 1:
            reason = f"configuration {name!r} is changed twice in one request"
            raise InvalidConfig(reason, key=name, code=KafkaError.INVALID_REQUEST)


def check_changes(entries: Sequence[ConfigEntry]) -> None:
    """Raise InvalidConfig for a change that is invalid for every topic, whatever its current
    settings.
    """
    depends = (AlterConfigOpType.APPEND, AlterConfigOpType.SUBTRACT)
    altered([entry for entry in entries if entry.incremental_operation not in depends], {})


def _new_value(entry: ConfigEntry, properties: Mapping[str, str]) -> str:
    if entry.value is None:
        reason = f"configuration {entry.name!r} needs a value"
        raise InvalidConfig(reason, key=entry.name, code=KafkaError.INVALID_CONFIG)
    operation = entry.incremental_operation
    if operation is AlterConfigOpType.SET:
        return entry.value
    setting = TOPIC_SETTINGS.get(entry.name) or GROUP_SETTINGS[entry.name]
    if setting.kind != "list":
        reason = (
            f"configuration {entry.name!r} is not a list, so it does not support APPEND and "
            "SUBTRACT: use SET"
        )
        raise InvalidConfig(reason, key=entry.name, code=KafkaError.INVALID_CONFIG)
    present = [word for word in topic_config(properties)[entry.name].split(",") if word]
    named = [word.strip() for word in entry.value.split(",")]
    if operation is AlterConfigOpType.APPEND:
        return ",".join([*present, *(word for word in named if word not in present)])
    return ",".join(word for word in present if word not in named)


# --- groups ---


def described_group(stored: Mapping[str, str]) -> dict[str, ConfigEntry]:
    """All settings of a group that stores these, by name."""
    entries = {}
    for name, setting in GROUP_SETTINGS.items():
        is_default = name not in stored
        source = ConfigSource.DEFAULT_CONFIG if is_default else ConfigSource.GROUP_CONFIG
        value = setting_text(setting.default) if is_default else stored[name]
        entries[name] = ConfigEntry(name, value, source, is_default=is_default)
    return entries


def altered_group(entries: Sequence[ConfigEntry], stored: Mapping[str, str]) -> dict[str, str]:
    """What a group that stores these settings stores after the changes in `entries`. Raises
    InvalidConfig for an invalid change.
    """
    _check_once(entries)
    after = dict(stored)
    for entry in entries:
        checked_group_setting(entry.name, None)
        after.pop(entry.name, None)
        if entry.incremental_operation is not AlterConfigOpType.DELETE:
            after[entry.name] = _new_value(entry, stored)
            checked_group_setting(entry.name, after[entry.name])
    return after


def replaced_group(wanted: Mapping[str, str]) -> dict[str, str]:
    """What a group stores that has the `wanted` settings, and defaults for all others. Raises
    InvalidConfig.
    """
    for name, value in wanted.items():
        checked_group_setting(name, value)
    return dict(wanted)

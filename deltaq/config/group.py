"""The settings of groups, with the names and defaults of Kafka's group configuration. A group's log
stores those that differ from the default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltaq.config.declare import DAY_MS, boolean, choice, integer, string
from deltaq.config.setting import Setting, unknown_setting
from deltaq.errors import InvalidConfig, KafkaError
from deltaq.names import check_topic

BY_DURATION = "by_duration:"

_DURATION = re.compile(
    r"P(?=\d|T\d)(?:(\d{1,6})D)?(?:T(?:(\d{1,8})H)?(?:(\d{1,10})M)?(?:(\d{1,12}(?:\.\d{1,9})?)S)?)?"
)

GROUP_SETTINGS: Mapping[str, Setting] = {
    setting.name: setting
    for setting in (
        string("share.auto.offset.reset", "group", "latest").means(
            "Where a share group begins in a partition that it has never read: `latest`, "
            "`earliest`, or `by_duration:` and an ISO 8601 duration such as `PT1H30M`, for the "
            "first record that is not older. Of a topic that it reads already, new partitions are "
            "read from their beginning."
        ),
        integer("share.record.lock.duration.ms", "group", 30_000, 1_000, DAY_MS).means(
            "Time for which a worker holds a record that it has taken."
        ),
        integer("share.delivery.count.limit", "group", 5, 1, 1_000_000).means(
            "How often a record is delivered. After the last time it is archived unless it was "
            "accepted."
        ),
        string("errors.deadletterqueue.topic.name", "group", "").means(
            "The dead-letter topic of a share group: records that are rejected, or were delivered "
            "too often, are written to it before they are archived. It is created if it does not "
            "exist. Empty: none."
        ),
        boolean("errors.deadletterqueue.copy.record.enable", "group", False).means(
            "Whether dead letters have the key, value and headers of their record, or only headers "
            "that say which record it is."
        ),
        integer("errors.deadletterqueue.max.per.minute", "group", 1_000, 1, 1_000_000).means(
            "Dead letters after which, within a minute, no more records are taken: a fault that is "
            "not that of the records should not drain the topic. deltaq's own."
        ),
        integer("share.partition.max.record.locks", "group", 2_000, 1, 10_000).means(
            "Most records of a partition that were taken and are neither accepted nor archived. It "
            "bounds the size of log entries. When there are so many, none is taken for the first "
            "time."
        ),
        choice(
            "share.isolation.level",
            "group",
            "read_uncommitted",
            ("read_uncommitted", "read_committed"),
        ).means("Both values show committed records only.", effect="always"),
    )
}
"""Settings by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The settings of a group that have an effect, by Kafka's names with `_` for `.`; units are in
    the names. `share_auto_offset_reset` is `latest`, `earliest` or `by_duration:` and a duration.
    """

    share_auto_offset_reset: str
    share_record_lock_duration_ms: int
    share_delivery_count_limit: int
    share_partition_max_record_locks: int
    errors_deadletterqueue_topic_name: str
    errors_deadletterqueue_copy_record_enable: bool
    errors_deadletterqueue_max_per_minute: int


def group_settings(properties: Mapping[str, str]) -> GroupSettings:
    """The settings from those that a group's log stores. Settings of a later deltaq are ignored.
    Raises InvalidConfig (INVALID_CONFIG) for an invalid value.
    """
    values: dict[str, Any] = {
        setting.attribute: checked_group_setting(name, properties.get(name))
        for name, setting in GROUP_SETTINGS.items()
        if setting.effect == "honoured"
    }
    return GroupSettings(**values)


def checked_group_setting(name: str, value: str | None) -> object:
    """The typed value of a setting; the default for None. Raises InvalidConfig (INVALID_CONFIG)."""
    setting = GROUP_SETTINGS.get(name)
    if setting is None:
        raise unknown_setting(name, GROUP_SETTINGS, KafkaError.INVALID_CONFIG)
    found = setting.parse(value, code=KafkaError.INVALID_CONFIG)
    if name == "errors.deadletterqueue.topic.name" and found:
        check_topic(str(found))
    if name == "share.auto.offset.reset" and found not in ("earliest", "latest"):
        duration_ms(str(found))
    return found


def duration_ms(reset: str) -> int:
    """The milliseconds of a `share.auto.offset.reset` by duration. Raises InvalidConfig
    (INVALID_CONFIG) for another text.
    """
    found = _DURATION.fullmatch(reset.removeprefix(BY_DURATION))
    if not reset.startswith(BY_DURATION) or found is None:
        key = "share.auto.offset.reset"
        reason = (
            f'Invalid value {reset[:60]!a} for configuration property "{key}": use earliest, '
            f"latest, or {BY_DURATION} and an ISO 8601 duration such as PT1H30M"
        )
        raise InvalidConfig(reason, key=key, code=KafkaError.INVALID_CONFIG)
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)

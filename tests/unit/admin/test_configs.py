"""Settings of topics through the admin client: described, changed one by one, replaced; with
Kafka's codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from deltaq import InvalidConfig, KafkaError, Topic
from deltaq.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
    TopicCollection,
)
from deltaq.config import TOPIC_SETTINGS

SET, DELETE, APPEND, SUBTRACT = AlterConfigOpType
NOTHING: Any = None
TOPIC = ConfigResource("topic", "t")
UNSAID = ConfigResource("topic", "t", incremental_configs=[ConfigEntry("retention.ms", "1")])


@pytest.fixture
def admin(root) -> Iterator[AdminClient]:
    with AdminClient({"bootstrap.servers": root}) as client:
        new = NewTopic("t", 2, config={"cleanup.policy": "compact", "retention.ms": "-1"})
        client.create_topics([new])["t"].result(30)
        yield client


def described(admin: AdminClient) -> dict[str, ConfigEntry]:
    resource = ConfigResource("topic", "t")
    return admin.describe_configs([resource])[resource].result(30)


def set_by_topic(admin: AdminClient) -> dict[str, str | None]:
    return {entry.name: entry.value for entry in described(admin).values() if not entry.is_default}


def changed(
    admin: AdminClient, *changes: tuple[str, str | None, AlterConfigOpType], **arguments: bool
) -> int | None:
    """The error code of one incremental change, None if it was made."""
    entries = [
        ConfigEntry(name, value, incremental_operation=operation)
        for name, value, operation in changes
    ]
    resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=entries)
    error = admin.incremental_alter_configs([resource], **arguments)[resource].exception(30)
    return None if error is None else int(error.args[0].code())


def test_settings_are_described_with_value_and_source(admin):
    entries = described(admin)
    assert {
        name: (e.value, e.source.value, e.is_default, e.is_read_only) for name, e in entries.items()
    }.items() >= {
        "cleanup.policy": ("compact", 1, False, False),
        "compression.type": ("producer", 5, True, False),
        "delete.retention.ms": ("86400000", 5, True, False),
        "max.message.bytes": ("1048588", 5, True, False),
        "message.timestamp.after.max.ms": ("3600000", 5, True, False),
        "message.timestamp.type": ("CreateTime", 5, True, False),
        "retention.bytes": ("-1", 5, True, False),
        "retention.ms": ("-1", 1, False, False),
        "segment.bytes": ("134217728", 5, True, False),
        "unclean.leader.election.enable": ("false", 5, True, False),
    }.items()
    assert entries.keys() == TOPIC_SETTINGS.keys() - {"partitions"}
    assert str(entries["retention.ms"]) == 'retention.ms="-1"'
    assert entries["retention.ms"].source is ConfigSource.DYNAMIC_TOPIC_CONFIG


def test_settings_are_set_appended_subtracted_and_deleted_one_by_one(admin):
    assert (
        changed(admin, ("retention.ms", "5000", SET), ("cleanup.policy", "delete", APPEND)) is None
    )
    assert set_by_topic(admin) == {"cleanup.policy": "compact,delete", "retention.ms": "5000"}
    assert changed(admin, ("cleanup.policy", "delete", APPEND)) is None
    assert (
        changed(admin, ("cleanup.policy", "compact", SUBTRACT), ("retention.ms", None, DELETE))
        is None
    )
    assert set_by_topic(admin) == {"cleanup.policy": "delete"}
    entry = described(admin)["retention.ms"]
    assert (entry.value, entry.source, entry.is_default) == (
        "604800000",
        ConfigSource.DEFAULT_CONFIG,
        True,
    )


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("nope", "1", SET), KafkaError.INVALID_CONFIG),
        (("nope", None, DELETE), KafkaError.INVALID_CONFIG),
        (("retention.ms", "soon", SET), KafkaError.INVALID_CONFIG),
        (("retention.ms", None, SET), KafkaError.INVALID_CONFIG),
        (("retention.ms", "5", APPEND), KafkaError.INVALID_CONFIG),
        (("cleanup.policy", "shred", APPEND), KafkaError.INVALID_CONFIG),
        (("cleanup.policy", "delete,", SET), KafkaError.INVALID_CONFIG),
        (("partitions", "5", SET), KafkaError.INVALID_CONFIG),
        (("partitions", None, DELETE), KafkaError.INVALID_CONFIG),
    ],
)
def test_an_invalid_change_leaves_all_settings_unchanged(admin, change, code):
    before = described(admin)
    assert changed(admin, ("retention.bytes", "5", SET), change) == code
    assert described(admin) == before


def test_the_same_setting_twice_in_a_request_is_refused(admin):
    assert (
        changed(admin, ("retention.ms", "5", SET), ("retention.ms", "6", SET))
        == KafkaError.INVALID_REQUEST
    )


def test_a_change_that_is_only_validated_is_not_made(admin):
    before = described(admin)
    assert changed(admin, ("retention.ms", "5", SET), validate_only=True) is None
    assert (
        changed(admin, ("retention.ms", "x", SET), validate_only=True) == KafkaError.INVALID_CONFIG
    )
    assert described(admin) == before


def test_altering_all_settings_resets_those_that_are_not_named(admin, root):
    resource = ConfigResource("TOPIC", "t", {"retention.bytes": "7"})
    resource.set_config("segment.bytes", "2000000")
    resource.set_config("segment.bytes", "3000000", overwrite=False)
    with pytest.warns(DeprecationWarning, match="incremental_alter_configs"):
        answers = admin.alter_configs([resource])
    assert answers[resource].result(30) is None
    assert set_by_topic(admin) == {"retention.bytes": "7", "segment.bytes": "2000000"}
    description = Topic("t", bootstrap_servers=root).describe()
    assert (description.settings.retention_bytes, description.settings.partitions) == (7, 2)


def test_concurrent_appends_to_a_setting_both_apply(admin, root):
    assert changed(admin, ("cleanup.policy", None, DELETE)) is None
    others = [AdminClient(bootstrap_servers=root) for _ in range(6)]
    names = [
        "retention.ms",
        "retention.bytes",
        "segment.bytes",
        "flush.ms",
        "segment.ms",
        "delete.retention.ms",
    ]
    with ThreadPoolExecutor() as pool:
        codes = list(
            pool.map(lambda at: changed(others[at], (names[at], "2000000", SET)), range(6))
        )
    assert codes == [None] * 6
    assert set_by_topic(admin) == dict.fromkeys(names, "2000000")


def test_only_topics_that_exist_have_settings(admin):
    unknown, broker = ConfigResource("topic", "nope"), ConfigResource("broker", "0")
    answers = admin.describe_configs([unknown, broker])
    assert answers[unknown].exception(30).args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert answers[broker].exception(30).args[0].code() == KafkaError._UNSUPPORTED_FEATURE


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        pytest.param(lambda admin: admin.describe_configs([]), ValueError, id="no resources"),
        pytest.param(lambda admin: admin.describe_configs(["t"]), TypeError, id="a string"),
        pytest.param(
            lambda admin: admin.incremental_alter_configs([TOPIC]), ValueError, id="no changes"
        ),
        pytest.param(
            lambda admin: admin.incremental_alter_configs([UNSAID]), TypeError, id="no operation"
        ),
        pytest.param(
            lambda admin: ConfigResource("nothing", "t"), ValueError, id="an unknown type"
        ),
        pytest.param(lambda admin: ConfigResource(99, "t"), ValueError, id="an unknown number"),
        pytest.param(lambda admin: ConfigResource("topic", NOTHING), ValueError, id="no name"),
    ],
)
def test_a_request_for_settings_that_makes_no_sense_is_refused_at_once(admin, ask, error):
    with pytest.raises(error):
        ask(admin)


def test_resources_are_equal_and_ordered_by_type_and_name():
    topic = ConfigResource(2, "t", {"a": "b"})
    assert topic == ConfigResource(ConfigResource.Type.TOPIC, "t")
    assert len({topic, ConfigResource("topic", "t"), ConfigResource("group", "t")}) == 2
    assert sorted([ConfigResource("group", "a"), topic]) == [topic, ConfigResource("group", "a")]
    assert (len(topic), repr(topic)) == (1, "ConfigResource(ResourceType.TOPIC,t)")
    topic.add_incremental_config(ConfigEntry("a", "b"))
    assert [str(entry) for entry in topic.incremental_configs] == ['a="b"']


@pytest.mark.fault("M7", "M8")
@pytest.mark.parametrize(
    "changes",
    [
        [("metadata.max.retention.ms", "3600000")],
        [("file.delete.delay.ms", "-1")],
        [("min.compaction.lag.ms", "10"), ("max.compaction.lag.ms", "9")],
    ],
)
def test_retention_of_files_and_entries_below_the_minimum_is_refused(admin, changes):
    before = described(admin)
    assert (
        changed(admin, *((name, value, SET) for name, value in changes))
        == KafkaError.INVALID_CONFIG
    )
    assert {name: entry.value for name, entry in described(admin).items()} == {
        name: entry.value for name, entry in before.items()
    }
    with pytest.raises(InvalidConfig, match=r"retention\.ms|delay\.ms|lag\.ms"):
        admin.create_topics([NewTopic("another", config=dict(changes))])["another"].result(30)


@pytest.mark.parametrize(
    ("changes", "kept_ms"),
    [
        ([], 86_400_000),
        ([("file.delete.delay.ms", "60000")], 86_400_000),
        ([("file.delete.delay.ms", "0")], 86_400_000),
        ([("file.delete.delay.ms", "172800000")], 172_800_000),
        # Entries name files, which must be there.
        ([("metadata.max.retention.ms", "172800000")], 172_800_000),
        (
            [("file.delete.delay.ms", "90000000"), ("metadata.max.retention.ms", "172800000")],
            172_800_000,
        ),
    ],
)
def test_files_are_kept_for_a_day_and_as_long_as_entries_whatever_the_delay(
    admin, changes, kept_ms
):
    for name, value in changes:
        assert changed(admin, (name, value, SET)) is None
        assert described(admin)[name].value == value
    config = admin.describe_topics(TopicCollection(["t"]))["t"].result(30).settings
    assert config.files_kept_ms == kept_ms


def test_a_topic_without_a_cleanup_policy_keeps_everything(admin):
    assert changed(admin, ("cleanup.policy", "compact", SUBTRACT)) is None
    assert set_by_topic(admin)["cleanup.policy"] == ""
    assert changed(admin, ("cleanup.policy", "compact", SUBTRACT)) is None
    assert changed(admin, ("cleanup.policy", "delete", APPEND)) is None
    assert set_by_topic(admin)["cleanup.policy"] == "delete"
    assert changed(admin, ("cleanup.policy", "", SET)) is None
    assert (
        admin.describe_topics(TopicCollection(["t"]))["t"].result(30).settings.cleanup_policy == ()
    )


def test_retention_of_files_and_entries_can_be_raised_together(admin):
    assert changed(admin, ("file.delete.delay.ms", "172800000", SET)) is None
    assert changed(admin, ("metadata.max.retention.ms", "172800000", SET)) is None

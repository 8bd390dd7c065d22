"""`upsert_to_topic`: what it refuses before the query starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaq import AdminClient, InvalidConfig, Topic
from deltaq.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from deltaq.spark import upsert_to_topic


def test_a_topic_that_is_not_compacted_is_refused_until_it_is(root: str) -> None:
    Topic("sold", bootstrap_servers=root).create()
    with pytest.raises(InvalidConfig, match=r"alter cleanup\.policy to compact"):
        upsert_to_topic(root, "sold", "item")
    entry = ConfigEntry(
        "cleanup.policy", "compact,delete", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, "sold", incremental_configs=[entry])
    for future in (
        AdminClient({"bootstrap.servers": root}).incremental_alter_configs([resource]).values()
    ):
        future.result()
    upsert_to_topic(root, "sold", "item")


@pytest.mark.parametrize(
    ("topic", "key", "options", "match"),
    [
        ("a/b", "item", {}, "topic"),
        ("sold", [], {}, "name at least one grouping column"),
        ("sold", "item", {"txnVersion": "3"}, "the micro-batch numbers the write"),
        ("sold", "item", {"colums": "table"}, 'did you mean "columns"'),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    root: str, topic: str, key: list[str] | str, options: dict[str, str], match: str
) -> None:
    with pytest.raises(InvalidConfig, match=match):
        upsert_to_topic(root, topic, key, options)
    assert not Path(root).exists()

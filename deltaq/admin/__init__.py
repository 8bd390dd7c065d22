"""Administration of topics and groups: the classes of `confluent_kafka.admin`.

Modules:

* `client`: the admin client: calls that return one future for each topic, partition or resource
* `calls`, `call_order`: futures, threads and checks of arguments; calls wait for those before them
  about the same topic or group
* `topics`, `configs`, `records`: creating, growing and describing topics; their settings; deleting
  records before an offset
* `group_calls`, `groups`, `offset_copy`, `offsets`: consumer groups, read and changed as no member
  may; requests and results; offsets copied between groups and roots, and listed
* `share_calls`, `share_groups`: share groups; results
* `unsupported`: calls of Kafka's admin client that are refused
"""

from __future__ import annotations

from deltaq.admin.client import AdminClient
from deltaq.admin.configs import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from deltaq.admin.groups import (
    ConsumerGroupDescription,
    ConsumerGroupLag,
    ConsumerGroupListing,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    GroupMember,
    GroupMetadata,
    ListConsumerGroupsResult,
    MemberAssignment,
    MemberDescription,
    PartitionLag,
    PendingOffset,
)
from deltaq.admin.offsets import IsolationLevel, ListOffsetsResultInfo, OffsetSpec
from deltaq.admin.records import DeletedRecords
from deltaq.admin.share_groups import (
    ListShareGroupsResult,
    ShareGroupDescription,
    ShareGroupListing,
    ShareGroupMember,
    SharePartitionDescription,
)
from deltaq.admin.topics import NewPartitions, NewTopic, TopicCollection
from deltaq.metadata import (
    BrokerMetadata,
    ClusterMetadata,
    DescribeClusterResult,
    Node,
    PartitionMetadata,
    TopicDescription,
    TopicMetadata,
    TopicPartitionInfo,
)

__all__ = [
    "AdminClient",
    "AlterConfigOpType",
    "BrokerMetadata",
    "ClusterMetadata",
    "ConfigEntry",
    "ConfigResource",
    "ConfigSource",
    "ConsumerGroupDescription",
    "ConsumerGroupLag",
    "ConsumerGroupListing",
    "ConsumerGroupState",
    "ConsumerGroupTopicPartitions",
    "ConsumerGroupType",
    "DeletedRecords",
    "DescribeClusterResult",
    "GroupMember",
    "GroupMetadata",
    "IsolationLevel",
    "ListConsumerGroupsResult",
    "ListOffsetsResultInfo",
    "ListShareGroupsResult",
    "MemberAssignment",
    "MemberDescription",
    "NewPartitions",
    "NewTopic",
    "Node",
    "OffsetSpec",
    "PartitionLag",
    "PartitionMetadata",
    "PendingOffset",
    "ResourceType",
    "ShareGroupDescription",
    "ShareGroupListing",
    "ShareGroupMember",
    "SharePartitionDescription",
    "TopicCollection",
    "TopicDescription",
    "TopicMetadata",
    "TopicPartitionInfo",
]

"""Administration of topics and consumer groups: the classes of `confluent_kafka.admin`."""

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
)
from deltaq.admin.offsets import IsolationLevel, ListOffsetsResultInfo, OffsetSpec
from deltaq.admin.records import DeletedRecords
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
    "MemberAssignment",
    "MemberDescription",
    "NewPartitions",
    "NewTopic",
    "Node",
    "OffsetSpec",
    "PartitionLag",
    "PartitionMetadata",
    "ResourceType",
    "TopicCollection",
    "TopicDescription",
    "TopicMetadata",
    "TopicPartitionInfo",
]

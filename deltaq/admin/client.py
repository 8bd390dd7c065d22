"""The admin client. Calls do not block; they return one future for each topic, partition or
resource.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from deltaq.admin import call_order
from deltaq.admin.call_order import (
    ALL_GROUPS,
    ALL_TOPICS,
    Subject,
    Touched,
    Turn,
    changes,
    changes_group,
    changes_topic,
    reads,
    reads_group,
    reads_topic,
)
from deltaq.admin.calls import TIMEOUT_S, Calls, check_list, running_future
from deltaq.admin.configs import (
    ConfigEntry,
    ConfigResource,
    ResourceType,
    altered,
    altered_group,
    check_changes,
    described,
    described_group,
    replaced,
    replaced_group,
    topic_of,
)
from deltaq.admin.group_calls import GroupCalls
from deltaq.admin.groups import (
    ConsumerGroupDescription,
    ConsumerGroupLag,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    GroupMetadata,
    ListConsumerGroupsResult,
    check_filter,
    check_groups,
    check_offsets,
    named_partitions,
)
from deltaq.admin.offset_copy import copy_offsets, offsets_to_copy
from deltaq.admin.offsets import (
    IsolationLevel,
    ListOffsetsResultInfo,
    OffsetSpec,
    check_request,
    found_offset,
)
from deltaq.admin.records import DeletedRecords, checked_offsets, delete_before, trim
from deltaq.admin.share_calls import ShareGroupCalls
from deltaq.admin.topics import NewPartitions, NewTopic, TopicCollection, grown
from deltaq.admin.unsupported import UnsupportedCalls
from deltaq.clock import SYSTEM_CLOCK, Clock, checked_timeout
from deltaq.config import AdminConfig, check_topic_properties, parse_client_config
from deltaq.delta.actions import Metadata
from deltaq.errors import (
    InvalidConfig,
    KafkaError,
    KafkaException,
    TopicExists,
    Unavailable,
    UnknownTopic,
)
from deltaq.log_forwarding import forward_logs
from deltaq.message import TopicPartition
from deltaq.metadata import (
    ClusterMetadata,
    DescribeClusterResult,
    TopicDescription,
    cluster_id,
    describe_topic,
    list_topics,
    node_of,
)
from deltaq.root import open_root
from deltaq.store import Store
from deltaq.store.parallel import in_parallel, within
from deltaq.topic import Topic, checked_properties
from deltaq.topics.log import TopicLog
from deltaq.topics.maintenance_log import MaintenanceLog
from deltaq.topics.metadata import create_topic
from deltaq.topics.state import TopicChange, TopicHead
from deltaq.version import __version__

_LOG = logging.getLogger("deltaq.admin")


class AdminClient(ShareGroupCalls, UnsupportedCalls):
    """Administers topics and groups. Thread-safe. Mirrors
    `confluent_kafka.admin.AdminClient`.

    Calls check their arguments and return futures, whose `result()` raises KafkaException.
    `request_timeout` is the time in seconds after which a change that is not committed is given up.
    `operation_timeout` is accepted for compatibility and has no effect: a committed change is
    visible to all clients.

    The configuration is given as for `Producer`. Leaving the `with` block waits for all calls and
    their background work; after it, each call raises RuntimeError. Calls about the same topic or
    group take effect in the order in which they were made, also where their futures are not waited
    for.
    """

    def __init__(
        self,
        conf: Mapping[str, Any] | None = None,
        /,
        *,
        store: Store | None = None,
        clock: Clock = SYSTEM_CLOCK,
        **keywords: Any,
    ) -> None:
        self._config = parse_client_config(AdminConfig, conf, keywords)
        forward_logs(self._config.logger, self)
        self._clock = clock
        self._store = open_root(self._config, clock) if store is None else store
        self._calls = Calls(clock, self._config.error_cb)
        self._groups = GroupCalls(self._store, clock, self._config.client_id)
        started = self._config.client_id, self._store.url, __version__
        _LOG.info("admin client started client.id=%r root=%r version=%s", *started)

    # --- topics ---

    def create_topics(
        self,
        new_topics: list[NewTopic | Topic] | list[NewTopic] | list[Topic],
        *,
        operation_timeout: float = TIMEOUT_S,
        request_timeout: float = TIMEOUT_S,
        validate_only: bool = False,
    ) -> dict[str, Future[None]]:
        """Create topics, with the schema for a `Topic`. With `validate_only` nothing is created.

        Futures raise TopicExists, InvalidConfig (TOPIC_EXCEPTION, INVALID_PARTITIONS,
        INVALID_REPLICATION_FACTOR, INVALID_CONFIG, INVALID_REQUEST), UnsafeStore, OutcomeUnknown,
        Unavailable.
        """
        check_list(new_topics, (NewTopic, Topic), "NewTopic")
        for new in new_topics:
            if isinstance(new, NewTopic):
                new.check()
        deadline = self._calls.deadline(request_timeout, operation_timeout)
        named = {new.name: new for new in new_topics}
        times = Counter(new.name for new in new_topics)

        def create(name: str) -> None:
            if times[name] > 1:
                raise InvalidConfig(
                    "Duplicate topic name.", key="topic", code=KafkaError.INVALID_REQUEST
                )
            log = self._log(name)
            plan = named[name].plan(self._config.num_partitions)
            if not validate_only:
                create_topic(log, plan, deadline)
            elif log.load():
                raise TopicExists(name)

        return self._calls.each(
            named, create, reads_topic if validate_only else changes_topic, deadline
        )

    def delete_topics(
        self,
        topics: list[str],
        *,
        operation_timeout: float = TIMEOUT_S,
        request_timeout: float = TIMEOUT_S,
    ) -> dict[str, Future[None]]:
        """Delete topics and their records. The names can then be used for new topics. Futures raise
        UnknownTopic.
        """
        check_list(topics, (str,), "topic string")
        deadline = self._calls.deadline(request_timeout, operation_timeout)

        def delete(name: str) -> None:
            try:
                log = self._log(name)
                log.load()
            except InvalidConfig:
                raise UnknownTopic(name) from None  # no topic can have an invalid name
            log.delete(deadline)

        return self._calls.each(topics, delete, changes_topic, deadline)

    def create_partitions(
        self,
        new_partitions: list[NewPartitions],
        *,
        operation_timeout: float = TIMEOUT_S,
        request_timeout: float = TIMEOUT_S,
        validate_only: bool = False,
    ) -> dict[str, Future[None]]:
        """Add partitions to topics. Futures raise UnknownTopic, InvalidConfig
        (INVALID_PARTITIONS).
        """
        check_list(new_partitions, (NewPartitions,), "NewPartitions")
        for new in new_partitions:
            new.check()
        deadline = self._calls.deadline(request_timeout, operation_timeout)
        counts = {new.topic: new.new_total_count for new in new_partitions}

        def grow(name: str) -> None:
            self._change(
                name,
                lambda head, _: grown(head, counts[name]),
                deadline,
                validate_only=validate_only,
            )

        return self._calls.each(
            counts, grow, reads_topic if validate_only else changes_topic, deadline
        )

    def describe_topics(
        self,
        topics: TopicCollection,
        *,
        include_authorized_operations: bool = False,  # noqa: ARG002 - accepted: without ACLs there are none
        request_timeout: float = TIMEOUT_S,
    ) -> dict[str, Future[TopicDescription]]:
        """Describe topics. Futures raise UnknownTopic, Corrupt, Incompatible, Unavailable."""
        if not isinstance(topics, TopicCollection):
            raise TypeError("Expected input to be instance of TopicCollection")
        for at, name in enumerate(topics.topic_names):
            if not isinstance(name, str):
                raise TypeError(f"Expected list of topics strings, not {type(name).__name__}")
            if not name:
                raise ValueError(f"Empty topic name at index {at} isn't allowed")
        deadline = self._calls.deadline(request_timeout)
        return self._calls.each(topics.topic_names, self._describe_topic, reads_topic, deadline)

    def _describe_topic(self, name: str) -> TopicDescription:
        return describe_topic(self._store, self._clock, name)

    # --- settings ---

    def describe_configs(
        self, resources: list[ConfigResource], *, request_timeout: float = TIMEOUT_S
    ) -> dict[ConfigResource, Future[dict[str, ConfigEntry]]]:
        """All settings of topics and groups, by name. Futures raise UnknownTopic, Corrupt,
        Incompatible, Unavailable.
        """
        check_list(resources, (ConfigResource,), "ConfigResource")
        deadline = self._calls.deadline(request_timeout)

        def describe(resource: ConfigResource) -> dict[str, ConfigEntry]:
            if resource.restype is ResourceType.GROUP:
                return described_group(self._groups.share_log(resource.name).settings())
            log = self._log(topic_of(resource))
            log.load()
            return described(log.metadata.configuration)

        touches = _touches(reads_topic, reads_group)
        return self._calls.each(resources, describe, touches, deadline)

    def alter_configs(
        self,
        resources: list[ConfigResource],
        *,
        request_timeout: float = TIMEOUT_S,
        validate_only: bool = False,
    ) -> dict[ConfigResource, Future[None]]:
        """Set the settings in each resource's `set_config_dict`, and reset all others to their
        defaults.

        Deprecated: use `incremental_alter_configs`. Futures raise UnknownTopic, InvalidConfig
        (INVALID_CONFIG).
        """
        warnings.warn(
            "alter_configs is deprecated: use incremental_alter_configs",
            DeprecationWarning,
            stacklevel=2,
        )
        check_list(resources, (ConfigResource,), "ConfigResource")
        return self._alter(
            resources,
            lambda resource: checked_properties(resource.set_config_dict),
            lambda resource, properties: replaced(resource.set_config_dict, properties),
            lambda resource, _: replaced_group(resource.set_config_dict),
            self._calls.deadline(request_timeout),
            validate_only=validate_only,
        )

    def incremental_alter_configs(
        self,
        resources: list[ConfigResource],
        *,
        request_timeout: float = TIMEOUT_S,
        validate_only: bool = False,
    ) -> dict[ConfigResource, Future[None]]:
        """Make the changes in each resource's `incremental_configs`. They are atomic for each
        resource.

        A group need not exist. Futures raise UnknownTopic, InvalidConfig (INVALID_CONFIG),
        OutcomeUnknown, Unavailable.
        """
        check_list(resources, (ConfigResource,), "ConfigResource")
        for resource in resources:
            check_list(resource.incremental_configs, (ConfigEntry,), "ConfigEntry")
            for entry in resource.incremental_configs:
                if entry.incremental_operation is None:
                    raise TypeError(
                        f"{entry.name}: incremental_operation must be an AlterConfigOpType"
                    )
        return self._alter(
            resources,
            lambda resource: check_changes(resource.incremental_configs),
            lambda resource, properties: altered(resource.incremental_configs, properties),
            lambda resource, stored: altered_group(resource.incremental_configs, stored),
            self._calls.deadline(request_timeout),
            validate_only=validate_only,
        )

    def _alter(
        self,
        resources: list[ConfigResource],
        check: Callable[[ConfigResource], object],
        changes: Callable[[ConfigResource, Mapping[str, str]], Mapping[str, str | None]],
        of_group: Callable[[ConfigResource, Mapping[str, str]], Mapping[str, str]],
        deadline: float,
        *,
        validate_only: bool,
    ) -> dict[ConfigResource, Future[None]]:
        """`check` and `changes` are for topics; `of_group(resource, stored)` are the settings that
        a group is to store.
        """

        def alter_group(resource: ConfigResource) -> None:
            log = self._groups.share_log(resource.name)
            if validate_only:
                of_group(resource, log.settings())
            else:
                log.alter_settings(lambda stored: of_group(resource, stored), deadline)

        def alter(resource: ConfigResource) -> None:
            if resource.restype is ResourceType.GROUP:
                return alter_group(resource)
            check(resource)

            def decide(head: TopicHead, metadata: Metadata) -> TopicChange:
                changed = changes(resource, metadata.configuration)
                after = {**metadata.configuration, **changed}
                check_topic_properties(
                    {key: value for key, value in after.items() if value is not None}
                )
                return TopicChange(head.partitions, changed)

            return self._change(topic_of(resource), decide, deadline, validate_only=validate_only)

        touches = (
            _touches(reads_topic, reads_group)
            if validate_only
            else _touches(changes_topic, changes_group)
        )
        return self._calls.each(resources, alter, touches, deadline)

    def _change(
        self,
        topic: str,
        decide: Callable[[TopicHead, Metadata], TopicChange],
        deadline: float,
        *,
        validate_only: bool,
    ) -> None:
        log = self._log(topic)
        if validate_only:
            log.load()
            decide(log.live_head, log.metadata)
        else:
            log.change(decide, deadline)

    # --- offsets ---

    def list_offsets(
        self,
        topic_partition_offsets: dict[TopicPartition, OffsetSpec],
        *,
        isolation_level: IsolationLevel = IsolationLevel.READ_COMMITTED,
        request_timeout: float = TIMEOUT_S,
    ) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
        """Look up one offset of each partition: the first, the next, or one by time.

        Futures raise UnknownTopic, Corrupt, Incompatible, Unavailable.
        """
        check_request(topic_partition_offsets)
        if not isinstance(isolation_level, IsolationLevel):
            raise TypeError("isolation_level argument should be an IsolationLevel")
        deadline = self._calls.deadline(request_timeout)
        # All partitions of a topic use one TopicLog, so the log is read once.
        topics: dict[str, list[TopicPartition]] = {}
        for tp in topic_partition_offsets:
            topics.setdefault(tp.topic, []).append(tp)
        futures: dict[TopicPartition, Future[ListOffsetsResultInfo]]
        futures = {tp: running_future() for tp in topic_partition_offsets}

        def answer(topic: str, turn: Turn) -> None:
            logs: list[TopicLog] = []

            def found(tp: TopicPartition) -> ListOffsetsResultInfo:
                turn.wait()
                if not logs:
                    logs.append(TopicLog(self._store, topic, self._clock, indexed=True))
                return found_offset(self._store, logs[0], tp.partition, topic_partition_offsets[tp])

            for tp in topics[topic]:
                self._calls.complete(futures[tp], partial(found, tp))

        self._calls.begin(answer, list(topics), reads_topic, deadline)
        return futures

    def delete_records(
        self,
        topic_partition_offsets: list[TopicPartition],
        *,
        request_timeout: float = TIMEOUT_S,
        operation_timeout: float = TIMEOUT_S,
    ) -> dict[TopicPartition, Future[DeletedRecords]]:
        """Delete the records of each partition before its offset; OFFSET_END deletes all. One
        commit for each topic.

        Once the futures are done, no deltaq client reads those records. Files that also hold later
        records are then rewritten in the background, for other readers of the table.

        Futures raise UnknownTopic, OffsetOutOfRange, KafkaException (POLICY_VIOLATION for a topic
        that is only compacted, _INVALID_ARG for a partition named twice), OutcomeUnknown,
        Unavailable.
        """
        check_list(topic_partition_offsets, (TopicPartition,), "TopicPartition", may_be_empty=True)
        if any(tp.partition < 0 for tp in topic_partition_offsets):
            raise ValueError("'partition' cannot be negative")
        deadline = self._calls.deadline(request_timeout, operation_timeout)
        futures: dict[TopicPartition, Future[DeletedRecords]]
        futures = {tp: running_future() for tp in topic_partition_offsets}
        if len(futures) < len(topic_partition_offsets):
            reason = "Duplicate partitions not allowed"
            for future in futures.values():
                future.set_exception(KafkaException(KafkaError(KafkaError._INVALID_ARG, reason)))
            return futures
        topics: dict[str, dict[int, TopicPartition]] = {}
        for tp in topic_partition_offsets:
            topics.setdefault(tp.topic, {})[tp.partition] = tp
        logs: list[MaintenanceLog] = []

        def delete(topic: str, turn: Turn) -> None:
            asked = topics[topic]
            try:
                turn.wait()
                log = MaintenanceLog(
                    self._store, topic, self._clock, client_id=self._config.client_id
                )
                log.load()
                starts, wrong = checked_offsets(
                    log, {partition: tp.offset for partition, tp in asked.items()}
                )
                head = delete_before(log, starts, deadline)
            except BaseException as error:  # noqa: BLE001 - raised by the futures
                for tp in asked.values():
                    futures[tp].set_exception(self._calls.raised_by_future(error))
                return
            for partition, tp in asked.items():
                if partition in wrong:
                    futures[tp].set_exception(wrong[partition])
                else:
                    futures[tp].set_result(DeletedRecords(head.start_offsets[partition]))
            logs.append(log)

        # Rewriting large files takes long, so it starts after the futures of all topics are done.
        def trim_all() -> None:
            in_parallel(
                self._clock,
                lambda log: trim(self._store, log, self._clock, self._calls.rewrites),
                logs,
            )

        self._calls.begin(delete, list(topics), changes_topic, deadline, trim_all)
        return futures

    # --- consumer groups ---

    def list_consumer_groups(
        self,
        *,
        states: set[ConsumerGroupState] | None = None,
        types: set[ConsumerGroupType] | None = None,
        request_timeout: float = TIMEOUT_S,
    ) -> Future[ListConsumerGroupsResult]:
        """List the groups in one of these states and of one of these types; by default all. Reads
        the log of each.

        A group exists while it has members or committed offsets. The future raises Unavailable.
        """
        check_filter(states, ConsumerGroupState, "states")
        check_filter(types, ConsumerGroupType, "types")
        deadline = self._calls.deadline(request_timeout)
        return self._calls.one(
            lambda: self._groups.list_groups(states, types), reads(ALL_GROUPS), deadline
        )

    def list_groups(
        self, group: str | None = None, timeout: float | None = -1
    ) -> list[GroupMetadata]:
        """All groups with their members, or only `group`. Blocks up to `timeout` seconds (-1 or
        None: no limit).

        Superseded by `list_consumer_groups` and `describe_consumer_groups`. Raises Unavailable,
        KafkaException (_TIMED_OUT).
        """
        seconds = checked_timeout(timeout)
        subject = ALL_GROUPS if group is None else call_order.group(group)

        def ask() -> list[GroupMetadata]:
            try:
                return within(self._clock, seconds, lambda: self._groups.list_groups_old(group))
            except Unavailable as error:
                raise error.as_timeout() from None  # it may be the error itself

        return self._calls.after(reads(subject), seconds, ask)

    def describe_consumer_groups(
        self,
        group_ids: list[str],
        *,
        include_authorized_operations: bool = False,  # noqa: ARG002 - accepted: without ACLs there are none
        request_timeout: float = TIMEOUT_S,
    ) -> dict[str, Future[ConsumerGroupDescription]]:
        """Describe groups: state, members, and the partitions that each member owns. A group that
        does not exist is DEAD. Futures raise InvalidConfig (INVALID_GROUP_ID), Corrupt,
        Incompatible, Unavailable.
        """
        deadline = self._calls.deadline(request_timeout)
        return self._calls.each(
            check_groups(group_ids, "described"), self._groups.describe, reads_group, deadline
        )

    def delete_consumer_groups(
        self, group_ids: list[str], *, request_timeout: float = TIMEOUT_S
    ) -> dict[str, Future[None]]:
        """Delete groups and their offsets, also those that were sent to open transactions: these
        can still be committed, without the offsets.

        Members that have died do not prevent that: the call watches their heartbeats until it has
        found each one dead, which takes its `session.timeout.ms`, or one alive. Futures raise
        GroupInUse (NON_EMPTY_GROUP), KafkaException (GROUP_ID_NOT_FOUND), OutcomeUnknown,
        Unavailable.
        """
        deadline = self._calls.deadline(request_timeout)
        listed = check_groups(group_ids, "deleted")
        return self._calls.each(
            listed, lambda group: self._groups.delete(group, deadline), changes_group, deadline
        )

    def list_consumer_group_offsets(
        self,
        list_consumer_group_offsets_request: list[ConsumerGroupTopicPartitions],
        *,
        require_stable: bool = False,  # noqa: ARG002 - Kafka's signature
        request_timeout: float = TIMEOUT_S,
    ) -> dict[str, Future[ConsumerGroupTopicPartitions]]:
        """List the committed offsets of one group: of the partitions named, with OFFSET_INVALID
        where there is none, or of all that have one. Futures raise Corrupt, Incompatible,
        Unavailable.

        Offsets of open transactions are not listed. `require_stable` has no effect: Kafka refuses
        partitions that have such offsets, whose outcome here every new owner can decide.
        """
        asked = check_offsets(list_consumer_group_offsets_request, "listing", has_offsets=False)
        deadline = self._calls.deadline(request_timeout)
        touched = reads(call_order.group(asked.group_id), *_topics_of(asked))
        future = self._calls.one(
            lambda: self._groups.list_offsets(asked.group_id, asked.topic_partitions),
            touched,
            deadline,
        )
        return {asked.group_id: future}

    def alter_consumer_group_offsets(
        self,
        alter_consumer_group_offsets_request: list[ConsumerGroupTopicPartitions],
        *,
        request_timeout: float = TIMEOUT_S,
    ) -> dict[str, Future[ConsumerGroupTopicPartitions]]:
        """Set committed offsets of one group, which need not exist yet. They replace what was sent
        to open transactions before: a commit of these does not change them.

        In the result, a partition has its `error` set if it was not altered: UNKNOWN_TOPIC_OR_PART,
        or UNKNOWN_MEMBER_ID while the group has members. Members that have died are treated as in
        `delete_consumer_groups`. Futures raise OutcomeUnknown, Unavailable.
        """
        asked = check_offsets(alter_consumer_group_offsets_request, "altering", has_offsets=True)
        wanted, deadline = named_partitions(asked), self._calls.deadline(request_timeout)
        touched = changes(call_order.group(asked.group_id), reads=_topics_of(asked))
        future = self._calls.one(
            lambda: self._groups.alter_offsets(asked.group_id, wanted, deadline), touched, deadline
        )
        return {asked.group_id: future}

    def delete_consumer_group_offsets(
        self,
        delete_consumer_group_offsets_request: list[ConsumerGroupTopicPartitions],
        *,
        request_timeout: float = TIMEOUT_S,
    ) -> dict[str, Future[ConsumerGroupTopicPartitions]]:
        """Delete offsets of one group, also those that were sent to open transactions.
        confluent-kafka lacks this call; it is that of Kafka's Java client.

        In the result, a partition has its `error` set if its offset stays: UNKNOWN_TOPIC_OR_PART,
        or GROUP_SUBSCRIBED_TO_TOPIC while a member subscribes to its topic. Members that have died
        are treated as in `delete_consumer_groups`. Futures raise KafkaException
        (GROUP_ID_NOT_FOUND), OutcomeUnknown, Unavailable.
        """
        asked = check_offsets(delete_consumer_group_offsets_request, "deleting", has_offsets=False)
        wanted, deadline = named_partitions(asked), self._calls.deadline(request_timeout)
        touched = changes(call_order.group(asked.group_id), reads=_topics_of(asked))
        future = self._calls.one(
            lambda: self._groups.delete_offsets(asked.group_id, wanted, deadline), touched, deadline
        )
        return {asked.group_id: future}

    def consumer_group_lag(
        self, group_ids: list[str], *, request_timeout: float = TIMEOUT_S
    ) -> dict[str, Future[ConsumerGroupLag]]:
        """How far groups are behind: committed offset, end, lag and owner of each partition that a
        group has committed or subscribes to. confluent-kafka has no such call. Futures raise
        InvalidConfig (INVALID_GROUP_ID), Corrupt, Incompatible, Unavailable.
        """
        deadline = self._calls.deadline(request_timeout)

        def touches(group: str) -> Touched:
            return reads(call_order.group(group), ALL_TOPICS)

        return self._calls.each(
            check_groups(group_ids, "described"), self._groups.lag, touches, deadline
        )

    def copy_consumer_group_offsets(
        self,
        source: str,
        target: str,
        *,
        to: AdminClient | None = None,
        request_timeout: float = TIMEOUT_S,
    ) -> Future[ConsumerGroupTopicPartitions]:
        """Copy all committed offsets of the group `source` to the group `target`, or none of them.

        With `to`, the target is a group in the root of that client. Its topics have to hold the
        same records at the same offsets: the record at each committed offset is compared, or the
        one before it where a topic ends there. The target may exist, but must have no members;
        other offsets that it has stay.

        The future raises KafkaException (GROUP_ID_NOT_FOUND; UNKNOWN_TOPIC_OR_PART,
        OFFSET_OUT_OF_RANGE or _LOG_TRUNCATION for partitions that differ in the other root), Fenced
        (UNKNOWN_MEMBER_ID), OutcomeUnknown, Unavailable.
        """
        deadline = self._calls.deadline(request_timeout)
        target_groups = self._groups if to is None else to._groups
        changed = [call_order.group(target)] if to is None else []
        touched = changes(*changed, reads=[call_order.group(source), ALL_TOPICS])

        def copy() -> ConsumerGroupTopicPartitions:
            offsets = offsets_to_copy(self._groups, source)
            return copy_offsets(self._groups, offsets, target_groups, target, deadline)

        return self._calls.one(copy, touched, deadline)

    # --- the cluster ---

    def list_topics(self, topic: str | None = None, timeout: float | None = -1) -> ClusterMetadata:
        """All topics, or only `topic`, with their partitions. Blocks up to `timeout` seconds (-1 or
        None: no limit).

        A topic that cannot be read has its `error` set, and so does `topic` if it does not exist.
        Raises Unavailable, KafkaException (_TIMED_OUT).
        """
        subject = ALL_TOPICS if topic is None else call_order.topic(topic)
        seconds = checked_timeout(timeout)
        return self._calls.after(
            reads(subject), seconds, lambda: list_topics(self._store, self._clock, topic, timeout)
        )

    def describe_cluster(
        self,
        *,
        include_authorized_operations: bool = False,  # noqa: ARG002 - accepted: without ACLs there are none
        request_timeout: float = TIMEOUT_S,
    ) -> Future[DescribeClusterResult]:
        """The synthetic broker that represents the store. Does no I/O."""
        self._calls.deadline(request_timeout)
        node = node_of(self._store)
        future: Future[DescribeClusterResult] = running_future()
        future.set_result(DescribeClusterResult(node, [node], cluster_id(self._store)))
        return future

    def cluster_id(self, timeout: float | None = -1) -> str:  # noqa: ARG002 - Kafka's signature; needs no I/O
        """A stable id derived from the root URL."""
        self._calls.check_open()
        return cluster_id(self._store)

    def poll(self, timeout: float | None = -1) -> int:  # noqa: ARG002 - Kafka's signature
        """Call `error_cb` for what has failed since the last call, and return at once: futures
        complete without `poll`. Returns how often it was called. Raises what it raises.
        """
        self._calls.check_open()
        return self._calls.run_callbacks()

    def set_sasl_credentials(self, username: str, password: str) -> None:  # noqa: ARG002 - Kafka's signature
        """Has no effect: a store takes its credentials from the `store.*` settings or from the
        environment.
        """
        self._calls.check_open()

    # --- implementation ---

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(self, *error: object) -> None:
        self._calls.close()

    def __repr__(self) -> str:
        return f"<AdminClient {self._store.url} {self._config.client_id!r}>"

    def _log(self, topic: str) -> TopicLog:
        return TopicLog(self._store, topic, self._clock, client_id=self._config.client_id)


def _topics_of(asked: ConsumerGroupTopicPartitions) -> list[Subject]:
    """The topics of a request about a group: all for one that names no partitions."""
    if asked.topic_partitions is None:
        return [ALL_TOPICS]
    return [call_order.topic(tp.topic) for tp in asked.topic_partitions]


def _touches(
    topic: Callable[[str], Touched], group: Callable[[str], Touched]
) -> Callable[[ConfigResource], Touched]:
    """What a call about the settings of a resource touches."""
    return lambda resource: (group if resource.restype is ResourceType.GROUP else topic)(
        resource.name
    )

"""`_AdminClientImpl` of the C module: `AdminClient`, whose calls give one future the results of all
their keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from deltaq.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    IsolationLevel,
    OffsetSpec,
    TopicCollection,
)
from deltaq.admin.calls import complete
from deltaq.clock import SYSTEM_CLOCK
from deltaq.compat.cimpl.answers import as_theirs
from deltaq.compat.confluent.admin import AdminClient
from deltaq.errors import KafkaError, KafkaException
from deltaq.message import TopicPartition

K = TypeVar("K")


class AdminClientImpl:
    """The methods that confluent-kafka's `AdminClient` calls. Each takes `future` and gives it a
    dict or list with the value or KafkaError of each key. Requests and answers have the attributes
    of confluent-kafka's classes.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._client = AdminClient(*arguments, **keywords)

    # --- topics ---

    def create_topics(self, topics: list[Any], future: Future[Any], **keywords: Any) -> None:
        """{topic: KafkaError or None}"""
        _finish(future, self._client.create_topics(topics, **_timeouts(keywords)), dict)

    def delete_topics(self, topics: list[str], future: Future[Any], **keywords: Any) -> None:
        """{topic: KafkaError or None}"""
        _finish(future, self._client.delete_topics(topics, **_timeouts(keywords)), dict)

    def create_partitions(self, topics: list[Any], future: Future[Any], **keywords: Any) -> None:
        """{topic: KafkaError or None}"""
        _finish(future, self._client.create_partitions(topics, **_timeouts(keywords)), dict)

    def describe_topics(self, topic_names: list[str], future: Future[Any], **keywords: Any) -> None:
        """[TopicDescription or KafkaError]"""
        _finish(
            future,
            self._client.describe_topics(TopicCollection(topic_names), **_timeouts(keywords)),
            _values,
        )

    def list_topics(self, topic: str | None = None, timeout: float | None = -1) -> Any:
        """All topics, or one."""
        return as_theirs(self._client.list_topics(topic, timeout))

    def describe_cluster(self, future: Future[Any], **keywords: Any) -> None:
        """DescribeClusterResult"""
        _finish_one(future, self._client.describe_cluster(**_timeouts(keywords)))

    def cluster_id(self, timeout: float | None = -1) -> str:
        """The id of the root."""
        return self._client.cluster_id(timeout)

    # --- settings ---

    def describe_configs(self, resources: list[Any], future: Future[Any], **keywords: Any) -> None:
        """{resource: {name: ConfigEntry}}; the `error` of a resource is set if there is one."""
        self._configs(self._client.describe_configs, resources, future, keywords)

    def alter_configs(self, resources: list[Any], future: Future[Any], **keywords: Any) -> None:
        """{resource: None}, as `describe_configs`."""
        self._configs(self._client.alter_configs, resources, future, keywords)

    def incremental_alter_configs(
        self, resources: list[Any], future: Future[Any], **keywords: Any
    ) -> None:
        """{resource: None}, as `describe_configs`."""
        self._configs(self._client.incremental_alter_configs, resources, future, keywords)

    def _configs(
        self,
        call: Callable[..., Mapping[ConfigResource, Future[Any]]],
        resources: list[Any],
        future: Future[Any],
        keywords: dict[str, Any],
    ) -> None:
        keywords.pop("broker", None)
        ours = {_resource(each): each for each in resources}

        def shape(results: Mapping[ConfigResource, Any]) -> dict[Any, Any]:
            for resource, result in results.items():
                ours[resource].error = result if isinstance(result, KafkaError) else None
            return {ours[resource]: result for resource, result in results.items()}

        _finish(future, call(list(ours), **_timeouts(keywords)), shape)

    # --- offsets and records ---

    def list_offsets(
        self,
        topic_partitions: list[TopicPartition],
        future: Future[Any],
        isolation_level_value: int | None = None,
        **keywords: Any,
    ) -> None:
        """{partition: ListOffsetsResultInfo or KafkaError}"""
        if isolation_level_value is not None:
            keywords["isolation_level"] = IsolationLevel(isolation_level_value)
        wanted = {tp: OffsetSpec(tp.offset) for tp in topic_partitions}
        _finish(future, self._client.list_offsets(wanted, **_timeouts(keywords)), dict)

    def delete_records(
        self, topic_partition_offsets: list[TopicPartition], future: Future[Any], **keywords: Any
    ) -> None:
        """{partition: DeletedRecords or KafkaError}"""
        _finish(
            future,
            self._client.delete_records(topic_partition_offsets, **_timeouts(keywords)),
            dict,
        )

    # --- groups ---

    def list_groups(self, group: str | None = None, timeout: float | None = -1) -> Any:
        """All groups, or one."""
        return as_theirs(self._client.list_groups(group, timeout))

    def list_consumer_groups(
        self,
        future: Future[Any],
        states_int: Iterable[int] | None = None,
        types_int: Iterable[int] | None = None,
        **keywords: Any,
    ) -> None:
        """ListConsumerGroupsResult"""
        states = None if states_int is None else set(map(ConsumerGroupState, states_int))
        types = None if types_int is None else set(map(ConsumerGroupType, types_int))
        _finish_one(
            future,
            self._client.list_consumer_groups(states=states, types=types, **_timeouts(keywords)),
        )

    def describe_consumer_groups(
        self, group_ids: list[str], future: Future[Any], **keywords: Any
    ) -> None:
        """[ConsumerGroupDescription or KafkaError]"""
        _finish(
            future, self._client.describe_consumer_groups(group_ids, **_timeouts(keywords)), _values
        )

    def delete_consumer_groups(
        self, group_ids: list[str], future: Future[Any], **keywords: Any
    ) -> None:
        """[None or KafkaError]"""
        _finish(
            future, self._client.delete_consumer_groups(group_ids, **_timeouts(keywords)), _values
        )

    def list_consumer_group_offsets(
        self, request: list[Any], future: Future[Any], **keywords: Any
    ) -> None:
        """[ConsumerGroupTopicPartitions or KafkaError]"""
        asked = [
            ConsumerGroupTopicPartitions(each.group_id, each.topic_partitions) for each in request
        ]
        _finish(
            future, self._client.list_consumer_group_offsets(asked, **_timeouts(keywords)), _values
        )

    def alter_consumer_group_offsets(
        self, requests: list[Any], future: Future[Any], **keywords: Any
    ) -> None:
        """[ConsumerGroupTopicPartitions or KafkaError]"""
        asked = [
            ConsumerGroupTopicPartitions(each.group_id, each.topic_partitions) for each in requests
        ]
        _finish(
            future, self._client.alter_consumer_group_offsets(asked, **_timeouts(keywords)), _values
        )

    # --- what only brokers have ---

    def create_acls(self, acls: list[Any], future: Future[Any], **keywords: Any) -> None:
        """Refused."""
        _finish(future, self._client.create_acls(acls, **keywords), _values)

    def describe_acls(self, acl_binding_filter: Any, future: Future[Any], **keywords: Any) -> None:
        """Refused."""
        _finish_one(future, self._client.describe_acls(acl_binding_filter, **keywords))

    def delete_acls(self, acls: list[Any], future: Future[Any], **keywords: Any) -> None:
        """Refused."""
        _finish(future, self._client.delete_acls(acls, **keywords), _values)

    def describe_user_scram_credentials(
        self, users: list[str] | None, future: Future[Any], **keywords: Any
    ) -> None:
        """Refused."""
        found = self._client.describe_user_scram_credentials(users, **keywords)
        if isinstance(found, Future):
            _finish_one(future, found)
        else:
            _finish(future, found, dict)

    def alter_user_scram_credentials(
        self, alterations: list[Any], future: Future[Any], **keywords: Any
    ) -> None:
        """Refused."""
        _finish(future, self._client.alter_user_scram_credentials(alterations, **keywords), dict)

    def elect_leaders(
        self, election_type: int, partitions: Any, future: Future[Any], **keywords: Any
    ) -> None:
        """Refused."""
        _finish_one(future, self._client.elect_leaders(election_type, partitions, **keywords))

    # --- the rest ---

    def poll(self, timeout: float | None = -1) -> int:
        """The number of events served: none."""
        return self._client.poll(timeout)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Has no effect."""
        self._client.set_sasl_credentials(username, password)

    def __enter__(self) -> AdminClientImpl:
        self._client.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._client.__exit__(*error)


def _timeouts(keywords: dict[str, Any]) -> dict[str, Any]:
    """The keywords without timeouts that mean the default."""
    return {
        name: value
        for name, value in keywords.items()
        if not (name.endswith("_timeout") and value == -1)
    }


def _resource(theirs: Any) -> ConfigResource:
    changes = [
        ConfigEntry(
            each.name,
            each.value,
            incremental_operation=AlterConfigOpType(each.incremental_operation.value),
        )
        for each in theirs.incremental_configs
    ]
    return ConfigResource(
        theirs.restype.value, theirs.name, theirs.set_config_dict, incremental_configs=changes
    )


def _values(results: Mapping[Any, Any]) -> list[Any]:
    return list(results.values())


def _finish(
    future: Future[Any], parts: Mapping[K, Future[Any]], shape: Callable[[Mapping[K, Any]], Any]
) -> None:
    """Give `future` the results of all parts once they are there, in the form that `shape` makes of
    them.
    """
    results: dict[K, Any] = dict.fromkeys(parts)
    missing = set(parts)
    lock = SYSTEM_CLOCK.lock()

    def finished(key: K, part: Future[Any]) -> None:
        error = part.exception()
        results[key] = part.result() if error is None else _kafka_error(error)
        with lock:
            missing.discard(key)
            is_last = not missing
        if is_last:
            # An exception inside this callback would only be logged, and the future would never
            # end.
            complete(future, lambda: shape(as_theirs(results)))

    if not parts:
        complete(future, lambda: shape(results))
    for key, part in parts.items():
        part.add_done_callback(partial(finished, key))


def _finish_one(future: Future[Any], part: Future[Any]) -> None:
    part.add_done_callback(lambda done: complete(future, lambda: as_theirs(done.result())))


def _kafka_error(error: BaseException) -> KafkaError:
    if isinstance(error, KafkaException):
        return error.error
    return KafkaError(KafkaError._FAIL, f"{type(error).__name__}: {error}")

"""The calls of Kafka's admin client that deltaq refuses: access control, users, election of
leaders.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from deltaq.admin.calls import unsupported
from deltaq.errors import KafkaException
from deltaq.message import TopicPartition

_NO_ACLS = "deltaq has no ACLs: the permissions of the store control access"
_NO_USERS = "deltaq has no users: credentials are those of the store"


class UnsupportedCalls:
    """Calls whose futures raise KafkaException (_UNSUPPORTED_FEATURE)."""

    def create_acls(self, acls: list[Any], **_: Any) -> dict[Any, Future[None]]:
        """Futures raise KafkaException (_UNSUPPORTED_FEATURE)."""
        return {acl: unsupported(_NO_ACLS) for acl in acls}

    def describe_acls(self, acl_binding_filter: Any, **_: Any) -> Future[list[Any]]:  # noqa: ARG002 - Kafka's signature
        """The future raises KafkaException (_UNSUPPORTED_FEATURE)."""
        return unsupported(_NO_ACLS)

    def delete_acls(self, acl_binding_filters: list[Any], **_: Any) -> dict[Any, Future[list[Any]]]:
        """Futures raise KafkaException (_UNSUPPORTED_FEATURE)."""
        return {binding: unsupported(_NO_ACLS) for binding in acl_binding_filters}

    def describe_user_scram_credentials(
        self, users: list[str] | None = None, **_: Any
    ) -> dict[str, Future[Any]] | Future[dict[str, Any]]:
        """Futures raise KafkaException (_UNSUPPORTED_FEATURE)."""
        if users is None:
            return unsupported(_NO_USERS)
        return {user: unsupported(_NO_USERS) for user in users}

    def alter_user_scram_credentials(
        self, alterations: list[Any], **_: Any
    ) -> dict[str, Future[None]]:
        """Futures raise KafkaException (_UNSUPPORTED_FEATURE)."""
        return {alteration.user: unsupported(_NO_USERS) for alteration in alterations}

    def elect_leaders(
        self,
        election_type: Any,  # noqa: ARG002 - Kafka's signature
        partitions: list[TopicPartition] | None = None,  # noqa: ARG002 - Kafka's signature
        **_: Any,
    ) -> Future[dict[TopicPartition, KafkaException | None]]:
        """The future raises KafkaException (_UNSUPPORTED_FEATURE)."""
        return unsupported("deltaq partitions have no leaders to elect")

"""The transactional methods of `confluent_kafka.Producer`, which are refused: this version has no
transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from deltaq.errors import InvalidConfig, KafkaError, KafkaException
from deltaq.message import TopicPartition


class RefusedTransactions:
    """Methods that raise KafkaException (_UNSUPPORTED_FEATURE), so that a program learns why
    instead of that a name is missing.
    """

    def init_transactions(self, timeout: float | None = -1, /) -> NoReturn:
        """Refused."""
        _refuse("init_transactions", timeout)

    def begin_transaction(self) -> NoReturn:
        """Refused."""
        _refuse("begin_transaction")

    def send_offsets_to_transaction(
        self,
        positions: Sequence[TopicPartition],
        group_metadata: object,
        timeout: float | None = -1,
        /,
    ) -> NoReturn:
        """Refused."""
        _refuse("send_offsets_to_transaction", positions, group_metadata, timeout)

    def commit_transaction(self, timeout: float | None = -1, /) -> NoReturn:
        """Refused."""
        _refuse("commit_transaction", timeout)

    def abort_transaction(self, timeout: float | None = -1, /) -> NoReturn:
        """Refused."""
        _refuse("abort_transaction", timeout)


def refuse_transactional(transactional_id: str | None) -> None:
    """Raises InvalidConfig (_UNSUPPORTED_FEATURE) for a configured `transactional.id`."""
    if transactional_id is not None:
        raise InvalidConfig(
            "transactional.id: this version of deltaq has no transactions; leave it out",
            key="transactional.id",
            code=KafkaError._UNSUPPORTED_FEATURE,
        )


def _refuse(method: str, *_arguments: object) -> NoReturn:
    reason = f"{method}(): this version of deltaq has no transactions"
    raise KafkaException(KafkaError(KafkaError._UNSUPPORTED_FEATURE, reason))

"""The methods of Confluent's registry clients for associations of topics with subjects, which are
refused.
"""

from __future__ import annotations

from typing import NoReturn

from deltaq.errors import KafkaError, KafkaException


class RefusedAssociations:
    """Methods that raise KafkaException (_UNSUPPORTED_FEATURE), so that a program learns why
    instead of that a name is missing.
    """

    def create_association(self, *_arguments: object, **_keywords: object) -> NoReturn:
        """Refused."""
        _refuse("create_association")

    def get_associations_by_resource_name(
        self, *_arguments: object, **_keywords: object
    ) -> NoReturn:
        """Refused."""
        _refuse("get_associations_by_resource_name")

    def delete_associations(self, *_arguments: object, **_keywords: object) -> NoReturn:
        """Refused."""
        _refuse("delete_associations")


def _refuse(method: str) -> NoReturn:
    reason = (
        f"{method}(): no subjects are associated with topics; a subject.name.strategy names them"
    )
    raise KafkaException(KafkaError(KafkaError._UNSUPPORTED_FEATURE, reason))

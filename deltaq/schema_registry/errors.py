"""Errors of the schema registry, with the codes that Confluent's registry answers with."""

from __future__ import annotations

from deltaq.errors import InvalidConfig, KafkaError, KafkaException


class SchemaRegistryError(KafkaException):
    """The registry refused the request, and nothing changed. `error_code` says why, as in
    Confluent's registry.

    409: the schema is incompatible; change it, or the subject's compatibility. 404xx: there is no
    such subject, version or schema. 422xx: the schema or an argument is invalid, a version is
    referenced, or the subject is read-only.
    """

    UNKNOWN = -1

    def __init__(self, http_status_code: int, error_code: int, error_message: str) -> None:
        super().__init__(KafkaError(KafkaError.INVALID_REQUEST, error_message))
        self.http_status_code = http_status_code
        self.error_code = error_code
        self.error_message = error_message

    def __str__(self) -> str:
        return (
            f"{self.error_message} (HTTP status code {self.http_status_code}, SR code "
            f"{self.error_code})"
        )

    __repr__ = __str__


class InvalidSetting(InvalidConfig, ValueError):
    """A setting or an argument of a registry client or of a serializer is invalid. Correct what
    `key` names.

    It is a ValueError too, which confluent-kafka raises.
    """


SUBJECT_NOT_FOUND = 40401
VERSION_NOT_FOUND = 40402
SCHEMA_NOT_FOUND = 40403
SUBJECT_SOFT_DELETED = 40404
SUBJECT_NOT_SOFT_DELETED = 40405
VERSION_SOFT_DELETED = 40406
VERSION_NOT_SOFT_DELETED = 40407
NO_SUBJECT_COMPATIBILITY = 40408
NO_SUBJECT_MODE = 40409
INCOMPATIBLE = 409
INVALID_SCHEMA = 42201
INVALID_VERSION = 42202
INVALID_COMPATIBILITY = 42203
INVALID_MODE = 42204
NOT_PERMITTED = 42205
REFERENCE_EXISTS = 42206
INVALID_SUBJECT = 42208
SCHEMA_TOO_LARGE = 42209


def registry_error(code: int, reason: str) -> SchemaRegistryError:
    """The error of a code; its first three digits are the HTTP status."""
    return SchemaRegistryError(int(str(code)[:3]), code, reason)

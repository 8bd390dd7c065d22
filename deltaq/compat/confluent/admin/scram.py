"""SCRAM credentials of Kafka's users, as values. The store has its own users here."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class ScramMechanism(Enum):
    """Kafka's SCRAM mechanisms."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


@dataclass(frozen=True, slots=True)
class ScramCredentialInfo:
    """A mechanism and its number of iterations."""

    mechanism: ScramMechanism
    iterations: int


@dataclass(frozen=True, slots=True)
class UserScramCredentialsDescription:
    """The credentials of a user."""

    user: str
    scram_credential_infos: list[ScramCredentialInfo]


@dataclass(frozen=True, slots=True)
class UserScramCredentialAlteration:
    """A change of a user's credentials, for `AdminClient.alter_user_scram_credentials`, which is
    refused.
    """

    user: str


@dataclass(frozen=True, slots=True)
class UserScramCredentialUpsertion(UserScramCredentialAlteration):
    """A credential to create or replace."""

    scram_credential_info: ScramCredentialInfo
    password: bytes = field(repr=False)
    salt: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class UserScramCredentialDeletion(UserScramCredentialAlteration):
    """A credential to delete."""

    mechanism: ScramMechanism

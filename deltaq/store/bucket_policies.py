"""Policy documents for the roles of a root in a bucket. Pure functions.

S3 policies permit requests and do not see their content: a producer that may create log entries may
create one that removes records from the topic. A policy can prevent a producer from deleting
objects and, on AWS, from overwriting log entries.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from deltaq.names import (
    GROUPS_FOLDER,
    LOG_FOLDER,
    SCHEMAS_FOLDER,
    TOPICS_FOLDER,
    TRANSACTIONS_FOLDER,
    holds_folder,
    last_checkpoint,
    view_state_folder,
)
from deltaq.store.probe import PROBE_FOLDER

Role: TypeAlias = Literal["reader", "producer", "maintainer"]
Dialect: TypeAlias = Literal["aws", "minio"]
Document: TypeAlias = dict[str, Any]

ROLES: tuple[Role, ...] = get_args(Role)

_NAME_LENGTH = 128
"""Maximum characters of a policy's name: the limit of AWS."""

_SPECIAL = re.compile(r"[*?$]")


def role_policies(
    root: str, bucket: str, prefix: str, dialect: Dialect, region: str = ""
) -> dict[Role, Document]:
    """The policy document of each role for the root in `bucket` below `prefix` (empty: the whole
    bucket).

    `dialect` is the server's. `minio` does not support the condition key `s3:if-none-match`, nor
    conditions that apply only if their key exists. `region` determines the partition in AWS
    resource names. ValueError, with `root`, for a prefix with `*`, `?` or `$`: these are wildcards
    or variables in a policy, and would permit more than the root.
    """
    if found := _SPECIAL.search(prefix):
        raise ValueError(
            f"{root}: policies give {found[0]!r} a meaning of its own; use a prefix without it"
        )
    place = _BucketRoot(bucket, prefix, dialect, _partition(region))
    every: list[Document] = [
        place.allow_list(),
        place.allow("ReadRoot", _READ, "*"),
        place.allow("ProveStore", _WRITE + _DELETE, f"{PROBE_FOLDER}*"),
    ]
    pointer = last_checkpoint(f"*/{LOG_FOLDER}")
    schemas = SCHEMAS_FOLDER + LOG_FOLDER
    holds, view_states = (of(f"{TOPICS_FOLDER}*/") for of in (holds_folder, view_state_folder))
    statements: dict[Role, list[Document]] = {
        "reader": [
            *every,
            place.allow(
                "CommitOffsets", _WRITE, f"{GROUPS_FOLDER}*/{LOG_FOLDER}*.json", creates=True
            ),
            place.allow(
                "WriteGroupCheckpoints",
                _WRITE,
                f"{GROUPS_FOLDER}*/{LOG_FOLDER}*.checkpoint.parquet",
                f"{GROUPS_FOLDER}{pointer}",
            ),
            place.allow("BeatInGroups", _WRITE + _DELETE, f"{GROUPS_FOLDER}*/_members/*"),
        ],
        "producer": [
            *every,
            place.allow(
                "CommitToTopics", _WRITE, f"{TOPICS_FOLDER}*/{LOG_FOLDER}*.json", creates=True
            ),
            # Includes checkpoints, which have the same suffix as data files.
            place.allow("UploadDataFiles", _WRITE + _PARTS, f"{TOPICS_FOLDER}*.parquet"),
            place.allow("PointToCheckpoints", _WRITE, f"{TOPICS_FOLDER}{pointer}"),
            place.allow(
                "DecideTransactions",
                _WRITE,
                f"{TRANSACTIONS_FOLDER}*/{LOG_FOLDER}*.json",
                creates=True,
            ),
            place.allow(
                "WriteTransactionCheckpoints",
                _WRITE,
                f"{TRANSACTIONS_FOLDER}*/{LOG_FOLDER}*.checkpoint.parquet",
                f"{TRANSACTIONS_FOLDER}{pointer}",
            ),
            # A program that publishes results of topics holds what it needs to verify them, and
            # saves its state.
            place.allow("HoldTopics", _WRITE + _DELETE, f"{holds}*.json"),
            place.allow("SaveState", _WRITE + _DELETE + _PARTS, f"{view_states}*"),
            # Serializers register the schemas of what a producer writes, unless
            # `auto.register.schemas` is False.
            place.allow("RegisterSchemas", _WRITE, f"{schemas}*.json", creates=True),
            place.allow(
                "WriteSchemaCheckpoints",
                _WRITE,
                f"{schemas}*.checkpoint.parquet",
                last_checkpoint(schemas),
            ),
        ],
        "maintainer": [
            every[0],
            place.allow("MaintainRoot", _READ + _WRITE + _DELETE + _PARTS, "*"),
        ],
    }
    return {role: {"Version": "2012-10-17", "Statement": statements[role]} for role in ROLES}


def policy_name(role: Role, bucket: str, prefix: str) -> str:
    """The name of a policy, unique for each root, e.g. `deltaq-reader-events+production`."""
    path = f"{bucket}/{prefix}".rstrip("/")
    safe = re.sub(r"[^A-Za-z0-9._/-]", lambda found: f"={ord(found[0]):02x}", path).replace(
        "/", "+"
    )
    return shortened(f"deltaq-{role}-{safe}", _NAME_LENGTH)


def shortened(text: str, limit: int) -> str:
    """`text`, or its beginning and a hash of the whole text if it is longer than `limit`
    characters.
    """
    if len(text) <= limit:
        return text
    return f"{text[: limit - 17]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def same_policy(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two documents are equivalent: servers return statements, actions and resources in
    another order.
    """
    return _normal(one) == _normal(other)


@dataclass(frozen=True)
class _BucketRoot:
    bucket: str
    prefix: str
    dialect: Dialect
    partition: str

    @property
    def bucket_arn(self) -> str:
        return f"arn:{self.partition}:s3:::{self.bucket}"

    def allow(
        self, sid: str, actions: Iterable[str], *patterns: str, creates: bool = False
    ) -> Document:
        """A statement about objects by patterns of their keys. With `creates`, requests that could
        overwrite an object are excluded on servers that can distinguish them.
        """
        condition: Document = (
            {"Null": {"s3:if-none-match": "false"}} if creates and self.dialect == "aws" else {}
        )
        below = f"{self.prefix}/" if self.prefix else ""
        return _statement(
            sid, actions, [f"{self.bucket_arn}/{below}{pattern}" for pattern in patterns], condition
        )

    def allow_list(self) -> Document:
        condition: Document = {}
        if self.prefix:
            # Not the prefix without a slash, which would list the names of `production/` to the
            # users of `prod`.
            condition = {"StringLike": {"s3:prefix": [f"{self.prefix}/*"]}}
            if self.dialect == "aws":
                # Every consumer reads the next log entry before it exists. S3 answers 403 instead
                # of 404 for a missing object unless ListBucket is allowed, which it checks without
                # a prefix. So names are not hidden here.
                condition = {
                    "StringLikeIfExists": {"s3:prefix": ["", self.prefix, f"{self.prefix}/*"]}
                }
        return _statement("ListRoot", ["s3:ListBucket"], [self.bucket_arn], condition)


_READ = ("s3:GetObject",)
_WRITE = ("s3:PutObject",)
_DELETE = ("s3:DeleteObject",)
_PARTS = ("s3:AbortMultipartUpload", "s3:ListMultipartUploadParts")


def _statement(
    sid: str, actions: Iterable[str], resources: list[str], condition: Document
) -> Document:
    statement = {"Sid": sid, "Effect": "Allow", "Action": list(actions), "Resource": resources}
    return statement | ({"Condition": condition} if condition else {})


def _partition(region: str) -> str:
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def _normal(value: object) -> object:
    """A canonical form of a document: independent of the order of lists, and of whether a single
    value is in a list.
    """
    if isinstance(value, Mapping):
        return json.dumps({key: _normal(inner) for key, inner in value.items()}, sort_keys=True)
    if isinstance(value, list):
        return sorted(inner if isinstance(inner, str) else str(_normal(inner)) for inner in value)
    return [str(value)]

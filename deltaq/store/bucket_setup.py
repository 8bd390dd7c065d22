"""`deltaq.setup`: prepares a root for use and returns the policies of its roles. Idempotent."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from deltaq import errors
from deltaq.clock import SYSTEM_CLOCK
from deltaq.config import AdminConfig, ClientConfig, parse_client_config
from deltaq.errors import InvalidConfig, Unavailable
from deltaq.root import open_root
from deltaq.store.bucket_lifecycle import with_abort_rule
from deltaq.store.bucket_policies import (
    ROLES,
    Document,
    Role,
    policy_name,
    role_policies,
    same_policy,
)
from deltaq.store.contract import StoreError, StoreRefused
from deltaq.store.location import Location, parse_location
from deltaq.store.object_options import object_settings
from deltaq.store.probe import StoreUnsafe, probe

if TYPE_CHECKING:
    from deltaq.store.bucket_admin import BucketAdmin

Outcome: TypeAlias = Literal["made", "changed", "there", "not needed", "left to you"]

_BY_HAND = {
    "gs": (
        "create it with `gcloud storage buckets create`, and grant roles/storage.objectUser to "
        "those who write"
    ),
    "az": (
        "create it with `az storage container create`, and grant `Storage Blob Data Contributor` to"
        " those who write"
    ),
}


@dataclass(frozen=True, slots=True)
class RolePolicy:
    """The policy of one role for one root. Attach it to the users who have that role.

    `document` is the policy in JSON. On MinIO it is installed under `name`: `outcome` is `made`,
    `changed` (another policy was replaced) or `there`. On other servers it is `left to you`: create
    the policy under a name you choose.
    """

    role: Role
    name: str
    document: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class BucketSetup:
    """The result of `setup`. No field holds a secret.

    `bucket`, which is a folder for a local root, is `made`, `there` (it existed) or `not needed`.
    `abort_rule`, the lifecycle rule that aborts incomplete multipart uploads, is `made`, `there`,
    or `not needed` on a server that aborts them itself and for roots outside of S3. `policies` has
    one entry per role on S3, else none.
    """

    root: str
    bucket: Outcome
    abort_rule: Outcome
    policies: tuple[RolePolicy, ...] = ()

    def policy(self, role: Role) -> RolePolicy:
        """The policy of `role`: `reader`, `producer` or `maintainer`. KeyError if this root has
        none.
        """
        return {policy.role: policy for policy in self.policies}[role]

    def __str__(self) -> str:
        lines = [
            f"{self.root}",
            f"  bucket: {self.bucket}",
            f"  rule for incomplete uploads: {self.abort_rule}",
        ]
        return "\n".join(
            lines + [f"  policy {policy.name}: {policy.outcome}" for policy in self.policies]
        )


def setup(root: str | os.PathLike[str], conf: Mapping[str, Any] | None = None) -> BucketSetup:
    """Prepare a root for use. Run it as an administrator; it keeps what exists, and can be
    repeated.

    On S3 and compatible servers it creates the bucket, a lifecycle rule that aborts incomplete
    multipart uploads after seven days, and three policies for this root: `reader`, `producer` and
    `maintainer`. The bucket's own rules stay. On MinIO the policies are installed by name; on other
    servers they are returned, and you create them. You attach the policies to users. A local root
    is a folder, which is created. In every root, create-if-absent is proven with a temporary
    object.

    Args:
        root: the root of the topics, as in `bootstrap.servers`: `s3://bucket/prefix`, a path, or
            `memory://name`.
        conf: settings `store.*` as for clients, with the credentials of an administrator. Other
            settings come from the environment, as for clients.

    Returns:
        What was created and what existed.

    Raises:
        ImportError: the extra `minio` is not installed; setup of S3 needs it.
        InvalidConfig: the root is `gs://` or `az://`, which are set up with the provider's tools;
            the root or an option is invalid; or there are no credentials.
        Unavailable: the server did not answer, or refused a step, which the text names. Not
            retriable if it refused.
        StoreUnsafe: the store does not honour create-if-absent.
    """
    root = os.fspath(root)
    settings = dict(conf or {})
    # Not shown: it might hold credentials.
    if settings.setdefault("bootstrap.servers", root) != root:
        raise InvalidConfig(
            "bootstrap.servers names another root than the argument `root`: leave it out",
            key="bootstrap.servers",
        )
    config = parse_client_config(AdminConfig, settings)
    url = open_root(config, SYSTEM_CLOCK).url  # checks the root and the options
    location = parse_location(root)
    if location.scheme == "s3":
        done = _set_up_bucket(url, location, config)
    elif location.scheme in _BY_HAND:
        raise InvalidConfig(
            f"{url}: setup creates buckets on S3 and MinIO only; {_BY_HAND[location.scheme]}",
            key="bootstrap.servers",
        )
    elif location.scheme == "file":
        done = BucketSetup(url, "there" if os.path.isdir(location.name) else "made", "not needed")
    else:
        done = BucketSetup(url, "not needed", "not needed")
    try:
        probe(open_root(config, SYSTEM_CLOCK))  # in a local root this also creates the folder
    except StoreUnsafe as error:
        raise errors.UnsafeStore(str(error)) from error
    except StoreError as error:
        reason = f"the store could not be probed: {error}"
        raise Unavailable(reason, retriable=not isinstance(error, StoreRefused)) from error
    return done


def _set_up_bucket(url: str, location: Location, config: ClientConfig) -> BucketSetup:
    try:
        # Imported on first use: no other module needs the SDK.
        from deltaq.store.bucket_admin import BucketAdmin  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ImportError(
            f"setup of {url} needs the extra [minio]: pip install 'deltaq[minio]'", name=error.name
        ) from None
    bucket, prefix = location.name, location.prefix
    try:
        role_policies(url, bucket, prefix, "aws")
    except ValueError as error:  # checked before anything is created
        raise InvalidConfig(str(error), key="bootstrap.servers") from None
    admin = BucketAdmin(url, bucket, object_settings("s3", config.store_options, os.environ))
    made = admin.make_bucket()
    installed = admin.policies()
    documents = role_policies(
        url, bucket, prefix, "aws" if installed is None else "minio", admin.region
    )
    # MinIO does not support such a rule. It removes the parts of interrupted uploads itself, after
    # a day.
    abort_rule = _add_abort_rule(admin, url, prefix) if installed is None else "not needed"
    policies = tuple(
        _install(admin, role, policy_name(role, bucket, prefix), documents[role], installed)
        for role in ROLES
    )
    return BucketSetup(url, "made" if made else "there", abort_rule, policies)


def _add_abort_rule(admin: BucketAdmin, url: str, prefix: str) -> Outcome:
    before, headers = admin.lifecycle()
    try:
        after = with_abort_rule(before, prefix)
    except ValueError as error:
        raise Unavailable(
            f"{url}: could not read the bucket's lifecycle rules: {error}", retriable=False
        ) from None
    if after is None:
        return "there"
    admin.set_lifecycle(after, headers)
    return "made"


def _install(
    admin: BucketAdmin,
    role: Role,
    name: str,
    document: Document,
    installed: Mapping[str, Document] | None,
) -> RolePolicy:
    text = json.dumps(document, indent=2)
    if installed is None:
        return RolePolicy(role, name, text, "left to you")
    before = installed.get(name)
    if before is not None and same_policy(before, document):
        return RolePolicy(role, name, text, "there")
    admin.set_policy(name, document)
    return RolePolicy(role, name, text, "made" if before is None else "changed")

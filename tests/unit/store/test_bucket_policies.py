"""Permissions of the three roles, judged by an evaluator that knows only the policy documents."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from deltaq.store.bucket_policies import (
    ROLES,
    Dialect,
    Document,
    Role,
    policy_name,
    role_policies,
    same_policy,
)

DIALECTS: tuple[Dialect, ...] = ("aws", "minio")

LOG_ENTRY = "topics/orders/_delta_log/00000000000000000007.json"
CHECKPOINT = "topics/orders/_delta_log/00000000000000000100.checkpoint.parquet"
POINTER = "topics/orders/_delta_log/_last_checkpoint"
DATA_FILE = "topics/orders/0192aa.parquet"
SHARED_FILE = "topics/orders/shared/00000000000000000064/a.parquet"
LOG_START = "topics/orders/_deltaq/log_start/00000000000000000100"
GROUP_ENTRY = "groups/billing/_delta_log/00000000000000000007.json"
GROUP_CHECKPOINT = "groups/billing/_delta_log/00000000000000000100.checkpoint.parquet"
GROUP_POINTER = "groups/billing/_delta_log/_last_checkpoint"
HEARTBEAT = "groups/billing/_members/m-1"
ID_ENTRY = "transactions/till/_delta_log/00000000000000000007.json"
ID_CHECKPOINT = "transactions/till/_delta_log/00000000000000000100.checkpoint.parquet"
ID_POINTER = "transactions/till/_delta_log/_last_checkpoint"
STAGED_FILE = "topics/orders/staged/till/0-1-0192aa.parquet"
HOLD = "topics/orders/_deltaq/holds/views.json"
VIEW_STATE = "topics/shop.ticks/_deltaq/view_state/checkpoint.json"
PROBE = "_deltaq/probe/1"
CLOCK = "_deltaq/clock"
CLAIM = "_deltaq/maintenance/00000000000000000001"
ALL = {
    LOG_ENTRY, CHECKPOINT, POINTER, DATA_FILE, SHARED_FILE, LOG_START, GROUP_ENTRY, GROUP_CHECKPOINT, GROUP_POINTER,  # noqa: E501
    HEARTBEAT, ID_ENTRY, ID_CHECKPOINT, ID_POINTER, STAGED_FILE, HOLD, VIEW_STATE, PROBE, CLOCK,
    CLAIM,
}  # fmt: skip


def policy(role: Role, dialect: Dialect = "minio", prefix: str = "prod") -> Document:
    root = f"s3://events/{prefix}".rstrip("/")
    return role_policies(root, "events", prefix, dialect)[role]


def allows(document: Document, action: str, resource: str, **request: str) -> bool:
    """Whether a statement allows the request. `request` has its condition keys, with `_` for what
    Python forbids.
    """
    about = {"s3:" + key.replace("_", "-"): value for key, value in request.items()}
    return any(
        statement["Effect"] == "Allow"
        and action in statement["Action"]
        and any(matches(pattern, f"arn:aws:s3:::{resource}") for pattern in statement["Resource"])
        and all(
            holds(name, about_it, about)
            for name, about_it in statement.get("Condition", {}).items()
        )
        for statement in document["Statement"]
    )


def matches(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None


def holds(operator: str, operands: dict[str, Any], about: dict[str, str]) -> bool:
    ((key, wanted),) = operands.items()
    if operator == "Null":
        return (key in about) is (str(wanted) == "false")
    if key not in about:
        return operator.endswith("IfExists")
    return any(matches(pattern, about[key]) for pattern in wanted)


def keys_allowed(document: Document, action: str, **request: str) -> set[str]:
    return {key for key in ALL if allows(document, action, f"events/prod/{key}", **request)}


# --- permissions of the roles
# -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("role", ROLES)
def test_every_role_reads_and_lists_all_of_the_root(role: Role, dialect: Dialect) -> None:
    assert keys_allowed(policy(role, dialect), "s3:GetObject") == ALL
    for prefix in ("prod/", "prod/topics/", "prod/topics/orders/_delta_log/"):
        assert allows(policy(role, dialect), "s3:ListBucket", "events", prefix=prefix)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_reader_writes_offsets_and_heartbeats_and_nothing_else(dialect: Dialect) -> None:
    writes = keys_allowed(policy("reader", dialect), "s3:PutObject", if_none_match="*")
    assert writes == {GROUP_ENTRY, GROUP_CHECKPOINT, GROUP_POINTER, HEARTBEAT, PROBE}
    assert keys_allowed(policy("reader", dialect), "s3:DeleteObject") == {HEARTBEAT, PROBE}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_producer_writes_topics_and_deletes_no_data(dialect: Dialect) -> None:
    writes = keys_allowed(policy("producer", dialect), "s3:PutObject", if_none_match="*")
    files = {DATA_FILE, SHARED_FILE, STAGED_FILE}
    of_ids = {ID_ENTRY, ID_CHECKPOINT, ID_POINTER}
    of_views = {HOLD, VIEW_STATE}
    assert writes == {LOG_ENTRY, CHECKPOINT, POINTER, PROBE} | files | of_ids | of_views
    assert keys_allowed(policy("producer", dialect), "s3:DeleteObject") == {PROBE} | of_views
    assert keys_allowed(policy("producer", dialect), "s3:AbortMultipartUpload") == {
        CHECKPOINT,
        VIEW_STATE,
        *files,
    }


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_maintainer_may_do_everything_below_the_root(dialect: Dialect) -> None:
    for action in ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"):
        assert keys_allowed(policy("maintainer", dialect), action) == ALL


@pytest.mark.parametrize(
    ("role", "entries"), [("reader", {GROUP_ENTRY}), ("producer", {LOG_ENTRY, ID_ENTRY})]
)
def test_on_aws_a_log_entry_is_written_only_by_requests_that_cannot_overwrite_one(
    role: Role, entries: set[str]
) -> None:
    overwritten = keys_allowed(policy(role, "aws"), "s3:PutObject")
    assert not entries & overwritten
    created = keys_allowed(policy(role, "aws"), "s3:PutObject", if_none_match="*")
    assert created == overwritten | entries


# --- and where
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    "place", ["events/", "events/production/", "events/prod", "events2/prod/", "events/x/prod/"]
)
def test_no_role_may_do_anything_to_objects_outside_of_its_root(
    role: Role, dialect: Dialect, place: str
) -> None:
    for action in ("s3:GetObject", "s3:PutObject", "s3:DeleteObject"):
        for key in ALL:
            assert not allows(policy(role, dialect), action, f"{place}{key}", if_none_match="*")


@pytest.mark.parametrize("role", ROLES)
def test_another_prefix_cannot_be_listed(role: Role) -> None:
    for prefix in ("production/", "other/", "x/prod/"):
        assert not allows(policy(role, "minio"), "s3:ListBucket", "events", prefix=prefix)
        assert not allows(policy(role, "aws"), "s3:ListBucket", "events", prefix=prefix)
    assert not allows(policy(role, "minio"), "s3:ListBucket", "events")
    # Begins `production/`, too.
    assert not allows(policy(role, "minio"), "s3:ListBucket", "events", prefix="prod")


@pytest.mark.parametrize("role", ROLES)
def test_on_aws_listing_without_prefix_is_allowed_so_missing_objects_give_404(role: Role) -> None:
    assert allows(policy(role, "aws"), "s3:ListBucket", "events")
    assert allows(policy(role, "aws"), "s3:ListBucket", "events", prefix="")


@pytest.mark.parametrize("role", ROLES)
def test_a_root_that_is_a_whole_bucket_needs_no_condition_to_be_listed(role: Role) -> None:
    whole = policy(role, "minio", prefix="")
    assert allows(whole, "s3:ListBucket", "events")
    assert allows(whole, "s3:GetObject", f"events/{DATA_FILE}")


@pytest.mark.parametrize(
    ("region", "arn"),
    [
        ("eu-central-1", "arn:aws:"),
        ("cn-north-1", "arn:aws-cn:"),
        ("us-gov-west-1", "arn:aws-us-gov:"),
    ],
)
def test_resources_are_named_as_in_the_regions_part_of_aws(region: str, arn: str) -> None:
    documents = role_policies("s3://events", "events", "", "aws", region)
    names = [
        name
        for role in ROLES
        for statement in documents[role]["Statement"]
        for name in statement["Resource"]
    ]
    assert all(name.startswith(f"{arn}s3:::events") for name in names)


@pytest.mark.parametrize("prefix", ["a*", "b/?", "${aws:username}"])
def test_a_prefix_with_policy_wildcards_is_refused_by_its_root(prefix: str) -> None:
    with pytest.raises(ValueError, match="prefix without it") as refused:
        role_policies(f"s3://events/{prefix}", "events", prefix, "aws")
    assert prefix in str(refused.value)


# --- names and sameness
# ----------------------------------------------------------------------------------------------


def test_names_of_policies_are_readable_and_no_two_roots_share_one() -> None:
    assert policy_name("reader", "events", "production") == "deltaq-reader-events+production"
    assert policy_name("maintainer", "events", "") == "deltaq-maintainer-events"
    prefixes = ["a/b", "a+b", "a=2bb", "a b", "a=20b", "a.b", "x" * 300, "x" * 301, "x" * 299 + "y"]
    names = {policy_name("reader", "events", prefix) for prefix in prefixes}
    assert len(names) == len(prefixes)
    assert all(re.fullmatch(r"[\w+=,.@-]+", name) and len(name) <= 128 for name in names)


def test_a_document_is_equal_in_any_order_of_its_elements() -> None:
    ours = policy("producer", "aws")
    theirs = json.loads(json.dumps(ours))
    theirs["Statement"].reverse()
    for statement in theirs["Statement"]:
        statement["Resource"].reverse()
        statement["Action"].reverse()
        if len(statement["Action"]) == 1:
            statement["Action"] = statement["Action"][0]
    assert same_policy(ours, theirs)
    theirs["Statement"][0]["Resource"] = ["arn:aws:s3:::events/*"]
    assert not same_policy(ours, theirs)


def test_documents_of_two_roles_or_two_dialects_are_not_the_same() -> None:
    documents = [policy(role, dialect) for role in ROLES for dialect in DIALECTS]
    for at, one in enumerate(documents):
        assert [same_policy(one, other) for other in documents] == [
            at == other for other in range(len(documents))
        ]

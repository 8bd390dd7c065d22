"""Three users of one root on a MinIO, each with the policy that `setup` has made for its role."""

from __future__ import annotations

import json
import logging
import os
import secrets
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
from minio import Minio, MinioAdmin
from minio.credentials.providers import StaticProvider

import deltaq
from deltaq import (
    AdminClient,
    Consumer,
    KafkaError,
    NewTopic,
    Producer,
    Topic,
    TopicPartition,
    Unavailable,
)
from deltaq.maintenance import background
from deltaq.maintenance.run import run
from deltaq.maintenance.settings import DEFAULT_SETTINGS
from deltaq.names import (
    checkpoint_file,
    clock_key,
    hold_key,
    last_checkpoint,
    log_start_marker,
    root_claim_key,
    topic_folder,
    topic_log,
)
from deltaq.store import Store, StoreRefused, open_store, probe
from deltaq.store.bucket_policies import ROLES
from tests.doubles.reading import drain, eventually

pytestmark = pytest.mark.s3_server

CLUELESS = {"store.access_key_id": "unknown-user", "store.secret_access_key": "not-a-secret-at-all"}
READY = replace(
    DEFAULT_SETTINGS,
    checkpoint_interval=5,
    checkpoint_rest_s=0.0,
    background_interval_s=0.0,
    merge_files=4,
)
LARGE = 17 * 1024 * 1024  # sent in parts


@dataclass(frozen=True)
class Server:
    """A MinIO as its administrator sees it."""

    conf: dict[str, str] = field(repr=False)
    s3: Minio
    admin: MinioAdmin

    def policies(self) -> dict[str, Any]:
        """All named policies, each with its lists in order: MinIO returns them in another one each
        time.
        """
        found: dict[str, Any] = in_order(json.loads(self.admin.policy_list()))
        return found

    def user(self, *policies: str) -> dict[str, str]:
        """A new user with these policies: the settings of its clients."""
        key, secret = f"user-{uuid.uuid4().hex[:12]}", secrets.token_hex(16)
        self.admin.user_add(key, secret)
        if policies:
            self.admin.attach_policy(list(policies), user=key)
        return {**self.conf, "store.access_key_id": key, "store.secret_access_key": secret}


@pytest.fixture(scope="module")
def server() -> Server:
    if os.environ.get("DELTAQ_TEST_S3_SERVER") != "minio":
        pytest.skip(
            "named policies and users are MinIO's own; other servers have none that can be made "
            "here"
        )
    address = urlsplit(os.environ["DELTAQ_TEST_S3_ENDPOINT"])
    keys = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    about: dict[str, Any] = {
        "credentials": StaticProvider(*keys),
        "secure": address.scheme == "https",
    }
    conf = {
        "store.endpoint": address.geturl(),
        "store.region": "us-east-1",
        "store.access_key_id": keys[0],
        "store.secret_access_key": keys[1],
    }
    return Server(
        conf,
        Minio(address.netloc, region="us-east-1", **about),
        MinioAdmin(endpoint=address.netloc, **about),
    )


def in_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_order(inner) for key, inner in value.items()}
    return sorted(map(in_order, value), key=str) if isinstance(value, list) else value


@dataclass(frozen=True)
class BucketRoot:
    """A root, set up, with one user for each role."""

    url: str
    done: deltaq.BucketSetup
    conf: dict[str, dict[str, str]] = field(repr=False)

    def client(self, role: str, **more: Any) -> dict[str, Any]:
        return {"bootstrap.servers": self.url, **self.conf[role], **more}

    def store(self, role: str, url: str = "") -> Store:
        options = {name.removeprefix("store."): value for name, value in self.conf[role].items()}
        return open_store(url or self.url, options)


@pytest.fixture
def root(server: Server) -> Iterator[BucketRoot]:
    bucket = f"roles-{uuid.uuid4().hex[:12]}"
    url = f"s3://{bucket}/prod/a"
    done = deltaq.setup(url, server.conf)
    users: dict[str, dict[str, str]] = {role: server.user(done.policy(role).name) for role in ROLES}
    yield BucketRoot(url, done, {**users, "root": server.conf})
    for user in users.values():
        server.admin.user_remove(user["store.access_key_id"])
    for policy in done.policies:
        server.admin.policy_remove(policy.name)
    for found in server.s3.list_objects(bucket, recursive=True):
        server.s3.remove_object(bucket, str(found.object_name))
    server.s3.remove_bucket(bucket)


def produce(root: BucketRoot, role: str, *values: bytes, **more: Any) -> list[KafkaError | None]:
    reports: list[KafkaError | None] = []
    with Producer(root.client(role, **{"linger.ms": 0, **more})) as producer:
        for value in values:
            producer.produce("t", value, on_delivery=lambda error, _: reports.append(error))
            assert producer.flush(30) == 0
    return reports


def refused(store: Store, key: str) -> set[str]:
    """Which operations on an object like `key` the store refuses. A create is of one that is not
    there.
    """
    folder, _, name = key.rpartition("/")
    # The first character differs for certain: names of data files begin with any digit of a random
    # number.
    absent = ("8" if name[0] == "9" else "9") + name[1:]
    found: set[str] = set()
    for operation, call in {
        "put": lambda: store.put(key, b"x"),
        "create": lambda: store.create(f"{folder}/{absent}", b"x"),
        "delete": lambda: store.delete(key),
    }.items():
        try:
            call()
        except StoreRefused:
            found.add(operation)
    return found


# --- setting up
# --------------------------------------------------------------------------------------------------


def test_the_first_setup_makes_the_bucket_and_the_policies(
    root: BucketRoot, server: Server
) -> None:
    assert (root.done.bucket, root.done.abort_rule) == ("made", "not needed")
    assert [(policy.role, policy.outcome) for policy in root.done.policies] == [
        (role, "made") for role in ROLES
    ]
    assert server.s3.bucket_exists(root.url.split("/")[2])
    assert {policy.name for policy in root.done.policies} <= server.policies().keys()


def test_a_second_setup_changes_nothing(root: BucketRoot, server: Server) -> None:
    def ours(policies: dict[str, Any]) -> dict[str, Any]:
        # Other tests that run beside this one make policies too.
        return {policy.name: policies[policy.name] for policy in root.done.policies}

    before = ours(server.policies())
    again = deltaq.setup(root.url, server.conf)
    assert (again.bucket, again.abort_rule) == ("there", "not needed")
    assert [policy.outcome for policy in again.policies] == ["there"] * 3
    assert [policy.document for policy in again.policies] == [
        policy.document for policy in root.done.policies
    ]
    assert ours(server.policies()) == before
    assert len(before) == 3
    assert list(root.store("root").list("")) == [], "the probe's object is gone"


def test_a_differing_policy_of_ours_is_replaced_and_reported(
    root: BucketRoot, server: Server
) -> None:
    theirs = json.loads(root.done.policy("producer").document)
    server.admin.policy_add(root.done.policy("reader").name, policy=theirs)
    again = deltaq.setup(root.url, server.conf)
    assert [policy.outcome for policy in again.policies] == ["changed", "there", "there"]
    assert refused(root.store("reader"), "topics/t/x.parquet") == {"put", "create", "delete"}


def test_setup_names_the_step_that_was_refused(root: BucketRoot, server: Server) -> None:
    fresh = f"s3://roles-{uuid.uuid4().hex[:12]}"
    with pytest.raises(
        Unavailable, match=r"could not check whether the bucket exists: .*administrator"
    ) as error:
        deltaq.setup(fresh, {**server.conf, **CLUELESS})
    assert not error.value.args[0].retriable()
    assert CLUELESS["store.secret_access_key"] not in str(error.value)
    with pytest.raises(Unavailable, match="could not list the server's policies: AccessDenied"):
        deltaq.setup(root.url, server.user("readwrite"))
    only_looks = server.user("readonly")
    with pytest.raises(Unavailable, match=r"could not (create the bucket|check whether)"):
        deltaq.setup(fresh, only_looks)
    assert not server.s3.bucket_exists(fresh.removeprefix("s3://"))


# --- reader
# --------------------------------------------------------------------------------------------------


def test_a_reader_reads_commits_and_resumes(root: BucketRoot) -> None:
    assert produce(root, "root", b"one", b"two") == [None, None]
    conf = root.client("reader", **{"group.id": "billing", "auto.offset.reset": "earliest"})
    for value in (b"one", b"two"):
        with Consumer(conf) as consumer:
            consumer.subscribe(["t"])
            (message,) = drain(consumer, 1)
            assert message.value() == value
            consumer.commit(message=message, asynchronous=False)
    with Consumer(conf) as consumer:
        (committed,) = consumer.committed([TopicPartition("t", 0)])
        assert committed.offset == 2
    table = Topic("t", conf=root.client("reader")).to_arrow()
    assert table.column("value").to_pylist() == [b"one", b"two"]


def test_a_reader_cannot_write_to_a_topic(root: BucketRoot) -> None:
    assert produce(root, "root", b"one") == [None]
    (error,) = produce(root, "reader", b"two")
    assert error is not None
    assert "403" in error.str()
    (future,) = AdminClient(root.client("reader")).create_topics([NewTopic("new")]).values()
    with pytest.raises(Unavailable, match="403"):
        future.result(30)
    data, *_ = (
        entry.key
        for entry in root.store("root").list("topics/t/")
        if entry.key.endswith(".parquet")
    )
    for key in (
        data,
        f"{topic_log('t')}{0:020d}.json",
        "_deltaq/clock",
        "topics/t/_deltaq/log_start/1",
        hold_key("t", "views"),
    ):
        assert refused(root.store("reader"), key) == {"put", "create", "delete"}
    group_entry = f"groups/billing/_delta_log/{0:020d}.json"
    root.store("root").create(group_entry, b"x")
    assert refused(root.store("reader"), group_entry) == {"delete"}
    probe(root.store("reader"))


def test_a_reader_without_write_statements_still_reads_by_assignment(
    root: BucketRoot, server: Server
) -> None:
    assert produce(root, "root", b"one", b"two") == [None, None]
    document = json.loads(root.done.policy("reader").document)
    document["Statement"] = [
        statement
        for statement in document["Statement"]
        if statement["Sid"] in {"ListRoot", "ReadRoot"}
    ]
    name = f"only-reads-{uuid.uuid4().hex[:12]}"
    server.admin.policy_add(name, policy=document)
    conf = {
        "bootstrap.servers": root.url,
        **server.user(name),
        "group.id": "none",
        "enable.auto.commit": False,
    }
    with Consumer(conf) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert [message.value() for message in drain(consumer, 2)] == [b"one", b"two"]
    assert not list(root.store("root").list("groups/"))


# --- producer
# --------------------------------------------------------------------------------------------------


def test_a_producer_makes_its_topic_and_writes_to_it(root: BucketRoot) -> None:
    assert produce(root, "producer", b"one", b"two", **{"maintenance.enable": False}) == [
        None,
        None,
    ]
    with Consumer(
        root.client("reader", **{"group.id": "g", "auto.offset.reset": "earliest"})
    ) as consumer:
        consumer.subscribe(["t"])
        assert [message.value() for message in drain(consumer, 2)] == [b"one", b"two"]


def test_a_producer_uploads_a_file_in_parts(root: BucketRoot) -> None:
    large = os.urandom(LARGE)
    root.store("producer").put("topics/t/large.parquet", large)
    assert root.store("reader").get("topics/t/large.parquet") == large


def test_a_producer_cannot_delete_data_or_write_group_and_maintenance_objects(
    root: BucketRoot,
) -> None:
    assert produce(root, "producer", b"one", **{"maintenance.enable": False}) == [None]
    data, *_ = (
        entry.key
        for entry in root.store("root").list("topics/t/")
        if entry.key.endswith(".parquet")
    )
    log = topic_log("t")
    for key in (data, f"{log}{0:020d}.json", checkpoint_file(log, 5), last_checkpoint(log)):
        assert "delete" in refused(root.store("producer"), key)
    for key in (
        f"groups/g/_delta_log/{0:020d}.json",
        "groups/g/_members/m",
        clock_key(),
        root_claim_key(1),
    ):
        assert refused(root.store("producer"), key) == {"put", "create", "delete"}
    assert refused(root.store("producer"), log_start_marker(topic_folder("t"), 1)) == {
        "put",
        "create",
        "delete",
    }
    root.store("producer").put(checkpoint_file(log, 5), b"x")
    root.store("producer").put(last_checkpoint(log), b"x")
    assert refused(root.store("producer"), hold_key("t", "views")) == set()
    probe(root.store("producer"))
    assert not list(root.store("root").list("_deltaq/probe/"))


def test_refused_maintenance_in_a_producer_is_logged_once_and_messages_go_on(
    root: BucketRoot, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    care = background.BackgroundTopicMaintenance
    monkeypatch.setattr(
        "deltaq.maintenance.background.BackgroundTopicMaintenance", partial(care, settings=READY)
    )
    reports: list[KafkaError | None] = []

    def refusals() -> list[logging.LogRecord]:
        return [
            record
            for record in caplog.records
            if record.getMessage().startswith("maintenance of topic 't'")
        ]

    def checkpoints() -> list[str]:
        return [
            entry.key
            for entry in root.store("root").list("topics/t/")
            if "checkpoint.parquet" in entry.key
        ]

    def has_come_so_far() -> bool:
        producer.produce("t", b"x", on_delivery=lambda error, _: reports.append(error))
        assert producer.flush(30) == 0
        return len(refusals()) >= 3 and bool(checkpoints())

    with (
        caplog.at_level(logging.INFO, "deltaq.maintenance"),
        Producer(root.client("producer", **{"linger.ms": 0})) as producer,
    ):
        eventually(has_come_so_far, "three refusals, and a checkpoint, which a producer may write,")
    assert set(reports) == {None}
    assert [record.levelname for record in refusals()].count("WARNING") == 1
    assert "maintenance.enable" in refusals()[0].getMessage()
    assert not list(root.store("root").list("_deltaq/"))


# --- maintainer
# --------------------------------------------------------------------------------------------------


def test_a_maintainer_merges_and_removes_the_files_of_producers_and_readers(
    root: BucketRoot,
) -> None:
    values = [b"%d" % number for number in range(40)]
    assert set(produce(root, "producer", *values, **{"maintenance.enable": False})) == {None}
    conf = root.client("reader", **{"group.id": "g", "auto.offset.reset": "earliest"})
    with Consumer(conf) as consumer:
        consumer.subscribe(["t"])
        drain(consumer, 40)
    settings = replace(
        READY,
        keep_entries_min=1,
        keep_entries_max=1,
        clean_up_grace_s=0.0,
        clean_up_interval_s=0.0,
        merge_files=32,
    )
    rounds = [
        run(root.url, once=True, conf=root.conf["maintainer"], settings=settings) for _ in range(2)
    ]
    assert [done["failures"] for done in rounds] == [0, 0]
    assert sum(done["files merged"] for done in rounds) == 40
    assert sum(done["log objects deleted"] for done in rounds) > 30
    assert Topic("t", conf=root.client("reader")).to_arrow().column("value").to_pylist() == values


def test_a_maintainer_administers_topics_and_touches_nothing_outside_of_the_root(
    root: BucketRoot, server: Server
) -> None:
    admin = AdminClient(root.client("maintainer"))
    (made,) = admin.create_topics([NewTopic("new", 2)]).values()
    made.result(30)
    (gone,) = admin.delete_topics(["new"]).values()
    gone.result(30)
    bucket = root.url.split("/")[2]
    for outside in (f"s3://{bucket}/prod/b", f"s3://{bucket}/prod", f"s3://{bucket}"):
        for role in ROLES:
            assert refused(root.store(role, outside), "topics/t/x.parquet") == {
                "put",
                "create",
                "delete",
            }
            with pytest.raises(StoreRefused, match="403"):
                root.store(role, outside).get("topics/t/x.parquet")
            with pytest.raises(StoreRefused, match="403"):
                list(root.store(role, outside).list("topics/"))

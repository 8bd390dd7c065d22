"""Each operation of a store in a bucket meets each misbehaviour of the server, and ends as the
contract says.

The client library is the real one, the server a process of its own; what it holds in the end, it is
asked directly.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deltaq.store import (
    ObjectExists,
    ObjectMissing,
    Store,
    StoreRefused,
    StoreUnavailable,
    StoreUnsafe,
    open_store,
)
from deltaq.store import probe as probe_store
from tests.doubles.reading import eventually
from tests.servers.s3_stub import Effect, HttpRule, S3Stub

pytestmark = pytest.mark.s3

OLD, NEW = b"0123456789", b"new"
PATIENT_MS, IMPATIENT_MS = 30_000, 200  # for an answer; the second where none will come

READS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("old"),
    "get_range": lambda store: store.get_range("old", 2, 3),
    "list": lambda store: [entry.key for entry in store.list("")],
    "list_folders": lambda store: store.list_folders(""),
}
HONEST = {
    "get": OLD,
    "get_range": OLD[2:5],
    "list": ["folder/object", "old"],
    "list_folders": ["folder"],
}
WRITES: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.put("old", NEW),
    "create": lambda store: store.create("new", NEW),
    "delete": lambda store: store.delete("old"),
}
BEFORE = {"folder/object": b"x", "old": OLD}
AFTER = {
    "put": {"folder/object": b"x", "old": NEW},
    "create": {"folder/object": b"x", "new": NEW, "old": OLD},
    "delete": {"folder/object": b"x"},
}


@pytest.fixture(scope="module")
def stub() -> Iterator[S3Stub]:
    with S3Stub() as stub:
        yield stub


class Bucket:
    """A root of its own in the stub, with two objects."""

    def __init__(self, stub: S3Stub) -> None:
        self.stub = stub
        self.prefix = uuid.uuid4().hex
        stub.set_rules()
        for key, data in BEFORE.items():
            stub.change(f"{self.prefix}/{key}", data)
        stub.effects(clear=True)

    def open(self, **options: object) -> Store:
        options = {"retries": 0, "timeout_ms": PATIENT_MS} | options
        return open_store(f"s3://deltaq/{self.prefix}", self.stub.options(**options))

    @property
    def objects(self) -> dict[str, bytes]:
        found = self.stub.objects(f"{self.prefix}/")
        return {key.partition("/")[2]: data for key, data in found.items()}


@pytest.fixture
def bucket(stub: S3Stub) -> Bucket:
    return Bucket(stub)


def ended(work: Callable[[], object]) -> Any:
    """What an operation gave, or the class of what it raised."""
    try:
        return work()
    except (ObjectExists, ObjectMissing, StoreRefused, StoreUnavailable) as error:
        return type(error)


PAGE = "<html><head><title>Sign in</title></head><body/></html>"


def answering(status: int, **more: Any) -> HttpRule:
    return HttpRule(fault="error_before", status=status, **more)


# Operations that had no effect, and what reads, put, create and delete then give.
NOT_DONE: dict[str, tuple[HttpRule, Any, Any, Any, Any]] = {
    "403": (
        answering(403, code="AccessDenied"),
        StoreRefused,
        StoreRefused,
        StoreRefused,
        StoreRefused,
    ),
    "409": (answering(409), StoreUnavailable, StoreUnavailable, ObjectExists, StoreUnavailable),
    "412": (answering(412), StoreUnavailable, StoreUnavailable, ObjectExists, StoreUnavailable),
    "429": (answering(429), StoreUnavailable, StoreUnavailable, StoreUnavailable, StoreUnavailable),
    "500": (answering(500), StoreUnavailable, StoreUnavailable, StoreUnavailable, StoreUnavailable),
    "503": (
        answering(503, code="SlowDown"),
        StoreUnavailable,
        StoreUnavailable,
        StoreUnavailable,
        StoreUnavailable,
    ),
    "301": (answering(301), StoreRefused, StoreRefused, StoreRefused, StoreRefused),
    "307": (answering(307), StoreRefused, StoreRefused, StoreRefused, StoreRefused),
    "expired token": (
        answering(403, code="ExpiredToken"),
        StoreRefused,
        StoreRefused,
        StoreRefused,
        StoreRefused,
    ),
    "reset": (
        HttpRule(fault="reset_before"),
        StoreUnavailable,
        StoreUnavailable,
        StoreUnavailable,
        StoreUnavailable,
    ),
    "hang": (
        HttpRule(fault="hang_before"),
        StoreUnavailable,
        StoreUnavailable,
        StoreUnavailable,
        StoreUnavailable,
    ),
}


@pytest.mark.fault("S1")
@pytest.mark.parametrize("operation", READS | WRITES)
@pytest.mark.parametrize("fault", NOT_DONE)
def test_an_operation_the_server_did_not_do_is_never_reported_as_done(
    bucket: Bucket, fault: str, operation: str
) -> None:
    rule, read, put, create, delete = NOT_DONE[fault]
    bucket.stub.set_rules(rule)
    store = bucket.open(timeout_ms=IMPATIENT_MS if fault == "hang" else PATIENT_MS)
    outcome = ended(lambda: (READS | WRITES)[operation](store))
    assert outcome is {"put": put, "create": create, "delete": delete}.get(operation, read)
    assert bucket.objects == BEFORE
    assert bucket.stub.effects() == {Effect.HUNG if fault == "hang" else Effect.ERROR_BEFORE: 1}


@pytest.mark.fault("S1")
@pytest.mark.parametrize("operation", READS | WRITES)
@pytest.mark.parametrize("fault", ["error_after", "reset_after", "hang_after", "late_apply"])
def test_a_write_without_an_answer_is_reported_as_unknown(
    bucket: Bucket, fault: Any, operation: str
) -> None:
    bucket.stub.set_rules(HttpRule(fault=fault))
    store = bucket.open(timeout_ms=IMPATIENT_MS if fault == "hang_after" else PATIENT_MS)
    assert ended(lambda: (READS | WRITES)[operation](store)) is StoreUnavailable
    effect = Effect.LATE_WRITE_LANDED if fault == "late_apply" else Effect.ANSWER_LOST
    eventually(lambda: bucket.stub.effects() == {effect: 1}, "the effect")
    assert bucket.objects == AFTER.get(operation, BEFORE)


@pytest.mark.fault("S1", "P7", "P8")
@pytest.mark.parametrize("status", [0, 409, 412])
def test_a_create_that_lands_after_its_refusal_is_not_reported_as_impossible(
    bucket: Bucket, status: int
) -> None:
    bucket.stub.set_rules(HttpRule(fault="late_apply", status=status))
    outcome = ended(lambda: WRITES["create"](bucket.open()))
    assert outcome is (ObjectExists if status else StoreUnavailable)
    eventually(lambda: bucket.stub.effects() == {Effect.LATE_WRITE_LANDED: 1}, "the late write")
    assert bucket.objects == AFTER["create"]


@pytest.mark.fault("S1")
@pytest.mark.parametrize("operation", READS | WRITES)
def test_a_not_found_answer_means_missing_for_reads_only(bucket: Bucket, operation: str) -> None:
    bucket.stub.set_rules(answering(404, code="NoSuchKey"))
    outcome = ended(lambda: (READS | WRITES)[operation](bucket.open()))
    # Nothing can be missing for a listing or a write but the bucket; and what is not there need not
    # be deleted.
    assert outcome is {"get": ObjectMissing, "get_range": ObjectMissing, "delete": None}.get(
        operation, StoreRefused
    )
    assert bucket.objects == BEFORE


@pytest.mark.fault("S1")
@pytest.mark.parametrize("operation", READS | WRITES)
@pytest.mark.parametrize(
    "body", [PAGE, "no XML at all", "", "<ListBucketResult><Contents><Key>cut"]
)
def test_a_success_answer_of_a_proxy_is_no_success(
    bucket: Bucket, operation: str, body: str
) -> None:
    """But for `get`, whose content every reader checks, and for `delete`, which leaves something
    over.
    """
    store = bucket.open()
    store.get("old")
    bucket.stub.set_rules(answering(200, body=body))
    outcome = ended(lambda: (READS | WRITES)[operation](store))
    assert outcome == {"get": body.encode(), "delete": None}.get(operation, StoreUnavailable)
    assert bucket.objects == BEFORE


@pytest.mark.fault("S1")
@pytest.mark.parametrize("operation", READS)
def test_a_truncated_body_is_not_returned(bucket: Bucket, operation: str) -> None:
    bucket.stub.set_rules(HttpRule(fault="short_body"))
    assert ended(lambda: READS[operation](bucket.open())) is StoreUnavailable
    assert bucket.stub.effects() == {Effect.TRUNCATED: 1}


@pytest.mark.fault("S1")
@pytest.mark.parametrize("operation", READS | WRITES)
def test_a_slow_answer_is_accepted(bucket: Bucket, operation: str) -> None:
    bucket.stub.set_rules(HttpRule(fault="slow", delay_ms=(1, 10)))
    assert ended(lambda: (READS | WRITES)[operation](bucket.open())) == HONEST.get(operation)
    assert bucket.objects == AFTER.get(operation, BEFORE)
    assert bucket.stub.effects()[Effect.DELAYED] >= 1


@pytest.mark.fault("S1", "S6")
@pytest.mark.parametrize("operation", [*READS, "put", "delete"])
@pytest.mark.parametrize("fault", ["error_before", "error_after", "reset_before"])
def test_the_client_retries_idempotent_operations_itself(
    bucket: Bucket, fault: Any, operation: str
) -> None:
    bucket.stub.set_rules(HttpRule(fault=fault, status=503, code="SlowDown", times=2))
    assert ended(lambda: (READS | WRITES)[operation](bucket.open(retries=3))) == HONEST.get(
        operation
    )
    assert bucket.objects == AFTER.get(operation, BEFORE)
    assert sum(bucket.stub.effects().values()) == 2


@pytest.mark.fault("P5", "S1")
def test_a_multipart_error_sent_with_status_200_is_not_taken_for_stored(bucket: Bucket) -> None:
    """S3 reports some failures of the last step with status 200."""
    content = bytes(17 * 1024 * 1024)
    store = bucket.open()
    bucket.stub.set_rules(
        answering(
            200, operation="multipart", nth=4, times=1, body="<Error><Code>Internal</Code></Error>"
        )
    )
    assert ended(lambda: store.put("large", content)) is StoreUnavailable
    assert "large" not in bucket.objects
    bucket.stub.set_rules(
        HttpRule(fault="error_before", operation="multipart", probability=0.3, seed=7)
    )
    bucket.open(retries=9).put("large", content)
    assert bucket.objects["large"] == content
    assert bucket.stub.effects()[Effect.ERROR_BEFORE] >= 2


@pytest.mark.fault("S2")
@pytest.mark.parametrize("nth", [1, 2])
def test_a_store_that_ignores_the_condition_is_refused_by_its_name(
    bucket: Bucket, nth: int
) -> None:
    bucket.stub.set_rules(HttpRule(fault="ignored_condition", operation="create", nth=nth))
    with pytest.raises(
        StoreUnsafe, match=rf"\(S3 at {bucket.stub.endpoint}\) created the same key twice"
    ):
        probe_store(bucket.open())
    assert bucket.stub.effects() == {Effect.CONDITION_IGNORED: 1}
    assert bucket.objects == BEFORE


@pytest.mark.fault("S2")
@pytest.mark.parametrize(
    "fault", ["error_before", "error_after", "late_apply", "reset_after", "hang_after"]
)
def test_a_probe_is_not_misled_by_lost_answers(bucket: Bucket, fault: Any) -> None:
    for nth in (1, 2, 3):
        bucket.stub.set_rules(HttpRule(fault=fault, operation="create", nth=nth, times=1))
        probe_store(bucket.open(timeout_ms=IMPATIENT_MS if fault == "hang_after" else PATIENT_MS))
    bucket.stub.set_rules()
    eventually(lambda: sum(bucket.stub.effects().values()) >= 2, "two faults")
    probe_store(bucket.open())


@pytest.mark.fault("S5")
def test_an_unsigned_operation_is_refused_with_a_remedy(bucket: Bucket) -> None:
    store = bucket.open()
    anonymous = open_store(
        store.url, {"endpoint": bucket.stub.endpoint, "skip_signature": True, "retries": 0}
    )
    for work in (READS | WRITES).values():
        with pytest.raises(
            StoreRefused,
            match="AccessDenied: Anonymous access is not allowed; check the credentials",
        ):
            work(anonymous)
    assert bucket.objects == BEFORE

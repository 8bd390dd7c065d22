"""Object stores: how options reach the client, and what each answer of a server means."""

from __future__ import annotations

import os
import re
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from obstore.exceptions import GenericError

from deltaq.store import (
    CreateUnsupported,
    ObjectExists,
    ObjectMissing,
    PollInterval,
    Store,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    StoreUnsafe,
    object_connection,
    objects,
    open_store,
    probe,
)
from deltaq.store.object_connection import IMPATIENT_TIMEOUTS_S
from deltaq.store.object_errors import outcome, scrub
from deltaq.store.object_options import OPTIONS, object_settings
from deltaq.store.objects import IMPATIENT_ATTEMPTS, NEAR_POLL_INTERVAL, NEAR_S, POLL_INTERVAL
from deltaq.testing import ManualClock
from tests.servers.s3_stub import Effect, HttpRule, S3Stub, StubRequest

SECRET = "planted/secret+0123456789"
PAGE_KEYS = 5  # of a listing
KEYS = {"access_key_id": "AKIDPLANTED0001", "secret_access_key": SECRET}


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    silent: bool = False  # hang up without an answer


class Server:
    """The S3 stub, told what to answer whatever is asked."""

    def __init__(self, stub: S3Stub) -> None:
        self.stub = stub
        self.endpoint = stub.endpoint

    def answer(self, *script: Answer) -> None:
        """One answer a request; the last one stays."""
        self.stub.set_rules(
            *(
                HttpRule(
                    fault="reset_before" if answer.silent else "error_before",
                    status=answer.status,
                    body=answer.body.decode(),
                    headers=answer.headers,
                    times=None if answer is script[-1] else 1,
                )
                for answer in script
            )
        )

    @property
    def requests(self) -> list[StubRequest]:
        return self.stub.requests()


@pytest.fixture(autouse=True)
def no_ambient_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [
        name for name in os.environ if name.startswith(("AWS_", "MINIO_", "GOOGLE_", "AZURE_"))
    ]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def stub() -> Iterator[S3Stub]:
    with S3Stub(["bucket"], page_keys=PAGE_KEYS) as stub:
        yield stub


@pytest.fixture
def server(stub: S3Stub) -> Server:
    stub.set_rules()
    stub.requests(clear=True)
    for key in stub.objects(bucket="bucket"):
        stub.change(key, None, "bucket")
    return Server(stub)


@pytest.fixture
def store(server: Server) -> Store:
    return open_store("s3://bucket/pre", {"endpoint": server.endpoint, "retries": 0, **KEYS})


READS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: store.get("k"),
    "get_range": lambda store: store.get_range("k", 2, 3),
    "list": lambda store: list(store.list("")),
    "list_folders": lambda store: store.list_folders(""),
    "list_some": lambda store: store.list_some(""),
}
WRITES: dict[str, Callable[[Store], object]] = {
    "put": lambda store: store.put("k", b"x"),
    "create": lambda store: store.create("k", b"x"),
    "delete": lambda store: store.delete("k"),
}
OPERATIONS = READS | WRITES


def _error(code: str, message: str = "told by the server") -> bytes:
    return f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


# What the answers mean

UNAVAILABLE = [
    Answer(500),
    Answer(502, b"<html>garbage"),
    Answer(503, _error("SlowDown")),
    Answer(429),
    Answer(408),
    Answer(400, _error("RequestTimeout")),
    Answer(silent=True),
]
REFUSED = [
    Answer(400, _error("ExpiredToken")),
    Answer(401),
    Answer(403, _error("AccessDenied")),
    Answer(404, _error("NoSuchBucket")),
    Answer(413, _error("EntityTooLarge")),
    Answer(301),
    Answer(307),
]


def _name(value: object) -> str | None:
    if not isinstance(value, Answer):
        return None
    code = re.search(rb"<Code>(\w+)", value.body)
    return f"{'silent' if value.silent else value.status}{' ' + code[1].decode() if code else ''}"


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("answer", UNAVAILABLE, ids=_name)
def test_an_inconclusive_answer_is_unavailable(
    server, store, operation: str, answer: Answer
) -> None:
    server.answer(answer)
    with pytest.raises(StoreUnavailable) as caught:
        OPERATIONS[operation](store)
    assert caught.value.operation == operation


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("answer", REFUSED, ids=_name)
def test_a_definite_refusal_raises_store_refused(
    server, store, operation: str, answer: Answer
) -> None:
    server.answer(answer)
    with pytest.raises(StoreRefused) as caught:
        OPERATIONS[operation](store)
    assert caught.value.operation == operation


@pytest.mark.parametrize(
    ("answer", "remedy"),
    [
        (
            Answer(403, _error("AccessDenied")),
            "403 Forbidden: AccessDenied: told by the server; check the credentials",
        ),
        (
            Answer(403, _error("RequestTimeTooSkewed")),
            "told by the server; set the clock of this machine right",
        ),
        (
            Answer(404, _error("NoSuchBucket")),
            (
                "NoSuchBucket: told by the server; create the bucket first; `deltaq setup` does so "
                "on S3 and MinIO"
            ),
        ),
        (Answer(301), "check `region`"),
    ],
)
def test_a_refusal_says_what_to_do(server, store, answer: Answer, remedy: str) -> None:
    server.answer(answer)
    with pytest.raises(StoreRefused, match=re.escape(remedy)):
        store.get("k")


@pytest.mark.parametrize("status", [409, 412, 304])
def test_a_create_stopped_by_its_condition_raises_object_exists(server, store, status: int) -> None:
    server.answer(Answer(status))
    with pytest.raises(ObjectExists):
        store.create("k", b"x")


@pytest.mark.parametrize("operation", ["get", "get_range", "put", "list"])
@pytest.mark.parametrize("status", [409, 412])
def test_a_failed_condition_without_a_create_is_not_taken_for_exists(
    server, store, operation: str, status: int
) -> None:
    server.answer(Answer(status))
    with pytest.raises(StoreUnavailable):
        OPERATIONS[operation](store)


@pytest.mark.parametrize("answer", [Answer(501, _error("NotImplemented")), Answer(405)], ids=_name)
def test_a_server_without_conditional_writes_is_named(server, store, answer: Answer) -> None:
    server.answer(answer)
    named = rf"s3://bucket/pre \(S3 at {server.endpoint}\) does not support create-if-absent"
    with pytest.raises(CreateUnsupported, match=named):
        store.create("k", b"x")
    with pytest.raises(StoreUnsafe, match=named):
        probe(store)


def test_a_server_that_ignores_the_condition_is_detected(server, store) -> None:
    server.answer(Answer(headers={"ETag": '"x"'}))
    with pytest.raises(
        StoreUnsafe,
        match=rf"s3://bucket/pre \(S3 at {server.endpoint}\) created the same key twice",
    ):
        probe(store)


def test_a_missing_object_is_missing_and_may_be_deleted(server, store) -> None:
    server.answer(Answer(404, _error("NoSuchKey")))
    for operation in ("get", "get_range"):
        with pytest.raises(ObjectMissing):
            OPERATIONS[operation](store)
    store.delete("k")


@pytest.mark.parametrize("operation", ["put", "create"])
def test_writing_to_a_missing_bucket_is_refused(server, store, operation: str) -> None:
    server.answer(Answer(404))
    with pytest.raises(StoreRefused):
        OPERATIONS[operation](store)


def test_a_truncated_body_is_not_returned(server, store) -> None:
    store.put("k", b"0123456789")
    server.stub.set_rules(HttpRule(fault="short_body", operation="get*"))
    server.stub.effects(clear=True)
    for operation in ("get", "get_range"):
        with pytest.raises(StoreUnavailable):
            OPERATIONS[operation](store)
    assert server.stub.effects() == {Effect.TRUNCATED: 2}


# Peeking


QUICK_S = IMPATIENT_TIMEOUTS_S[0] / 10


class SteppingClock(ManualClock):
    """A clock on which each reading advances the time by `step_s` seconds."""

    step_s = QUICK_S

    def monotonic(self) -> float:
        self.advance(self.step_s)
        return super().monotonic()


@dataclass
class Impatient:
    """A store of which the same object has been impatient at once, and how long that took by its
    clock.
    """

    server: Server
    took_s: float
    clock: SteppingClock = field(default_factory=SteppingClock)

    def __post_init__(self) -> None:
        options = {"endpoint": self.server.endpoint, "retries": 0, **KEYS}
        self.store = open_store("s3://bucket/pre", options, self.clock)
        self.store.put("k", b"written")
        self.clock.step_s = self.took_s
        assert self.store.get_impatient("k") == b"written"
        self.server.stub.requests(clear=True)
        self.server.stub.effects(clear=True)

    @property
    def requests(self) -> int:
        return len(self.server.requests)


TIMEOUT_S = 0.2
"""How long `get_impatient` waits in tests, in seconds: a busy machine needs more than six
milliseconds a request.
"""


@pytest.fixture
def unhurried(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server, and impatient gets that wait longer for its answers than elsewhere."""
    for module in (object_connection, objects):
        monkeypatch.setattr(module, "IMPATIENT_TIMEOUTS_S", (TIMEOUT_S, TIMEOUT_S))
    return server


def test_get_impatient_repeats_a_request_if_a_quick_server_is_slow(unhurried) -> None:
    server, impatient = unhurried, Impatient(unhurried, QUICK_S)
    impatient.clock.step_s = TIMEOUT_S
    server.stub.set_rules(HttpRule(fault="hang_before", operation="get", times=2))
    assert impatient.store.get_impatient("k") == b"written"
    assert server.stub.effects() == {Effect.HUNG: 2}


@pytest.mark.parametrize(
    ("took_s", "rule", "requests"),
    [
        (TIMEOUT_S / 2, HttpRule(fault="hang_before", operation="get", times=1), 2),
        (TIMEOUT_S * 0.6, HttpRule(fault="slow", operation="get", delay_ms=(300, 300), times=1), 1),
    ],
    ids=["quick", "less quick"],
)
def test_the_first_request_is_repeated_sooner_where_answers_are_quick(
    server: Server, monkeypatch: pytest.MonkeyPatch, took_s: float, rule: HttpRule, requests: int
) -> None:
    for module in (object_connection, objects):
        monkeypatch.setattr(module, "IMPATIENT_TIMEOUTS_S", (TIMEOUT_S, 50 * TIMEOUT_S))
    monkeypatch.setattr(objects, "NEAR_S", 1.0)
    impatient = Impatient(server, took_s)
    impatient.clock.step_s = TIMEOUT_S
    server.stub.set_rules(rule)
    assert impatient.store.get_impatient("k") == b"written"
    assert impatient.requests == requests


def test_one_slow_answer_does_not_make_a_near_server_count_as_far(unhurried) -> None:
    impatient = Impatient(unhurried, QUICK_S)
    for step_s in (1.0, QUICK_S):
        impatient.clock.step_s = step_s
        assert impatient.store.get_impatient("k") == b"written"
        assert impatient.store.poll_interval == NEAR_POLL_INTERVAL


def test_get_impatient_waits_after_several_timeouts(unhurried) -> None:
    server, impatient = unhurried, Impatient(unhurried, QUICK_S)
    impatient.clock.step_s = TIMEOUT_S
    server.stub.set_rules(
        HttpRule(fault="hang_before", operation="get", times=IMPATIENT_ATTEMPTS),
        HttpRule(fault="slow", operation="get", delay_ms=(300, 300)),
    )
    assert impatient.store.get_impatient("k") == b"written"
    assert server.stub.effects() == {Effect.HUNG: IMPATIENT_ATTEMPTS, Effect.DELAYED: 1}


def test_get_impatient_asks_a_slow_server_once_until_it_is_quicker(unhurried) -> None:
    server, impatient = unhurried, Impatient(unhurried, 2 * NEAR_S)
    server.stub.set_rules(HttpRule(fault="slow", operation="get", delay_ms=(300, 300)))
    assert impatient.store.get_impatient("k") == b"written"
    assert impatient.requests == 1
    server.stub.set_rules()
    impatient.clock.step_s = QUICK_S
    for _ in range(20):
        impatient.store.get_impatient("k")
    server.stub.set_rules(HttpRule(fault="hang_before", operation="get", times=1))
    impatient.clock.step_s = TIMEOUT_S
    assert impatient.store.get_impatient("k") == b"written"
    assert server.stub.effects()[Effect.HUNG] == 1


@pytest.mark.parametrize(
    ("took_s", "pace"), [(NEAR_S * 0.9, NEAR_POLL_INTERVAL), (NEAR_S, POLL_INTERVAL)]
)
def test_a_near_server_is_polled_more_often(unhurried, took_s: float, pace: PollInterval) -> None:
    fresh = open_store(
        "s3://bucket/fresh", {"endpoint": unhurried.endpoint, **KEYS}, SteppingClock()
    )
    assert fresh.poll_interval == POLL_INTERVAL
    assert Impatient(unhurried, took_s).store.poll_interval == pace


def test_a_failing_server_gets_no_repeated_requests(unhurried) -> None:
    server, impatient = unhurried, Impatient(unhurried, QUICK_S)
    server.stub.set_rules(HttpRule(fault="error_before", status=503))
    with pytest.raises(StoreUnavailable):
        impatient.store.get_impatient("k")
    assert impatient.requests == 2


def test_get_impatient_accepts_object_missing_as_an_answer(unhurried) -> None:
    impatient = Impatient(unhurried, QUICK_S)
    with pytest.raises(ObjectMissing):
        impatient.store.get_impatient("missing")
    assert impatient.requests == 1


def test_a_whole_object_in_place_of_a_range_is_not_returned(server, store) -> None:
    server.answer(
        Answer(
            200, b"0123456789", {"ETag": '"x"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        )
    )
    with pytest.raises(StoreUnavailable):
        store.get_range("k", 2, 3)


@pytest.mark.parametrize("operation", ["list", "list_folders", "list_some"])
def test_a_listing_that_cannot_be_read_is_unavailable(server, store, operation: str) -> None:
    server.answer(Answer(200, b"<ListBucketResult><Contents><Key>k"))
    with pytest.raises(StoreUnavailable):
        OPERATIONS[operation](store)


# Listings that lie

NO_LISTINGS = {
    "a page of a proxy": "<html><head><title>Sign in</title></head><body/></html>",
    "an error told as success": "<Error><Code>SlowDown</Code></Error>",
    "a listing without its entries": "<ListBucketResult/>",
}
LISTED = [f"topics/{topic}/{number}" for topic in "abcdefg" for number in range(3)]


def _page(name: str, **when: Any) -> HttpRule:
    return HttpRule(
        fault="error_before", status=200, body=NO_LISTINGS[name], operation="list*", **when
    )


def _keys(store: Store, prefix: str, start_after: str = "") -> list[str]:
    return [entry.key for entry in store.list(prefix, start_after)]


@pytest.fixture
def full(server, store: Store) -> Store:
    for key in LISTED:
        store.put(key, b"x")
    server.stub.effects(clear=True)
    return store


@pytest.mark.fault("S1")
@pytest.mark.parametrize("page", NO_LISTINGS)
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_an_answer_that_is_no_listing_does_not_cut_a_listing_short(
    server, full, page: str, nth: int
) -> None:
    # To the client it is a page without objects and without a successor.
    server.stub.set_rules(_page(page, nth=nth, times=1))
    assert _keys(full, "topics/") == LISTED
    server.stub.set_rules(_page(page, times=1))
    assert full.list_folders("topics/") == list("abcdefg")
    assert server.stub.effects() == {Effect.ERROR_BEFORE: 2}


@pytest.mark.fault("S1")
@pytest.mark.parametrize("prefix", ["topics/", "topics/c/", "topics/g/", ""])
def test_a_server_that_never_answers_with_a_listing_is_unavailable_and_not_empty(
    server, full, prefix: str
) -> None:
    server.stub.set_rules(_page("a page of a proxy"))
    for read in (lambda: _keys(full, prefix), lambda: full.list_folders(prefix)):
        with pytest.raises(StoreUnavailable, match="the listing lacks 'topics/g/2', which exists"):
            read()
    assert server.stub.effects()[Effect.ERROR_BEFORE] > 2


@pytest.mark.fault("S1")
def test_a_web_server_in_place_of_the_store_is_not_an_empty_root(server) -> None:
    """As the console of a MinIO server, which answers every request with its page."""
    # Of no other test.
    store = open_store("s3://bucket/page", {"endpoint": server.endpoint, "retries": 0, **KEYS})
    server.answer(Answer(200, b"<html><body>Sign in</body></html>"))
    for read in (lambda: _keys(store, ""), lambda: store.list_folders("topics/")):
        with pytest.raises(StoreUnavailable):
            read()
    server.stub.set_rules()
    server.stub.requests(clear=True)
    for _ in range(3):
        assert _keys(store, "") == store.list_folders("topics/") == []
    assert sum("_deltaq/none" in request.target for request in server.requests) == 1


@pytest.mark.fault("S1")
def test_a_hidden_folder_is_found_or_unavailable_and_not_empty(server, full) -> None:
    server.stub.set_rules(_page("an error told as success", key="pre/topics/c/*"))
    assert _keys(full, "topics/c/") == ["topics/c/0", "topics/c/1", "topics/c/2"]
    server.stub.set_rules(_page("an error told as success", key="pre/topics/"))
    with pytest.raises(StoreUnavailable, match="the listing lacks 'topics/a/0', which exists"):
        full.list_folders("topics/")
    assert server.stub.effects() == {Effect.ERROR_BEFORE: 3}


def test_an_empty_prefix_is_listed_as_empty(server, full) -> None:
    assert (
        _keys(full, "topics/c/", start_after="topics/c/2")
        == _keys(full, "topics/h/")
        == _keys(full, "a/")
        == []
    )
    assert _keys(full, "topics/c/", start_after="topics/g/") == full.list_folders("topics/h/") == []
    for key in LISTED:
        server.stub.change(f"pre/{key}", None, "bucket")  # by another client
    assert _keys(full, "") == full.list_folders("") == []


@pytest.fixture
def before_the_proof(full, monkeypatch) -> Callable[[Callable[[], object]], None]:
    """Has something done between a listing and the look at what follows it, once."""

    def arrange(work: Callable[[], object]) -> None:
        prove, left = full._listing._missing, [work]

        def first(*arguments: str) -> Any:
            while left:
                left.pop()()
            return prove(*arguments)

        monkeypatch.setattr(full._listing, "_missing", first)

    return arrange


@pytest.mark.parametrize("key", ["topics/c/3", "topics/h/0"])
def test_an_object_written_during_the_second_listing_is_included(
    full, before_the_proof, key: str
) -> None:
    before_the_proof(lambda: full.put(key, b"x"))
    prefix = key[:9]
    assert _keys(full, prefix) == [listed for listed in LISTED if listed.startswith(prefix)] + [key]
    before_the_proof(lambda: full.put("topics/i/0", b"x"))
    assert full.list_folders("topics/")[-1] == "i"


def test_an_object_deleted_during_the_second_listing_is_no_error(
    server, full, before_the_proof
) -> None:
    before_the_proof(lambda: [server.stub.change(f"pre/{key}", None, "bucket") for key in LISTED])
    assert _keys(full, "topics/g/") == LISTED[-3:]
    assert full._listing.known == LISTED[-1]
    assert _keys(full, "topics/") == []


@pytest.mark.fault("S3")
def test_a_page_that_comes_twice_lists_each_object_once(server, full) -> None:
    server.stub.set_rules(HttpRule(fault="repeated_page", operation="list", nth=2, times=1))
    assert _keys(full, "topics/") == LISTED
    assert server.stub.effects() == {Effect.PAGE_REPEATED: 1}


@pytest.mark.fault("S3")
def test_a_page_that_comes_again_and_again_is_unavailable_at_last(server, full) -> None:
    server.stub.set_rules(HttpRule(fault="repeated_page", operation="list"))
    with pytest.raises(StoreUnavailable, match="repeats a page"):
        _keys(full, "topics/")
    assert server.stub.effects()[Effect.PAGE_REPEATED] > 1


def test_a_server_that_is_not_there_is_unavailable_with_a_hint() -> None:
    store = open_store("s3://bucket", {"endpoint": "http://127.0.0.1:9", "retries": 0, **KEYS})
    with pytest.raises(
        StoreUnavailable, match=r"HTTP error: error sending request.*check `endpoint`"
    ):
        store.get("k")


def test_a_server_without_tls_is_unavailable_with_a_hint(server) -> None:
    endpoint = server.endpoint.replace("http://", "https://")
    store = open_store("s3://bucket", {"endpoint": endpoint, "retries": 0, **KEYS})
    with pytest.raises(
        StoreUnavailable,
        match="InvalidMessage: InvalidContentType; the server does not answer in TLS",
    ):
        store.get("k")


@pytest.mark.parametrize(
    ("details", "cause"),
    [
        (
            (
                'ConnectError("dns error", Custom { kind: Uncategorized, error: "failed to lookup'
                ' address information" })'
            ),
            "failed to lookup address information; check `endpoint`",
        ),
        (
            "InvalidCertificate(\n    UnknownIssuer,\n)",
            "InvalidCertificate: UnknownIssuer; check `root_certificate`",
        ),
        (
            'Os { code: 24, message: "Too many open files" }',
            "Too many open files; raise `ulimit -n`",
        ),
    ],
)
def test_the_cause_of_a_request_without_answer_is_named_with_a_remedy(
    details: str, cause: str
) -> None:
    text = (
        "Generic S3 error: Error performing GET https://x/k in 1ms - HTTP error: error sending "
        "request"
    )
    found = outcome("get", "k", GenericError(f"{text}\n\nDebug source:\n{details}"), "s3://bucket")
    assert found.reason.startswith(f"HTTP error: error sending request: {cause}")


# Retries


def test_a_create_is_never_repeated(server) -> None:
    store = open_store("s3://bucket/once", {"endpoint": server.endpoint, "retries": 5, **KEYS})
    for answer in (Answer(500), Answer(503), Answer(silent=True)):
        server.stub.requests(clear=True)
        server.answer(answer)
        with pytest.raises(StoreUnavailable):
            store.create("k", b"x")
        assert len(server.requests) == 1


@pytest.mark.parametrize("operation", ["get", "put", "delete"])
def test_reads_puts_and_deletes_are_repeated(server, operation: str) -> None:
    store = open_store("s3://bucket/retry", {"endpoint": server.endpoint, "retries": 2, **KEYS})
    done = Answer(200, b"x", {"ETag": '"x"', "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"})
    server.answer(Answer(503), Answer(500), done)
    OPERATIONS[operation](store)
    assert len(server.requests) == 3


@pytest.mark.parametrize("operation", ["put", "delete"])
def test_a_refusal_after_a_lost_answer_leaves_the_outcome_open(server, operation: str) -> None:
    store = open_store("s3://bucket/open", {"endpoint": server.endpoint, "retries": 2, **KEYS})
    server.answer(Answer(500), Answer(403, _error("AccessDenied")))
    with pytest.raises(StoreUnavailable, match="AccessDenied"):
        OPERATIONS[operation](store)


def test_a_large_create_is_one_conditional_request(server, store) -> None:
    server.answer(Answer(headers={"ETag": '"x"'}))
    store.create("k", bytes(20 * 1024 * 1024))
    (request,) = server.requests
    assert (request.method, request.target) == ("PUT", "/bucket/pre/k")
    assert request.body_bytes == 20 * 1024 * 1024
    assert request.headers["if-none-match"] == "*"


# Secrets


def _shown(error: BaseException) -> str:
    linked = [below for below in (error.__cause__, error.__context__) if below is not None]
    return (
        "".join(traceback.format_exception(error))
        + repr(vars(error))
        + "".join(map(_shown, linked))
    )


@pytest.mark.fault("K5")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_signature_quoted_by_a_server_is_not_shown(server, store, operation: str) -> None:
    leak = (
        "<Error><Code>SignatureDoesNotMatch</Code><Message>It does not match; sig=abcdef0123 and "
        "X-Amz-Signature=fedcba for "
        f"{SECRET}</Message><AWSAccessKeyId>AKIDPLANTED0001</AWSAccessKeyId>"
        "<StringToSign>AWS4-HMAC-SHA256 "
        "planted-string</StringToSign><SignatureProvided>planted-signature"
        "</SignatureProvided></Error>"
    )
    server.answer(Answer(403, leak.encode()))
    with pytest.raises(StoreRefused, match="SignatureDoesNotMatch") as caught:
        OPERATIONS[operation](store)
    shown = _shown(caught.value)
    assert "It does not match" in shown
    for secret in (
        "abcdef0123",
        "fedcba",
        SECRET,
        "AKIDPLANTED0001",
        "planted-string",
        "planted-signature",
    ):
        assert secret not in shown


@pytest.mark.fault("K5")
@given(
    secret=st.text("abcXYZ019+/=", min_size=4),
    before=st.text(max_size=20),
    after=st.text(max_size=20),
)
def test_a_known_secret_is_masked_wherever_it_stands(secret: str, before: str, after: str) -> None:
    assert secret not in scrub(f"{before}{secret}{after}", {secret}) or secret in "***"


@pytest.mark.fault("K5")
def test_a_secret_within_another_one_does_not_uncover_the_rest() -> None:
    assert scrub("key: abcdef, abcd", {"abcd", "abcdef"}) == "key: ***, ***"


@pytest.mark.fault("K5")
@pytest.mark.parametrize("length", range(180, 205))
def test_a_secret_at_the_end_of_a_long_message_is_not_cut_in_half(
    server, store, length: int
) -> None:
    server.answer(Answer(403, _error("AccessDenied", "x" * length + SECRET)))
    with pytest.raises(StoreRefused) as caught:
        store.get("k")
    assert SECRET[:4] not in _shown(caught.value)


@pytest.mark.fault("K5")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://user:password@host/x", "https://***@host/x"),
        ("GET https://h/x?sv=1&sig=abc%3D&se=2", "GET https://h/x?sv=1&sig=***&se=2"),
        ("?X-Amz-Credential=AK/1&X-Amz-Signature=ff", "?X-Amz-Credential=***&X-Amz-Signature=***"),
        ("nothing to hide: a=b", "nothing to hide: a=b"),
    ],
)
def test_signatures_and_user_information_are_masked(text: str, expected: str) -> None:
    assert scrub(text) == expected


@pytest.mark.fault("K5")
def test_a_secret_that_the_client_cannot_take_is_not_shown_either() -> None:
    with pytest.raises(ValueError, match=r"az://c: .*check the store\.\* options") as caught:
        open_store("az://c", {"account_name": "a", "account_key": f"!{SECRET}"})
    assert SECRET not in _shown(caught.value)


# Options


@pytest.mark.fault("K1")
@pytest.mark.parametrize(
    ("scheme", "options", "fault"),
    [
        ("s3", {"acess_key_id": SECRET}, r"^store\.acess_key_id: no such option of s3:.*mean store\.access_key_id\?$"),  # noqa: E501
        ("gs", {"zzz": 1}, r"store\.zzz: no such option of gs:// stores; known are: allow_http, "),
        ("az", {"access_key_id": SECRET}, r"store\.access_key_id: no such option of az://"),
        ("s3", {"timeout_ms": "1s"}, r"store\.timeout_ms='1s': must be a whole number of milliseconds, 1 or more"),  # noqa: E501
        ("s3", {"timeout_ms": 0}, r"store\.timeout_ms=0: must be"),
        ("s3", {"timeout_ms": True}, r"store\.timeout_ms=True: must be"),
        ("s3", {"timeout_ms": 2**31}, r"store\.timeout_ms=2147483648: must be .* at most 2147483647"),  # noqa: E501
        ("s3", {"timeout_ms": 10**18}, r"store\.timeout_ms=1000000000000000000: must be"),
        ("s3", {"retries": 10**30}, r"store\.retries=1000"),
        ("s3", {"timeout_ms": float("nan")}, r"store\.timeout_ms=nan: must be"),
        ("s3", {"retries": -1}, r"store\.retries=-1: must be a whole number of times, 0 or more"),
        ("s3", {"allow_http": "yes"}, r"store\.allow_http='yes': must be true or false"),
        ("s3", {"region": ""}, r"store\.region='': must be a non-empty string"),
        ("s3", {"access_key_id": ""}, r"store\.access_key_id=\(not shown\): must be a non-empty string"),  # noqa: E501
        ("s3", {"secret_access_key": 12345678}, r"store\.secret_access_key=\(not shown\): must be a non-empty string"),  # noqa: E501
        ("s3", {"secret_access_key": SECRET}, r"store\.access_key_id and store\.secret_access_key belong together"),  # noqa: E501
        ("s3", {"access_key_id": "a"}, r"belong together"),
        ("s3", {"session_token": SECRET}, r"belong together"),
        ("az", {"account_key": SECRET, "sas_key": SECRET}, r"account_key and store\.sas_key: several credentials"),  # noqa: E501
        ("s3", {"endpoint": "localhost:9000"}, r"store\.endpoint: must be an address such as"),
        ("s3", {"endpoint": "http://h:port"}, r"store\.endpoint: must be an address such as"),
        ("s3", {"endpoint": f"http://user:{SECRET}@localhost"}, r"store\.endpoint: must not hold credentials"),  # noqa: E501
        ("s3", {"endpoint": f"https://host/?sig={SECRET}"}, r"store\.endpoint: must not hold credentials"),  # noqa: E501
        ("s3", {"endpoint": "http://10.0.0.1:9000"}, r"endpoint=http://10\.0\.0\.1: .*set store\.allow_http=true"),  # noqa: E501
        ("s3", {"endpoint": "http://10.0.0.1", "allow_http": False}, r"data would travel unencrypted"),  # noqa: E501
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_by_name_with_a_remedy(
    scheme: str, options: dict[str, object], fault: str
) -> None:
    with pytest.raises(ValueError, match=fault) as caught:
        open_store(f"{scheme}://bucket", options)
    assert SECRET not in _shown(caught.value)


@pytest.mark.slow
def test_every_option_reaches_the_client_under_a_name_that_it_knows() -> None:
    examples = {"text": "1", "flag": "true", "count": 3, "ms": "1500"}
    special = {
        "endpoint": "https://host",
        "proxy_url": "http://proxy:1",
        "checksum_algorithm": "SHA256",
        "server_side_encryption": "AES256",
        "request_payer": "requester",
        "root_certificate": None,  # must be a certificate
        "service_account": None,  # must be a file
        "application_credentials": None,
        "service_account_key": None,  # must be a key
        "account_key": "aGVsbG8=",
        "encryption_key": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
        "sse_customer_key_base64": None,  # excludes the other kinds of encryption
        "credential_type": "auto",
        "sas_key": "sv=1&sig=x",
    }
    required: dict[str, dict[str, object]] = {
        "s3": {**KEYS},
        "gs": {"skip_signature": True},
        "az": {"account_name": "acc", "client_id": "client", "tenant_id": "tenant"},
    }
    for scheme, known in OPTIONS.items():
        for name, option in known.items():
            value = special.get(name, examples[option.kind])
            if value is not None:
                store = open_store(f"{scheme}://bucket", {**required[scheme], name: value})
                assert repr(store) == f"<ObjectStore {scheme}://bucket>"


def test_options_take_the_form_that_the_client_wants() -> None:
    settings = object_settings(
        "s3",
        {
            "timeout_ms": "1500",
            "retries": 7,
            "virtual_hosted_style": "True",
            "retry_timeout_ms": 10,
            **KEYS,
        },
        {},
    )
    assert settings.client == {"timeout": timedelta(seconds=1.5)}
    assert (settings.retry["max_retries"], settings.retry["retry_timeout"]) == (
        7,
        timedelta(milliseconds=10),
    )
    assert settings.config == {
        **KEYS,
        "virtual_hosted_style_request": True,
        "conditional_put": "etag",
        "disable_bulk_delete": True,
    }
    assert settings.secrets == set(KEYS.values())
    assert not any(secret in repr(settings) for secret in KEYS.values())


@pytest.mark.parametrize(
    "host", ["localhost:9000", "127.0.0.1", "127.1.2.3:1", "[::1]:9000", "minio.localhost"]
)
def test_plain_http_to_this_machine_needs_no_permission(host: str) -> None:
    settings = object_settings("s3", {"endpoint": f"http://{host}"}, {})
    assert settings.client == {"allow_http": True}
    assert settings.provider == f"S3 at http://{host}"


@pytest.mark.parametrize(
    ("options", "environ"), [({"allow_http": "true"}, {}), ({}, {"AWS_ALLOW_HTTP": "true"})]
)
def test_plain_http_to_another_machine_needs_permission(options, environ) -> None:
    assert object_settings("s3", {"endpoint": "http://10.0.0.1", **options}, environ).client == {
        "allow_http": True
    }


ENDPOINTS = {
    "AWS_ENDPOINT_URL_S3": "https://a",
    "AWS_ENDPOINT_URL": "https://b",
    "AWS_ENDPOINT": "https://c",
}


def test_the_endpoint_comes_from_the_option_then_the_most_specific_variable() -> None:
    environ = dict(ENDPOINTS)
    assert (
        object_settings("s3", {"endpoint": "https://o"}, environ).config["aws_endpoint_url_s3"]
        == "https://o"
    )
    for name, value in ENDPOINTS.items():
        assert object_settings("s3", {}, environ).config["aws_endpoint_url_s3"] == value
        del environ[name]
    assert "aws_endpoint_url_s3" not in object_settings("s3", {}, environ).config
    with pytest.raises(
        ValueError, match="AWS_ENDPOINT_URL=http://far: data would travel unencrypted"
    ):
        object_settings("s3", {}, {"AWS_ENDPOINT_URL": "http://far"})


def test_minio_variables_are_used_if_no_other_key_is_named() -> None:
    minio = {"MINIO_S3_ACCESS_KEY": "minio-key", "MINIO_S3_SECRET_ACCESS_KEY": "minio-secret"}
    config = object_settings("s3", {}, minio).config
    assert (config["access_key_id"], config["secret_access_key"]) == ("minio-key", "minio-secret")
    assert (
        "access_key_id"
        not in object_settings("s3", {}, {**minio, "AWS_ACCESS_KEY_ID": "aws"}).config
    )
    assert "access_key_id" not in object_settings("s3", {}, {"MINIO_S3_ACCESS_KEY": "alone"}).config
    assert object_settings("s3", KEYS, minio).config["access_key_id"] == KEYS["access_key_id"]
    assert "minio-secret" in object_settings("s3", {}, minio).secrets


def _signed_by(request: StubRequest) -> tuple[str, str | None]:
    signer = re.search(r"Credential=([^/]+)/", request.headers["authorization"])
    assert signer
    return signer[1], request.headers.get("x-amz-security-token")


def test_the_client_signs_with_the_chosen_credentials(
    server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer(Answer(404))
    options: dict[str, object] = {"endpoint": server.endpoint, "retries": 0}

    def signed(more: Mapping[str, object]) -> tuple[str, str | None]:
        for operation in (lambda store: store.get("k"), lambda store: store.create("k", b"")):
            with pytest.raises(StoreError):
                operation(open_store("s3://bucket/signed", {**options, **more}))
        assert _signed_by(server.requests[-1]) == _signed_by(server.requests[-2])
        return _signed_by(server.requests[-1])

    monkeypatch.setenv("MINIO_S3_ACCESS_KEY", "MINIO")
    monkeypatch.setenv("MINIO_S3_SECRET_ACCESS_KEY", "minio-secret")
    assert signed({}) == ("MINIO", None)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "FROMENV")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "env-secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "env-token")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    assert signed({}) == ("FROMENV", "env-token")
    # The environment's token belongs to the environment's keys.
    assert signed(KEYS) == ("AKIDPLANTED0001", None)
    assert signed({**KEYS, "session_token": "own-token"}) == ("AKIDPLANTED0001", "own-token")


def test_an_environment_that_switches_conditions_off_is_overruled(
    server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    server.answer(Answer(412))
    with pytest.raises(ObjectExists):
        open_store("s3://bucket/off", {"endpoint": server.endpoint, **KEYS}).create("k", b"")


# Google and Azure


@pytest.mark.parametrize(
    ("url", "options", "condition"),
    [
        ("gs://bucket/pre", {"bearer_token": SECRET}, ("x-goog-if-generation-match", "0")),
        (
            "az://bucket/pre",
            {"account_name": "acc", "sas_key": f"sv=1&sig={SECRET}"},
            ("if-none-match", "*"),
        ),
        (
            "az://bucket/pre",
            {"account_name": "acc", "account_key": "cGxhbnRlZA=="},
            ("if-none-match", "*"),
        ),
    ],
)
def test_google_and_azure_are_asked_to_create_conditionally(
    server, url: str, options, condition
) -> None:
    store = open_store(url, {"endpoint": server.endpoint, "retries": 0, **options})
    server.answer(Answer(headers={"ETag": '"x"', "x-goog-generation": "1"}))
    store.create("k", b"content")
    name, value = condition
    assert server.requests[-1].headers[name] == value
    assert unquote(server.requests[-1].target.partition("?")[0]) == "/bucket/pre/k"
    server.answer(Answer(409 if url.startswith("az") else 412))
    with pytest.raises(ObjectExists):
        store.create("k", b"content")
    server.answer(Answer(403, _error("AuthenticationFailed", f"sig={SECRET}")))
    for operation in OPERATIONS.values():
        with pytest.raises(StoreRefused, match="AuthenticationFailed") as caught:
            operation(store)
        assert SECRET not in _shown(caught.value)
        assert "cGxhbnRlZA==" not in _shown(caught.value)


def test_an_explicit_azure_credential_wins_over_the_environment(
    server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "cGxhbnRlZA==")
    options = {
        "account_name": "acc",
        "sas_key": "sv=1&sig=mine",
        "endpoint": server.endpoint,
        "retries": 0,
    }
    server.answer(Answer(404))
    with pytest.raises(ObjectMissing):
        open_store("az://container", options).get("k")
    assert "sig=mine" in server.requests[-1].target
    assert "authorization" not in server.requests[-1].headers


def test_azures_listing_is_put_into_key_order(server) -> None:
    # With hierarchical names Azure sorts `/` before everything, so `a/b` comes before `a-b`.
    def blob(name: str) -> str:
        return (
            f"<Blob><Name>{name}</Name><Properties><Last-Modified>Thu, 01 Jan 2026 00:00:00 "
            "GMT</Last-Modified>"
            "<Content-Length>1</Content-Length><Content-Type>x</Content-Type><Etag>x</Etag></Properties></Blob>"
        )

    body = "".join(map(blob, ["a/b", "a-b"]))
    listing = f"<EnumerationResults><Blobs>{body}</Blobs><NextMarker/></EnumerationResults>"
    server.answer(Answer(200, listing.encode()))
    store = open_store(
        "az://container", {"account_name": "a", "skip_signature": True, "endpoint": server.endpoint}
    )
    assert [entry.key for entry in store.list("")] == ["a-b", "a/b"]


# Processes


@pytest.mark.fault("P14")
def test_a_forked_child_is_refused_instead_of_hanging(server, store) -> None:
    server.answer(Answer(404))
    with pytest.raises(ObjectMissing):
        store.get("k")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        said = "nothing"
        # Should it hang after all, it is not to outlive the test; the handler in place would need
        # the interpreter.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        try:
            store.get("k")
        except StoreRefused as error:
            said = error.reason
        finally:
            os.write(write_end, said.encode())
            os._exit(0)
    os.close(write_end)
    said = os.read(read_end, 1000).decode()
    os.close(read_end)
    os.waitpid(child, 0)
    assert "forked" in said
    assert "'spawn'" in said

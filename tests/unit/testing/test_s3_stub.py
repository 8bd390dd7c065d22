"""The S3 stub: S3 when nothing is wrong, wrong in the way that was asked for, and true about what
it did.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from typing import Any, get_args
from urllib.parse import urlencode, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltaq.store import ObjectExists, Store, StoreError, StoreUnavailable, open_store
from tests.doubles.reading import eventually
from tests.servers.s3_stub import FAULTS, Effect, HttpFault, HttpRule, S3Stub
from tests.servers.s3_stub.bucket import Request
from tests.servers.s3_stub.rules import HttpRules

pytestmark = pytest.mark.s3

PAGE_KEYS = 4
SIGNED = {
    "Authorization": (
        "AWS4-HMAC-SHA256 Credential=AKID/20260101/us-east-1/s3/aws4_request, Signature=0"
    )
}


@pytest.fixture(scope="module")
def stub() -> Iterator[S3Stub]:
    with S3Stub(page_keys=PAGE_KEYS) as stub:
        yield stub


@pytest.fixture
def prefix(stub: S3Stub) -> str:
    stub.set_rules()
    stub.effects(clear=True)
    stub.requests(clear=True)
    return uuid.uuid4().hex


@pytest.fixture
def store(stub: S3Stub, prefix: str) -> Store:
    return open_store(f"s3://deltaq/{prefix}", stub.options(retries=0))


def ask(
    stub: S3Stub, method: str, target: str, body: bytes = b"", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """A request without any client library around it."""
    connection = HTTPConnection(urlsplit(stub.endpoint).netloc, timeout=20)
    try:
        connection.request(
            method,
            target,
            body,
            SIGNED | {name.replace("_", "-"): headers[name] for name in headers},
        )
        answer = connection.getresponse()
        return (
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            answer.read(),
        )
    finally:
        connection.close()


# --- rules ---


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"fault": "explode"}, r"fault='explode': must be one of error_before, "),
        ({"nth": 0}, "nth=0"),
        ({"times": 0}, "times=0"),
        ({"keys": 0}, "keys=0"),
        ({"probability": 0.0}, r"probability=0\.0: must be above 0 and at most 1"),
        ({"probability": 1.5}, r"probability=1\.5"),
        ({"probability": float("nan")}, "probability=nan"),
        ({"delay_ms": (5, 1)}, r"delay_ms=\(5, 1\): must be \(least, most\)"),
        ({"status": 0}, "status=0: must be within 200 and 599"),
        ({"status": 99, "fault": "late_apply"}, "status=99"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_by_name(wrong: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        HttpRule(**({"fault": "error_before"} | wrong))


def test_a_rule_survives_the_way_to_the_stub() -> None:
    rule = HttpRule(
        fault="late_apply",
        key="*/a",
        times=3,
        delay_ms=(2, 5),
        headers={"x": "y"},
        body="b",
        keys=2,
    )
    assert HttpRule.from_json(rule.as_json() | {"delay_ms": [2, 5]}) == rule


def hits(
    rules: HttpRules,
    count: int,
    operation: str = "create",
    key: str = "a/b",
    access_key: str = "AKID",
) -> str:
    """Which of so many requests are hit, as a text of `x` and `.`."""
    return "".join("x" if rules.hit(operation, key, access_key) else "." for _ in range(count))


def test_a_rule_strikes_from_the_nth_match_and_as_often_as_it_may() -> None:
    rules = HttpRules()
    rules.replace(
        [
            HttpRule(
                fault="error_before", operation="cr*", key="a/*", access_key="AK*", nth=3, times=2
            )
        ]
    )
    assert hits(rules, 2) == ".."
    assert (
        hits(rules, 5, operation="put") + hits(rules, 5, key="b/a") + hits(rules, 5, access_key="X")
        == "." * 15
    )
    assert hits(rules, 5) == "xx..."


def test_the_first_rule_that_strikes_counts_and_all_that_fit_have_seen_the_request() -> None:
    rules = HttpRules()
    first, second = HttpRule(fault="slow", times=1), HttpRule(fault="flip_bit", nth=3)
    rules.replace([first, second])
    found = [rules.hit("get", "k", "") for _ in range(3)]
    assert found == [(first, 1), None, (second, 3)]


@given(st.integers(0, 10**6))
def test_chance_depends_on_the_seed_and_on_nothing_else(seed: int) -> None:
    def run(seed: int) -> str:
        rules = HttpRules()
        rules.replace([HttpRule(fault="slow", probability=0.4, seed=seed)])
        return hits(rules, 200)

    assert run(seed) == run(seed)
    assert run(seed) != run(seed + 1)
    assert 40 < run(seed).count("x") < 120


@given(st.integers(0, 10**6), st.integers(1, 100))
def test_delays_are_within_their_range(seed: int, number: int) -> None:
    rule = HttpRule(fault="slow", delay_ms=(3, 9), seed=seed)
    assert 0.003 <= rule.delay_s(number) <= 0.009
    assert rule.delay_s(number) == rule.delay_s(number)


@pytest.mark.parametrize(
    ("method", "target", "headers", "operation", "subject"),
    [
        ("PUT", "/b/a%20b/c", {}, "put", "a b/c"),
        ("PUT", "/b/k", {"If-None-Match": "*"}, "create", "k"),
        ("GET", "/b/k", {}, "get", "k"),
        ("GET", "/b/k", {"Range": "bytes=0-1"}, "get_range", "k"),
        ("HEAD", "/b/k", {}, "head", "k"),
        ("DELETE", "/b/k", {}, "delete", "k"),
        ("GET", "/b?list-type=2&prefix=p%2Fq%2F", {}, "list", "p/q/"),
        ("GET", "/b/?list-type=2&prefix=p&delimiter=%2F", {}, "list_folders", "p"),
        ("POST", "/b/k?uploads", {}, "multipart", "k"),
        ("PUT", "/b/k?partNumber=1&uploadId=7", {}, "multipart", "k"),
        ("PUT", "/b", {}, "other", ""),
        ("POST", "/b/k", {}, "other", "k"),
    ],
)
def test_a_request_is_known_by_what_it_does_for_a_store(
    method: str, target: str, headers: dict[str, str], operation: str, subject: str
) -> None:
    request = Request.of(method, target, headers, b"")
    assert (request.bucket, request.operation, request.subject) == ("b", operation, subject)


# --- S3 without faults: what the contract suite cannot see through the client ---


def test_conditions_that_the_stub_does_not_know_are_refused_and_not_ignored(
    stub: S3Stub, prefix: str
) -> None:
    assert ask(stub, "PUT", f"/deltaq/{prefix}/k", b"x", If_Match='"etag"')[0] == 501
    assert ask(stub, "PUT", f"/deltaq/{prefix}/k", b"x", If_None_Match='"etag"')[0] == 501
    assert ask(stub, "POST", f"/deltaq/{prefix}/k", b"x")[0] == 501
    assert stub.objects(prefix) == {}


def test_a_body_that_is_not_what_was_signed_is_refused(stub: S3Stub, prefix: str) -> None:
    digest = hashlib.sha256(b"what was meant").hexdigest()
    status, _, body = ask(
        stub, "PUT", f"/deltaq/{prefix}/k", b"what came", x_amz_content_sha256=digest
    )
    assert (status, b"XAmzContentSHA256Mismatch" in body) == (400, True)
    assert (
        ask(stub, "PUT", f"/deltaq/{prefix}/k", b"what was meant", x_amz_content_sha256=digest)[0]
        == 200
    )


def test_head_tells_the_size_and_sends_no_body(stub: S3Stub, store: Store, prefix: str) -> None:
    store.put("k", b"12345")
    status, headers, body = ask(stub, "HEAD", f"/deltaq/{prefix}/k")
    assert (status, headers["content-length"], body) == (200, "5", b"")
    assert ask(stub, "HEAD", f"/deltaq/{prefix}/none")[0] == 404


@pytest.mark.parametrize(
    ("wanted", "status", "body"),
    [
        ("bytes=1-2", 206, b"12"),
        ("bytes=3-", 206, b"34"),
        ("bytes=-2", 206, b"34"),
        ("bytes=0-99", 206, b"01234"),
        ("bytes=5-6", 416, None),
    ],
)
def test_ranges_are_those_of_http(
    stub: S3Stub, store: Store, prefix: str, wanted: str, status: int, body
) -> None:
    store.put("k", b"01234")
    found = ask(stub, "GET", f"/deltaq/{prefix}/k", Range=wanted)
    assert found[0] == status
    assert body is None or found[2] == body


def test_a_bucket_exists_once_it_is_made(stub: S3Stub, prefix: str) -> None:
    bucket = f"b{prefix}"
    status, _, body = ask(stub, "PUT", f"/{bucket}/k", b"x")
    assert (status, b"NoSuchBucket" in body) == (404, True)
    assert ask(stub, "PUT", f"/{bucket}")[0] == 200
    assert ask(stub, "PUT", f"/{bucket}/k", b"x")[0] == 200
    assert stub.objects(bucket=bucket) == {"k": b"x"}


@settings(max_examples=30)
@given(
    keys=st.sets(st.text("ab/.-", min_size=1, max_size=5), max_size=12),
    prefix=st.text("ab/", max_size=2),
    after=st.text("ab/.", max_size=3),
)
def test_pages_put_together_are_the_keys_or_folders_below_the_prefix(
    stub: S3Stub, keys: set[str], prefix: str, after: str
) -> None:
    stub.set_rules()
    for key in stub.objects("listed/"):
        stub.change(key, None)
    for key in keys:
        stub.change(f"listed/{key}", b"x")
    below = sorted(key for key in keys if key.startswith(prefix))
    assert listed(stub, prefix=f"listed/{prefix}", start_after=f"listed/{after}") == [
        k for k in below if k > after
    ]
    ends = [key.find("/", len(prefix)) + 1 or len(key) for key in below]
    folders = dict.fromkeys(key[:end] for key, end in zip(below, ends, strict=True))
    assert listed(stub, prefix=f"listed/{prefix}", delimiter="/") == list(folders)


def listed(stub: S3Stub, **query: str) -> list[str]:
    """Keys and folders of all pages, in their order."""
    found: list[str] = []
    query = {"list-type": "2"} | {name.replace("_", "-"): value for name, value in query.items()}
    while True:
        body = ask(stub, "GET", f"/deltaq?{urlencode(query)}")[2].decode()
        page = re.findall(r"<(?:Contents><Key|CommonPrefixes><Prefix)>([^<]*)<", body)
        assert len(page) <= PAGE_KEYS
        found += [entry.removeprefix("listed/") for entry in page]
        more = re.search(r"<NextContinuationToken>([^<]*)<", body)
        if more is None:
            return found
        query["continuation-token"] = more[1]


# --- what faults do, and what is counted ---


def create(store: Store) -> None:
    store.create("new", b"x")


def create_taken(store: Store) -> None:
    store.create("k0", b"x")


def get(store: Store) -> object:
    return store.get("k0")


def list_all(store: Store) -> object:
    return list(store.list(""))


HAPPENS: dict[HttpFault, tuple[Callable[[Store], object], Effect]] = {
    "error_before": (create, Effect.ERROR_BEFORE),
    "error_after": (create, Effect.ANSWER_LOST),
    "reset_before": (create, Effect.ERROR_BEFORE),
    "reset_after": (create, Effect.ANSWER_LOST),
    "hang_before": (create, Effect.HUNG),
    "hang_after": (create, Effect.ANSWER_LOST),
    "late_apply": (create, Effect.LATE_WRITE_LANDED),
    "ignored_condition": (create_taken, Effect.CONDITION_IGNORED),
    "stale_list": (list_all, Effect.KEYS_HIDDEN),
    "repeated_page": (list_all, Effect.PAGE_REPEATED),
    "short_body": (get, Effect.TRUNCATED),
    "truncate": (get, Effect.TRUNCATED),
    "flip_bit": (get, Effect.BIT_FLIPPED),
    "slow": (get, Effect.DELAYED),
}


@pytest.mark.parametrize("fault", get_args(HttpFault))
def test_every_fault_is_described_has_its_effect_and_is_counted(
    stub: S3Stub, store: Store, prefix: str, fault: HttpFault
) -> None:
    work, effect = HAPPENS[fault]
    for number in range(PAGE_KEYS + 2):
        store.put(f"k{number}", b"0123456789")
    hurried = open_store(
        store.url, stub.options(retries=0, timeout_ms=200 if "hang" in fault else 30_000)
    )
    stub.set_rules(HttpRule(fault=fault, delay_ms=(0, 1)))
    try:
        work(hurried)
    except StoreError:
        pass
    eventually(lambda: set(stub.effects()) == {effect}, f"the effect of {fault}")
    done = f"{prefix}/new" in stub.objects(prefix) or stub.objects(prefix)[f"{prefix}/k0"] == b"x"
    assert done == (
        fault in {"error_after", "reset_after", "hang_after", "late_apply", "ignored_condition"}
    )
    assert len(FAULTS[fault]) > 20


def test_what_a_fault_could_not_do_is_not_counted(stub: S3Stub, store: Store) -> None:
    store.put("old", b"")
    stub.set_rules(HttpRule(fault="ignored_condition"))
    store.create("new", b"x")
    store.put("old", b"")
    stub.set_rules(HttpRule(fault="truncate"))
    assert store.get("old") == b""
    stub.set_rules(HttpRule(fault="flip_bit"))
    assert store.get("old") == b""
    stub.set_rules(HttpRule(fault="repeated_page"))
    assert [entry.key for entry in store.list("")] == ["new", "old"]
    assert stub.effects() == {}


def test_a_lost_refusal_is_distinguished_from_a_lost_success(
    stub: S3Stub, store: Store, prefix: str
) -> None:
    store.put("taken", b"first")
    for rule in (HttpRule(fault="error_after"), HttpRule(fault="reset_after")):
        stub.set_rules(rule)
        with pytest.raises(StoreUnavailable):
            store.create("taken", b"second")
    stub.set_rules(HttpRule(fault="late_apply", delay_ms=(0, 0)))
    with pytest.raises(StoreUnavailable):
        store.create("taken", b"second")
    eventually(
        lambda: stub.effects() == {Effect.REFUSAL_LOST: 2, Effect.LATE_WRITE_REFUSED: 1},
        "three lost refusals",
    )
    assert stub.objects(prefix) == {f"{prefix}/taken": b"first"}


def test_a_late_write_is_missing_when_its_failure_is_reported(
    stub: S3Stub, store: Store, prefix: str
) -> None:
    # The delay is as long as the test likes: what ends it is the stub's own end, in another test's
    # time.
    stub.set_rules(HttpRule(fault="late_apply", status=0, delay_ms=(600_000, 600_000)))
    with pytest.raises(StoreUnavailable):
        store.create("late", b"x")
    stub.set_rules()
    assert stub.objects(prefix) == {}
    store.create("late", b"y")
    assert stub.objects(prefix) == {f"{prefix}/late": b"y"}


def test_a_stale_listing_lacks_what_was_written_last_and_nothing_else(
    stub: S3Stub, store: Store
) -> None:
    for key in ("c", "a", "d", "b"):
        store.put(key, b"")
    stub.set_rules(HttpRule(fault="stale_list", keys=2))
    assert [entry.key for entry in store.list("")] == ["a", "c"]
    assert stub.effects()[Effect.KEYS_HIDDEN] >= 1


def test_rules_may_depend_on_who_signed(stub: S3Stub, store: Store) -> None:
    other = open_store(store.url, stub.options(access_key_id="OTHER", retries=0))
    stub.set_rules(HttpRule(fault="error_before", access_key="OTHER"))
    store.create("k", b"")
    with pytest.raises(StoreUnavailable):
        other.get("k")
    stub.set_rules()
    with pytest.raises(ObjectExists):
        other.create("k", b"")


def test_the_stub_tells_what_it_was_asked(stub: S3Stub, store: Store, prefix: str) -> None:
    store.create("a b", b"12345")
    (request,) = stub.requests(clear=True)
    assert (request.operation, request.key, request.method, request.body_bytes) == (
        "create",
        f"{prefix}/a b",
        "PUT",
        5,
    )
    assert request.headers["if-none-match"] == "*"
    assert request.target == f"/deltaq/{prefix}/a%20b"
    assert stub.requests() == []


# --- the process ---


def test_the_stub_ends_with_its_owner_however_that_ends() -> None:
    program = """
import sys
from tests.servers.s3_stub import S3Stub
stub = S3Stub().start()
print(stub.endpoint, flush=True)
sys.stdin.read()
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with owner:
        assert owner.stdout is not None
        endpoint = owner.stdout.readline().strip()
        assert is_served(endpoint)
        owner.kill()
    eventually(lambda: not is_served(endpoint), "the end of the stub")


def is_served(endpoint: str) -> bool:
    connection = HTTPConnection(urlsplit(endpoint).netloc, timeout=20)
    try:
        connection.request("GET", "/-/effects")
        return connection.getresponse().read() == b"{}"
    except OSError:
        return False
    finally:
        connection.close()


def test_a_stub_that_is_closed_is_gone_and_may_be_closed_again() -> None:
    stub = S3Stub(["first", "second"])
    with stub:
        assert stub.objects(bucket="second") == {}
        endpoint = stub.endpoint
    stub.close()
    assert not is_served(endpoint)


def test_a_stub_that_cannot_serve_says_so(stub: S3Stub) -> None:
    port = urlsplit(stub.endpoint).port
    command = [sys.executable, "-m", "tests.servers.s3_stub", f"--port={port}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode != 0
    assert ended.stdout == ""
    assert "Address already in use" in ended.stderr


def test_a_wrong_request_to_the_control_path_is_reported(stub: S3Stub) -> None:
    with pytest.raises(RuntimeError, match="the S3 stub answered 404 to GET nonsense"):
        stub._ask("GET", "nonsense")

"""`deltaq.setup` on a server that speaks S3 and is no MinIO, and for roots that are no buckets."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
import urllib.request
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

import deltaq
from deltaq import InvalidConfig, Producer, Unavailable, UnsafeStore
from deltaq.root import open_root
from deltaq.store import bucket_setup
from deltaq.store.bucket_admin import BucketAdmin
from deltaq.store.bucket_policies import ROLES, role_policies
from deltaq.store.object_options import object_settings
from deltaq.testing import Fault, FaultyStore, Rule
from tests.servers.local_server import free_port
from tests.servers.s3_stub import S3Stub

SECRET = "planted-secret-access-key"
KEYS = {
    "store.access_key_id": "planted-access-key-id",
    "store.secret_access_key": SECRET,
    "store.region": "us-east-1",
}
SPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
EXPIRES_LOGS = (
    "<LifecycleConfiguration"
    f' xmlns="{SPACE}"><Rule><ID>logs</ID><Filter><Prefix>logs/</Prefix></Filter>'
    "<Status>Enabled</Status><Expiration><Days>3</Days></Expiration></Rule></LifecycleConfiguration>"
)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """An S3 server that knows neither users nor MinIO's administration."""
    with S3Stub() as stub:
        yield stub.endpoint


@pytest.fixture
def bucket() -> str:
    return f"events-{uuid.uuid4().hex[:12]}"


def ask(method: str, url: str, body: str = "") -> str:
    headers = {"Content-Type": "application/xml", "Authorization": "Credential=test/"}
    request = urllib.request.Request(
        url, method=method, data=body.encode() or None, headers=headers
    )
    with urllib.request.urlopen(request) as answer:
        text: str = answer.read().decode()
    return text


# --- a bucket
# --------------------------------------------------------------------------------------------------


@pytest.mark.s3
def test_a_bucket_is_made_with_its_rule_and_the_policies_are_returned(
    endpoint: str, bucket: str
) -> None:
    conf = {"store.endpoint": endpoint, **KEYS}
    done = deltaq.setup(f"s3://{bucket}/prod", conf)
    assert (done.root, done.bucket, done.abort_rule) == (f"s3://{bucket}/prod", "made", "made")
    assert [(policy.role, policy.outcome) for policy in done.policies] == [
        (role, "left to you") for role in ROLES
    ]
    expected = role_policies(done.root, bucket, "prod", "aws")
    assert {policy.role: json.loads(policy.document) for policy in done.policies} == expected
    rules = ask("GET", f"{endpoint}/{bucket}?lifecycle")
    assert "<Prefix>prod/</Prefix>" in rules
    assert "<DaysAfterInitiation>7</DaysAfterInitiation>" in rules
    with Producer({"bootstrap.servers": done.root, **conf}) as producer:
        producer.produce("t", b"x")


@pytest.mark.s3
def test_a_second_setup_finds_all_that_the_first_has_made(endpoint: str, bucket: str) -> None:
    conf = {"store.endpoint": endpoint, **KEYS}
    deltaq.setup(f"s3://{bucket}/prod", conf)
    before = ask("GET", f"{endpoint}/{bucket}?lifecycle")
    again = deltaq.setup(f"s3://{bucket}/prod", conf)
    assert (again.bucket, again.abort_rule) == ("there", "there")
    assert ask("GET", f"{endpoint}/{bucket}?lifecycle") == before


@pytest.mark.s3
def test_the_rules_that_a_bucket_has_stay_beside_the_new_one(endpoint: str, bucket: str) -> None:
    ask("PUT", f"{endpoint}/{bucket}")
    ask("PUT", f"{endpoint}/{bucket}?lifecycle", EXPIRES_LOGS)
    done = deltaq.setup(f"s3://{bucket}/prod", {"store.endpoint": endpoint, **KEYS})
    assert (done.bucket, done.abort_rule) == ("there", "made")
    rules = ask("GET", f"{endpoint}/{bucket}?lifecycle")
    assert rules.count("<Rule>") == 2
    assert "<ID>logs</ID>" in rules
    assert "<Expiration><Days>3</Days>" in "".join(rules.split())


@pytest.mark.s3
def test_endpoint_and_credentials_come_from_the_environment_too(
    endpoint: str, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-the-environment")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    assert deltaq.setup(f"s3://{bucket}").bucket == "made"
    assert "<Prefix" in ask("GET", f"{endpoint}/{bucket}?lifecycle")


@pytest.mark.s3
@pytest.mark.fault("K5")
def test_neither_the_result_nor_an_error_shows_the_keys(endpoint: str, bucket: str) -> None:
    done = deltaq.setup(f"s3://{bucket}/prod", {"store.endpoint": endpoint, **KEYS})
    away = {
        "store.endpoint": f"http://127.0.0.1:{free_port()}",
        "store.connect_timeout_ms": 300,
        **KEYS,
    }
    with pytest.raises(Unavailable, match="could not check whether the bucket exists") as error:
        deltaq.setup(f"s3://{bucket}", away)
    assert error.value.args[0].retriable()
    assert error.value.__context__ is None
    for text in (repr(done), str(done), str(error.value), repr(error.value)):
        assert "planted" not in text


class Refusing(BaseHTTPRequestHandler):
    """Answers as S3 does to a user without permission."""

    def do_HEAD(self) -> None:
        self.send_response(403)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def certificate() -> tuple[str, str]:
    """A certificate for this machine that no authority knows, and its key, both PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return signed.public_bytes(Encoding.PEM).decode(), secret.decode()


@pytest.fixture(scope="module")
def secure_endpoint(
    certificate: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    pem = tmp_path_factory.mktemp("tls") / "server.pem"
    pem.write_text("".join(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.s3
@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
@pytest.mark.parametrize(
    ("trust", "answer"),
    [
        ({}, "no answer"),
        ({"store.root_certificate": "the server's"}, "AccessDenied"),
        ({"store.allow_invalid_certificates": "true"}, "AccessDenied"),
    ],
    ids=["of nothing", "of its certificate", "of anything"],
)
def test_certificates_are_checked_as_the_clients_options_say(
    trust: dict[str, str], answer: str, secure_endpoint: str, certificate: tuple[str, str]
) -> None:
    if "store.root_certificate" in trust:
        trust = {"store.root_certificate": certificate[0]}
    with pytest.raises(Unavailable, match=f"could not check whether the bucket exists: {answer}"):
        deltaq.setup("s3://events", {"store.endpoint": secure_endpoint, **KEYS, **trust})


@pytest.mark.parametrize(
    ("options", "address", "is_aws"),
    [
        ({}, "https://events.s3.us-east-1.amazonaws.com/", True),
        ({"region": "eu-west-1"}, "https://events.s3.eu-west-1.amazonaws.com/", True),
        ({"region": "cn-north-1"}, "https://events.s3.cn-north-1.amazonaws.com.cn/", True),
        ({"endpoint": "https://store.example.com"}, "https://store.example.com/events", False),
        (
            {"endpoint": "https://events.store.example.com", "virtual_hosted_style": "true"},
            "https://events.store.example.com/",
            False,
        ),
    ],
)
def test_the_bucket_is_looked_up_at_the_endpoint_of_the_clients(
    options: dict[str, str], address: str, is_aws: bool
) -> None:
    keys = {"access_key_id": "planted-key-id", "secret_access_key": SECRET}
    admin = BucketAdmin("s3://events", "events", object_settings("s3", {**keys, **options}, {}))
    assert (
        admin._client._base_url.build(
            method="GET", region=admin.region, bucket_name="events"
        ).geturl()
        == address
    )
    assert admin.is_aws == is_aws


def test_missing_credentials_raise_an_error_that_says_where_to_put_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    # Where a container asks for those of its role: nothing answers there.
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{free_port()}/")
    with pytest.raises(InvalidConfig, match=r"no credentials; set store\.access_key_id"):
        deltaq.setup("s3://events", {"store.endpoint": f"http://127.0.0.1:{free_port()}"})


def test_setup_prints_a_line_for_each_part_it_made() -> None:
    done = bucket_setup.BucketSetup(
        "s3://b",
        "made",
        "there",
        (bucket_setup.RolePolicy("reader", "deltaq-reader-b", "{}", "left to you"),),
    )
    assert [line.strip() for line in str(done).splitlines()] == [
        "s3://b",
        "bucket: made",
        "rule for incomplete uploads: there",
        "policy deltaq-reader-b: left to you",
    ]
    assert done.policy("reader").document == "{}"


# --- other roots
# --------------------------------------------------------------------------------------------------


def test_a_folder_is_made_and_found_the_next_time(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    assert deltaq.setup(folder) == bucket_setup.BucketSetup(folder.as_uri(), "made", "not needed")
    assert folder.is_dir()
    assert deltaq.setup(folder).bucket == "there"


def test_a_memory_root_needs_no_setup_but_is_probed(memory_root: str) -> None:
    assert deltaq.setup(memory_root) == bucket_setup.BucketSetup(
        memory_root, "not needed", "not needed"
    )


def test_a_store_that_ignores_create_if_absent_is_refused(
    memory_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def careless(*about: Any) -> FaultyStore:
        return FaultyStore(
            open_root(*about), Rule("create", "*", Fault.ignored_condition(), times=None)
        )

    monkeypatch.setattr("deltaq.store.bucket_setup.open_root", careless)
    with pytest.raises(UnsafeStore, match="If-None-Match"):
        deltaq.setup(memory_root)


@pytest.mark.parametrize(
    ("root", "tool"),
    [
        ("gs://events/prod", "gcloud storage buckets create"),
        ("az://events", "az storage container"),
    ],
)
def test_buckets_of_other_providers_are_refused_with_the_tool_that_makes_them(
    root: str, tool: str
) -> None:
    account = (
        {"store.account_name": "a", "store.account_key": "Zm9v"} if root.startswith("az") else {}
    )
    with pytest.raises(InvalidConfig, match=tool):
        deltaq.setup(root, account)


@pytest.mark.parametrize(
    ("root", "conf", "reason"),
    [
        ("s3://events", {"bootstrap.servers": "s3://other"}, "another root"),
        ("s3://events", {"store.endpint": "http://localhost:1"}, "store.endpoint"),
        ("s3://events", {"linger.mss": 5}, "linger.ms"),
        ("s3://events/a*b", KEYS, "prefix without it"),
        ("s3://events", {"store.endpoint": "http://localhost:1/path", **KEYS}, "without a path"),
        ("s3://events", {"store.role_arn": "arn:aws:iam::1:role/x"}, "store.role_arn"),
        ("s3://events", {"store.root_certificate": "no certificate", **KEYS}, "PEM"),
    ],
)
def test_unusable_arguments_are_refused_before_any_request(
    root: str, conf: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        deltaq.setup(root, conf)


def test_a_missing_sdk_raises_an_error_that_names_the_extra() -> None:
    program = """
import sys
sys.modules["minio"] = None  # as if it were not installed
import deltaq
assert deltaq.setup("memory://x").bucket == "not needed"
try:
    deltaq.setup("s3://events", {"store.access_key_id": "planted", "store.secret_access_key": "planted"})
except ImportError as error:
    print(error)
"""  # noqa: E501
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "pip install 'deltaq[minio]'" in done.stdout
    assert "planted" not in done.stdout + done.stderr

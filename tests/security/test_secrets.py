"""Nothing secret is ever shown, and nothing that is shown can be mistaken for something else.

A whole session runs with planted secrets, the root logger at its most talkative, against a server
that quotes all that it is sent. Then everything that was said, raised, returned or written is
searched for them.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import threading
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from deltaq import Consumer, Corrupt, KafkaException, Message, Producer, Topic, TopicPartition
from deltaq.admin import (
    AdminClient,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    TopicCollection,
)
from deltaq.store import open_store

KEY_ID, SECRET, TOKEN = (
    "AKIAPLANTED000000001",
    "planted/secret+0123456789abcdefghij",
    "plantedSessionToken==ZZZZ",
)
SAS, USER, PASSWORD = "sv=2024&sig=plantedSignature%3D", "planteduser", "plantedpassword"
PLANTED = [KEY_ID, SECRET, TOKEN, "plantedSignature", USER, PASSWORD]
FORGED = "x\n2026-01-01 CRITICAL all is lost\r\x1b[2J\u2028"


class Mirror(BaseHTTPRequestHandler):
    """Refuses everything, and quotes the request in the answer, as servers do with a signature that
    does not match.
    """

    status = 403
    message = ""
    quoted: list[str] = []  # noqa: RUF012 - of the whole test, emptied by the fixture

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = f"{self.path} {dict(self.headers)}"
        self.quoted.append(request)
        code = "SignatureDoesNotMatch" if self.status == 403 else "InternalError"
        text = (
            self.message or f"you sent {request.replace('<', '')}; secrets are {' '.join(PLANTED)}"
        )
        body = f"<Error><Code>{code}</Code><Message>{text}</Message><StringToSign>{request}</StringToSign></Error>"  # noqa: E501
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body.encode())))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body.encode())

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer  # noqa: N815 - the names that http.server looks for

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the signature of http.server
        """Not to the terminal."""


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in [
        name for name in os.environ if name.startswith(("AWS_", "MINIO_", "GOOGLE_", "AZURE_"))
    ]:
        monkeypatch.delenv(name)
    Mirror.quoted.clear()
    Mirror.status, Mirror.message = 403, ""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def log_lines() -> Iterator[list[str]]:
    """Every log record at any level, as it would stand in a file."""
    lines: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(f"{self.format(record)} {vars(record)}")

    root, listener = logging.getLogger(), Listener(logging.DEBUG)
    level = root.level
    root.addHandler(listener)
    root.setLevel(logging.DEBUG)
    yield lines
    root.removeHandler(listener)
    root.setLevel(level)


def everything(error: BaseException | None) -> str:
    """All that hangs on an exception: traceback, arguments, attributes, what it came from, and its
    pickle.
    """
    if error is None:
        return ""
    text = "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
    try:
        text += repr(pickle.dumps(error))
    except (TypeError, AttributeError, pickle.PicklingError) as refusal:
        text += str(refusal)
    return text + everything(error.__cause__) + everything(error.__context__)


def said(call: Callable[[], object]) -> str:
    """What a call returns or raises, in full."""
    try:
        answer = call()
    except Exception as error:  # noqa: BLE001 - no error of any class may show a secret
        return everything(error)
    if isinstance(answer, dict) and all(hasattr(future, "exception") for future in answer.values()):
        return "".join(everything(future.exception(30)) for future in answer.values())
    return f"{answer!r} {answer}"


def session(conf: dict[str, Any]) -> list[str]:
    """Everything a program might do, and every answer that it gets."""
    answers = []
    reports: list[str] = []
    fast = {
        "message.timeout.ms": 200,
        "linger.ms": 0,
        "error_cb": lambda error: reports.append(repr(error)),
    }
    with Producer(
        conf | fast, on_delivery=lambda error, message: reports.append(f"{error} {message}")
    ) as producer:
        answers += [
            said(lambda: producer.produce("t", b"v", b"k")),
            said(lambda: producer.flush(5)),
            repr(producer),
        ]
        answers += [
            said(lambda: producer.list_topics(timeout=5)),
            said(producer.cluster_id),
            repr(vars(producer)),
        ]
        answers.append(said(lambda: pickle.dumps(producer)))
    with AdminClient(conf) as admin:
        answers += [
            said(lambda: admin.create_topics([NewTopic("u")])),
            said(lambda: admin.delete_topics(["u"])),
            repr(admin),
        ]
        answers += [
            said(lambda: admin.describe_topics(TopicCollection(["t"]))),
            said(admin.list_topics),
        ]
        answers.append(said(lambda: admin.describe_cluster().result(5)))
    topic = Topic("t", conf=conf)
    answers += [
        said(topic.exists),
        said(topic.to_arrow),
        said(topic.describe),
        repr(topic),
        said(lambda: pickle.dumps(topic)),
    ]
    reading = {
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "error_cb": lambda error: reports.append(repr(error)),
    }
    consumer = Consumer(conf | reading | {"session.timeout.ms": 6000})
    consumer.assign([TopicPartition("t", 0)])
    for _ in range(3):
        answers.append(said(lambda: consumer.poll(0.1)))
    answers += [
        said(lambda: consumer.committed([TopicPartition("t", 0)])),
        repr(consumer),
        repr(vars(consumer)),
    ]
    answers += [
        said(lambda: consumer.commit(asynchronous=False)),
        said(lambda: pickle.dumps(consumer)),
    ]
    answers.append(said(consumer.close))
    return answers + reports


def found_in(texts: list[str]) -> list[str]:
    return [secret for secret in PLANTED for text in texts if secret in text]


OPTIONS = {
    "store.access_key_id": KEY_ID,
    "store.secret_access_key": SECRET,
    "store.session_token": TOKEN,
}
ENVIRONMENTS = {
    "AWS": {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": TOKEN,
    },
    "MinIO": {"MINIO_S3_ACCESS_KEY": KEY_ID, "MINIO_S3_SECRET_ACCESS_KEY": SECRET},
}


@pytest.mark.fault("K5")
@pytest.mark.parametrize("status", [403, 500])
@pytest.mark.parametrize("planted_in", ["options", *ENVIRONMENTS])
def test_a_session_with_a_bucket_that_refuses_shows_no_secret(
    endpoint, log_lines, monkeypatch, planted_in, status
):
    Mirror.status = status
    conf: dict[str, Any] = {
        "bootstrap.servers": "s3://bucket/pre",
        "store.endpoint": endpoint,
        "store.retries": 0,
    }
    conf |= {"store.region": "us-east-1"}
    if planted_in == "options":
        conf |= OPTIONS
    for name, value in ENVIRONMENTS.get(planted_in, {}).items():
        monkeypatch.setenv(name, value)
    texts = session(conf)
    assert found_in(texts + log_lines) == []
    assert any(KEY_ID in request for request in Mirror.quoted), "the keys were used"
    assert sum(str(status) in text for text in texts) > 5, "the refusals were seen"


@pytest.mark.fault("K5")
@pytest.mark.parametrize("kind", ["memory", "local"])
def test_a_session_on_local_disk_shows_and_writes_no_secret(log_lines, monkeypatch, kind, tmp_path):
    for name, value in [
        (name, value) for names in ENVIRONMENTS.values() for name, value in names.items()
    ]:
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AZURE_STORAGE_SAS_KEY", SAS)
    root = "memory://planted" if kind == "memory" else str(tmp_path / "root")
    texts = session({"bootstrap.servers": root})
    store = open_store(root)
    written = [store.get(entry.key).decode("latin-1") + entry.key for entry in store.list("")]
    assert found_in(texts + log_lines + written) == []
    assert any("commitInfo" in text for text in written), "entries were written"


URLS = [
    f"s3://{USER}:{PASSWORD}@bucket/x",
    f"s3://bucket/x?{SAS}",
    f"s3://bucket/x#{SECRET}",
    f"az://container/x?{SAS}",
    f"https://{USER}:{PASSWORD}@host/x",
    f"{SECRET}://bucket",
    f"file://{USER}:{PASSWORD}@host/x",
    f"memory://{USER}:{PASSWORD}@x",
]

MISTAKES: list[dict[str, Any]] = [
    {"store.secret_access_key": SECRET},
    {"store.access_key_id": KEY_ID},
    {"store.secret_acess_key": SECRET},
    OPTIONS | {"store.endpoint": f"http://{USER}:{PASSWORD}@127.0.0.1:1"},
    OPTIONS | {"store.endpoint": "no url"},
    OPTIONS | {"store.nonsense": 1},
    OPTIONS | {"store.timeout_ms": "soon"},
    OPTIONS | {"store.secret_access_key": 5},
    OPTIONS | {"store.proxy_url": f"http://{USER}:{PASSWORD}@[bad"},
    OPTIONS | {"store.session_token": f"{TOKEN}\n"},
    {"store.sas_key": SAS, "bootstrap.servers": "az://container/x"},
    {
        "store.service_account_key": f'{{"private_key":"{SECRET}"',
        "bootstrap.servers": "gs://bucket",
    },
    {"sasl.password": PASSWORD, "sasl.username": USER, "security.protocol": "nonsense"},
]


@pytest.mark.fault("K5")
@pytest.mark.parametrize("url", URLS, ids=range(len(URLS)))
def test_a_root_with_credentials_is_refused_and_not_repeated(log_lines, url):
    texts = [
        said(lambda: Producer({"bootstrap.servers": url})),
        said(lambda: Topic("t", bootstrap_servers=url)),
    ]
    assert all("Traceback" in text for text in texts), "it is refused"
    assert found_in([re.sub(r"File .*\n.*\n", "", text) for text in texts] + log_lines) == []


@pytest.mark.fault("K5")
@pytest.mark.parametrize("mistake", MISTAKES, ids=range(len(MISTAKES)))
def test_a_configuration_error_does_not_show_a_secret_beside_it(log_lines, mistake):
    conf = {"bootstrap.servers": "s3://bucket/pre", "store.region": "us-east-1"} | mistake
    assert (
        found_in([said(lambda: Producer(conf)), said(lambda: AdminClient(conf)), *log_lines]) == []
    )


# --- what others chose the text of ---


def shows_a_forged_line(text: str) -> bool:
    return any(sign in text for sign in ("\n2026", "\r", "\x1b", "\u2028"))


@pytest.mark.fault("K7")
def test_a_server_answer_cannot_forge_a_log_line(endpoint, caplog):
    Mirror.message = FORGED
    conf: dict[str, Any] = {
        "bootstrap.servers": "s3://bucket/pre",
        "store.endpoint": endpoint,
        "store.retries": 0,
    }
    conf |= OPTIONS | {"store.region": "us-east-1"}
    with pytest.raises(KafkaException) as caught:
        Topic("t", conf=conf).exists()
    assert "all is lost" in str(caught.value)
    assert not shows_a_forged_line(str(caught.value))


TEXTS: dict[str, Callable[[], object]] = {
    "the name of a topic": lambda: Topic(FORGED),
    "a group": lambda: Consumer({"bootstrap.servers": "memory://x", "group.id": FORGED}),
    "a client": lambda: Producer({"bootstrap.servers": "memory://x", "client.id": FORGED}),
    "the name of a setting": lambda: Producer({"bootstrap.servers": "memory://x", FORGED: 1}),
    "a setting": lambda: Producer({"bootstrap.servers": "memory://x", "compression.type": FORGED}),
    "a bucket": lambda: Producer({"bootstrap.servers": f"s3://{FORGED}"}),
    "a prefix": lambda: Producer({"bootstrap.servers": f"s3://bucket/{FORGED}"}),
    "a new topic": lambda: NewTopic(FORGED, -5).check(),
    "new partitions": lambda: NewPartitions(FORGED, 0).check(),
    "a damaged path": lambda: (_ for _ in ()).throw(Corrupt(FORGED, path=FORGED)),
    "a partition": lambda: TopicPartition(FORGED, 0),
    "a message": lambda: Message(FORGED, 0, 1, b"k", b"v"),
    "a header": lambda: headers({FORGED: 5}),
    "a resource": lambda: ConfigResource(ConfigResource.Type.TOPIC, FORGED),
    "an entry": lambda: ConfigEntry(FORGED, FORGED),
    "a token": lambda: resolved(FORGED),
}


def headers(given: dict[str, Any]) -> None:
    with Producer(bootstrap_servers="memory://forged-headers") as producer:
        producer.produce("t", b"v", headers=given)


def resolved(token: str) -> None:
    with Producer(bootstrap_servers="memory://forged-token") as producer:
        producer.resolve("t", token)


@pytest.mark.fault("K7")
@pytest.mark.parametrize("show", TEXTS.values(), ids=TEXTS.keys())
def test_user_chosen_text_is_escaped_in_messages(show):
    try:
        text = str(show())
    except (KafkaException, ValueError, TypeError) as error:
        text = str(error)
    assert "all is lost" in text
    assert not shows_a_forged_line(text), repr(text)


@pytest.mark.fault("K7")
def test_a_foreign_file_with_a_forged_name_is_reported_in_one_line(tmp_path: Path, caplog):
    conf = {"bootstrap.servers": str(tmp_path)}
    with Producer(conf) as producer:
        producer.produce("t", b"v")
    entry = tmp_path / "topics/t/_delta_log/00000000000000000002.json"
    entry.write_text('{"x\\n2026 CRITICAL":{},"y\\u001b[2J":{}}\n')
    with pytest.raises(Corrupt) as caught:
        Topic("t", conf=conf).to_arrow()
    with Consumer(conf, group_id="g") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        while (message := consumer.poll(10)) is not None and message.error() is None:
            pass
    assert message is not None
    for text in (
        str(caught.value),
        str(message.error()),
        *(record.getMessage() for record in caplog.records),
    ):
        assert not shows_a_forged_line(text), repr(text)
    assert caplog.records

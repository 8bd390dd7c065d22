"""From a URL to a store: what is understood, what is refused, and what is shared."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import traceback
import uuid
from pathlib import Path

import pytest

from deltaq.clock import SystemClock
from deltaq.store import LocalStore, MemoryStore, forget_memory_store, open_store
from deltaq.store.location import Location, parse_location

KEYS = {"access_key_id": "AKIDPLANTED", "secret_access_key": "planted-secret"}


@pytest.fixture(autouse=True)
def no_ambient_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for prefix in ("AWS_", "MINIO_", "GOOGLE_", "AZURE_"):
        for name in [name for name in os.environ if name.startswith(prefix)]:
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("/data/events", Location("file", "/data/events")),
        ("/data/../data//events/", Location("file", "/data/events")),
        ("/odd?name#here@", Location("file", "/odd?name#here@")),
        ("file:///data/my%20events", Location("file", "/data/my events")),
        ("file://localhost/data", Location("file", "/data")),
        ("memory://test-1", Location("memory", "test-1")),
        ("memory://test-1/", Location("memory", "test-1")),
        ("s3://bucket", Location("s3", "bucket")),
        ("s3://bucket/", Location("s3", "bucket")),
        ("s3://my.bucket-1/a/b=c/", Location("s3", "my.bucket-1", "a/b=c")),
        ("gs://bucket/a", Location("gs", "bucket", "a")),
        ("az://container/a", Location("az", "container", "a")),
    ],
)
def test_a_url_is_taken_apart(url: str, location: Location) -> None:
    assert parse_location(url) == location


def test_a_relative_path_is_resolved_and_a_tilde_expanded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home-of-user")
    assert parse_location("data/events").name == f"{tmp_path}/data/events"
    assert parse_location(".").name == str(tmp_path)
    assert parse_location("~/events").name == "/home-of-user/events"
    store = open_store("./data")
    monkeypatch.chdir("/")
    assert store.url == f"file://{tmp_path}/data"


@pytest.mark.fault("K1")
@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("", "must be a path that is not empty, or a URL"),
        ("a\0b", "must be a path that is not empty, or a URL"),
        (
            "deltaq-data",
            "'deltaq-data': a name alone may be that of a server; for a folder write ./deltaq-data",
        ),
        ("localhost", "write ./localhost"),
        ("kafka.example.com", "write ./kafka.example.com"),
        ("bad address", "write ./bad address"),
        ("s3:bucket", "begins with s3: and has no // after it; write s3://"),
        ("s3a://bucket", "scheme 's3a'.* did you mean s3://"),
        ("S3://bucket", "scheme 'S3'.* did you mean s3://"),
        ("http://host/x", "scheme 'http'.* known are"),
        ("://x", "not a kind of store"),
        ("file://host/x", "must be file:/// and an absolute path"),
        ("file://", "must be file:/// and an absolute path"),
        ("memory://", "is no name"),
        ("memory://a/b", "use memory://a"),
        ("s3://", "is no bucket"),
        ("s3:///x", "is no bucket"),
        ("s3://b ucket", "is no bucket"),
        ("s3://bucket/a//b", "is no prefix"),
        ("s3://bucket/../b", "is no prefix"),
        ("s3://bucket/caf\u00e9", "is no prefix"),
        ("gs://bucket/" + "x/" * 400, "the prefix has 799 characters"),
        ("s3://bucket/" + "x/" * 211 + "xx", "the prefix has 424 characters; use 423 at most"),
        ("s3://bucket--use1-az4--x-s3", "do not list in key order"),
    ],
)
def test_a_url_that_names_no_store_is_refused_with_a_remedy(url: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        open_store(url)


@pytest.mark.fault("K5")
@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIDPLANTED:planted-secret@bucket/x",
        "s3://planted-secret@bucket",
        "s3://AKIDPLANTED:planted-secret/x",
        "s3:AKIDPLANTED:planted-secret@bucket",
        "s3://bucket/x?X-Amz-Signature=planted-secret",
        "s3://bucket/x#planted-secret",
        "az://container@planted-secret/x",
        "file://user:planted-secret@host/x",
        "memory://planted-secret@x",
        "AKIDPLANTED:planted-secret://bucket",
    ],
)
def test_a_url_with_credentials_is_refused_without_showing_them(url: str) -> None:
    with pytest.raises(ValueError, match=r"store URL") as caught:
        open_store(url)
    shown = "".join(traceback.format_exception(caught.value, limit=0)) + repr(caught.value)
    assert "planted" not in shown.lower()


@pytest.mark.fault("K1")
@pytest.mark.parametrize(
    "url",
    [
        "broker1:9092",
        "broker1: 9092",
        "broker1:9092,broker2:9092",
        "broker1:9092, broker2",
        "broker1,broker2",
        "broker1:9092;broker2:9092",
        "localhost:9092/",
        "localhost:9092/topics",
        "localhost:",
        "[::1]:9092",
        "host:port",
        "planted:secret@broker1:9092",
        "planted@broker1",
        "broker1:9092,/data",
    ],
)
def test_an_address_of_brokers_is_no_path_and_is_not_shown(url: str) -> None:
    with pytest.raises(
        ValueError, match=r"address of a Kafka broker .*write \./ before its name"
    ) as caught:
        open_store(url)
    assert url not in str(caught.value)
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    "path", ["./localhost:9092", "/data/a:1", "~/broker1:9092", "data/a:1", "data/", "..", "~"]
)
def test_a_path_may_have_a_name_like_an_address(path: str) -> None:
    assert parse_location(path).name == str(Path(path).expanduser().resolve())


@pytest.mark.fault("K1")
@pytest.mark.parametrize("url", ["memory://with-options", "some/path"])
def test_options_for_a_store_without_options_are_refused(url: str) -> None:
    with pytest.raises(
        ValueError, match=r"store\.endpoint, store\.region: a (memory|file):// store has no options"
    ):
        open_store(url, {"region": "x", "endpoint": "y"})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("/data/my events", "<LocalStore file:///data/my%20events>"),
        ("memory://shown", "<MemoryStore memory://shown>"),
        ("s3://bucket/a/b/", "<ObjectStore s3://bucket/a/b>"),
    ],
)
def test_opening_the_url_of_a_store_gives_the_same_place(url: str, shown: str) -> None:
    store = open_store(url, KEYS if url.startswith("s3") else {})
    assert repr(store) == shown
    assert open_store(store.url, KEYS if url.startswith("s3") else {}) is store
    forget_memory_store("shown")


# Sharing


def test_the_same_place_with_the_same_options_is_the_same_store(tmp_path: Path) -> None:
    assert open_store(str(tmp_path)) is open_store(f"file://{tmp_path}/")
    assert open_store(str(tmp_path)) is not open_store(str(tmp_path / "below"))
    first = open_store("s3://bucket/a", KEYS)
    assert first is open_store("s3://bucket/a", dict(reversed(KEYS.items())))
    assert first is not open_store("s3://bucket/a", {**KEYS, "region": "eu-west-1"})
    assert first is not open_store("s3://bucket/b", KEYS)
    assert first is not open_store("gs://bucket/a", {"skip_signature": True})


def test_another_clock_makes_another_store(tmp_path: Path) -> None:
    kept = open_store(str(tmp_path)), open_store(str(tmp_path), clock=SystemClock())
    assert kept[0] is not kept[1]


def test_changed_credentials_in_the_environment_make_another_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "first-secret")
    first = open_store("s3://bucket/env")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "second-secret")
    assert open_store("s3://bucket/env") is not first


def test_an_unreferenced_store_is_released(tmp_path: Path) -> None:
    opened = id(open_store(str(tmp_path)))
    gc.collect()
    from deltaq.store import location

    assert opened not in {id(store) for store in location._open.values()}


def test_a_memory_store_is_shared_by_name_until_it_is_forgotten() -> None:
    name = uuid.uuid4().hex
    store = open_store(f"memory://{name}")
    store.put("k", b"x")
    assert open_store(f"memory://{name}", clock=SystemClock()) is store
    del store
    gc.collect()
    assert open_store(f"memory://{name}").get("k") == b"x"
    forget_memory_store(name)
    forget_memory_store(name)
    assert list(open_store(f"memory://{name}").list("")) == []
    forget_memory_store(name)


def test_stores_made_directly_are_not_shared() -> None:
    assert MemoryStore("private") is not MemoryStore("private")
    MemoryStore("private").put("k", b"")
    assert list(open_store("memory://private").list("")) == []
    forget_memory_store("private")


@pytest.mark.fault("K5")
def test_a_store_with_credentials_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="open it from its URL again") as caught:
        pickle.dumps(open_store("s3://bucket/pickled", KEYS))
    assert "planted" not in str(caught.value)


def test_a_local_store_does_not_load_the_client_of_object_stores() -> None:
    opened = "s.open_store('./x'); s.open_store('memory://x')"
    script = f"import sys, deltaq.store as s; {opened}; print('obstore' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_a_system_without_openat_is_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.supports_dir_fd", set())
    with pytest.raises(ValueError, match="use Linux/macOS"):
        LocalStore("x")


@pytest.mark.parametrize(
    "url",
    [
        "localhost:9092",
        "user:PLANTED@broker:9092",
        "one:9092,two:9092",
        "10.0.0.1:9092",
        "broker.example:9092,",
    ],
)
def test_the_address_of_a_broker_is_no_root_and_is_not_shown(url):
    with pytest.raises(ValueError, match="Kafka broker") as caught:
        parse_location(url)
    assert url not in str(caught.value)
    assert "PLANTED" not in str(caught.value)


def test_a_folder_named_like_a_broker_can_be_given_as_a_path():
    assert parse_location("./localhost:9092").name.endswith("/localhost:9092")

"""Every kind of store there is, each behind the same fixture."""

from __future__ import annotations

import logging
import os
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from moto.s3.models import s3_backends
from werkzeug.serving import make_server

from deltaq.store import Store, forget_memory_store, open_store
from tests.servers.s3_stub import S3Stub

MOTO_BUCKET = "contract"
MOTO_KEYS = {
    "access_key_id": "moto-access-key",
    "secret_access_key": "moto-secret-key",
    "region": "us-east-1",
}


@pytest.fixture(scope="session")
def moto_endpoint() -> Iterator[str]:
    """An S3 server in this process, with one bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def one_at_a_time(environ, start_response):
        # moto tests the condition and stores the object in two steps. One request at a time makes
        # it what it imitates.
        with lock:
            return list(application(environ, start_response))

    server = make_server(
        "127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=MotoRequestHandler
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    make_bucket = urllib.request.Request(f"{endpoint}/{MOTO_BUCKET}", method="PUT")
    urllib.request.urlopen(make_bucket).close()
    yield endpoint
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def moto_store(moto_endpoint: str) -> Store:
    """A store of its own on that server."""
    return open_store(
        f"s3://{MOTO_BUCKET}/{uuid.uuid4().hex}", {"endpoint": moto_endpoint, **MOTO_KEYS}
    )


@pytest.fixture(scope="session")
def s3_stub() -> Iterator[S3Stub]:
    """The S3 server of the test kit, without faults; each test has a prefix of its own."""
    with S3Stub() as stub:
        yield stub


@pytest.fixture(
    params=[
        "local",
        "memory",
        pytest.param("moto", marks=pytest.mark.s3),
        pytest.param("s3_stub", marks=pytest.mark.s3),
        pytest.param("s3_server", marks=pytest.mark.s3_server),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    name = uuid.uuid4().hex
    if request.param == "local":
        yield open_store(str(tmp_path / "root"))
    elif request.param == "memory":
        yield open_store(f"memory://{name}")
        forget_memory_store(name)
    elif request.param == "moto":
        yield request.getfixturevalue("moto_store")
    elif request.param == "s3_stub":
        stub: S3Stub = request.getfixturevalue("s3_stub")
        yield open_store(f"s3://deltaq/{name}", stub.options())
    else:
        bucket, endpoint = (
            os.environ["DELTAQ_TEST_S3_BUCKET"],
            os.environ["DELTAQ_TEST_S3_ENDPOINT"],
        )
        # Not under a folder that tests share: versitygw refuses a put while another test's last
        # object, and with it the shared folder, is being removed (docs/internals/providers.md).
        real = open_store(f"s3://{bucket}/deltaq-test-{name}", {"endpoint": endpoint})
        yield real
        for entry in real.list(""):
            real.delete(entry.key)


@pytest.fixture
def put_empty(store: Store, request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Puts an empty object into the store; into moto's own memory, because its HTTP takes 8 ms for
    each.
    """
    if request.node.callspec.params["store"] != "moto":
        return lambda key: store.put(key, b"")
    folder, held = (
        store.url.removeprefix(f"s3://{MOTO_BUCKET}/"),
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"],
    )

    def put(key: str) -> None:
        held.put_object(MOTO_BUCKET, f"{folder}/{key}", b"")

    return put


@pytest.fixture
def in_threads() -> Callable[[int, Callable[[int], None]], None]:
    """Run `work(0) … work(count-1)`, each in a thread, all released at once; the first error is
    raised here.
    """

    def run(count: int, work: Callable[[int], None]) -> None:
        errors: list[BaseException] = []
        gate = threading.Barrier(count)

        def body(number: int) -> None:
            try:
                gate.wait()
                work(number)
            except BaseException as error:  # noqa: BLE001 - handed to the caller of `run`
                errors.append(error)

        threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    return run

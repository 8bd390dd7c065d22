"""Every kind of store there is, each behind the same fixture."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltaq.store import Store, forget_memory_store, open_store
from tests.servers.s3_stub import S3Stub


@pytest.fixture(scope="session")
def s3_stub() -> Iterator[S3Stub]:
    """The S3 server of the test kit, without faults; each test has a prefix of its own."""
    with S3Stub() as stub:
        yield stub


@pytest.fixture(
    params=[
        "local",
        "memory",
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

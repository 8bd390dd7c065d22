"""An S3 server as a process of its own, on a free port of the loopback interface, with credentials
of its own.
"""

from __future__ import annotations

import secrets
import time

import urllib3
from minio import Minio
from minio.error import MinioException

from tests.servers.local_server import HOST, READY_S, LocalServer

__all__ = ["S3Server"]

LOOK_AGAIN_S = 0.05
REGION = "us-east-1"


class S3Server(LocalServer):
    """One server with one bucket, which `start` makes. `restart` takes the same credentials."""

    bucket = "deltaq-test"

    def __init__(self) -> None:
        super().__init__()
        self.access_key = secrets.token_hex(10)
        self.secret_key = secrets.token_hex(20)

    @property
    def endpoint(self) -> str:
        """Its address, e.g. `http://127.0.0.1:23456`."""
        return f"http://{HOST}:{self.port}"

    @property
    def options(self) -> dict[str, str]:
        """The `store.*` options of a client's configuration."""
        return {
            "store.endpoint": self.endpoint,
            "store.region": REGION,
            "store.access_key_id": self.access_key,
            "store.secret_access_key": self.secret_key,
        }

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which tests, examples and every S3 client find it."""
        return {
            "DELTAQ_TEST_S3_ENDPOINT": self.endpoint,
            "DELTAQ_TEST_S3_BUCKET": self.bucket,
            "DELTAQ_TEST_S3_SERVER": self.program.name,
            "DELTAQ_BENCH_STORE": f"{self.program.name} {self.program.version}",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }

    def _answers(self) -> bool:
        """Wait until it serves the bucket, which is made if it is not there; False if it ended or
        time is over.
        """
        client = Minio(
            f"{HOST}:{self.port}",
            self.access_key,
            self.secret_key,
            secure=False,
            region=REGION,
            http_client=urllib3.PoolManager(retries=False, timeout=5.0),
        )
        deadline = time.monotonic() + READY_S
        while not self.has_ended() and time.monotonic() < deadline:
            try:
                if not client.bucket_exists(self.bucket):
                    client.make_bucket(self.bucket)
            except (MinioException, urllib3.exceptions.HTTPError):
                time.sleep(LOOK_AGAIN_S)
            else:
                return True
        return False

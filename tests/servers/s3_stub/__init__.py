"""An S3 server with fault injection, to test with the real client library.

    with S3Stub() as stub:
        lost = HttpRule(fault="error_after", operation="create", key="*/_delta_log/*", times=1)
        stub.set_rules(lost)
        producer = Producer(stub.conf("test"))
        ...
        assert stub.effects()[Effect.ANSWER_LOST] == 1

It keeps all objects in memory and listens on a loopback address. It requires requests to be signed
but does not verify the signature. `python -m tests.servers.s3_stub --port 9000` runs it without a
test.
"""

from __future__ import annotations

from deltaq.testing.faults import Effect
from tests.servers.s3_stub.process import S3Stub, StubRequest
from tests.servers.s3_stub.rules import FAULTS, HttpFault, HttpRule

__all__ = ["FAULTS", "Effect", "HttpFault", "HttpRule", "S3Stub", "StubRequest"]

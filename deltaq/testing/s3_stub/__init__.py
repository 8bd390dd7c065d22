"""An S3 server that misbehaves on demand, so that the real client library meets the faults.

    with S3Stub() as stub:
        stub.set_rules(HttpRule(fault="error_after", operation="create", key="*/_delta_log/*", times=1))
        producer = Producer(stub.conf("test"))
        ...
        assert stub.effects()[Effect.ANSWER_LOST] == 1

It keeps everything in memory, listens on this machine only, and checks that requests are signed but not by whom.
`python -m deltaq.testing.s3_stub --port 9000` serves without a test around it.
"""

from __future__ import annotations

from deltaq.testing.faults import Effect
from deltaq.testing.s3_stub.process import S3Stub, StubRequest
from deltaq.testing.s3_stub.rules import FAULTS, HttpFault, HttpRule

__all__ = ["FAULTS", "Effect", "HttpFault", "HttpRule", "S3Stub", "StubRequest"]

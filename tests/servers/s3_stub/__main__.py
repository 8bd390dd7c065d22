"""`python -m tests.servers.s3_stub`: serve S3 on a loopback port until the process is ended."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from deltaq.clock import SYSTEM_CLOCK
from tests.servers.s3_stub.server import S3StubServer


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the endpoint as the first line, then serve."""
    parser = argparse.ArgumentParser(prog="python -m tests.servers.s3_stub", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0, the default: a free one")
    parser.add_argument(
        "--bucket", action="append", help="a bucket to begin with (more than one: again); `deltaq`"
    )
    parser.add_argument(
        "--page-keys", type=int, default=1000, help="most keys of one page of a listing; 1000"
    )
    parser.add_argument(
        "--until-stdin-closes",
        action="store_true",
        help="end with the process that started this one",
    )
    chosen = parser.parse_args(arguments)
    server = S3StubServer(chosen.port, chosen.bucket or ["deltaq"], chosen.page_keys)
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    if chosen.until_stdin_closes:
        SYSTEM_CLOCK.start_thread(server.serve_forever, "s3-stub")
        sys.stdin.buffer.read()
    else:
        server.serve_forever()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)

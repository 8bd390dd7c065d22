"""versitygw: S3 over a folder, an implementation that shares no code with MinIO. Runs as
`tests.servers.minio` does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.servers.command import run
from tests.servers.go_programs import VERSITYGW
from tests.servers.local_server import HOST
from tests.servers.s3_server import S3Server

__all__ = ["VersityServer"]


class VersityServer(S3Server):
    """versitygw over a folder, whose file system must have extended attributes.

    It never syncs: what a power cut would leave is not its subject.
    """

    program = VERSITYGW

    def _command(self, executable: Path) -> list[str]:
        place = ["--port", f"{HOST}:{self.port}", "--keep-alive", "--quiet"]
        return [str(executable), *place, "posix", str(self.data)]

    def _environment(self) -> dict[str, str]:
        return {"ROOT_ACCESS_KEY": self.access_key, "ROOT_SECRET_KEY": self.secret_key}


if __name__ == "__main__":
    sys.exit(run(VersityServer(), sys.argv[1:]))

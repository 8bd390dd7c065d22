"""MinIO. `python -m tests.servers.minio` runs it until Ctrl-C; with `-- COMMAND`, for as long as
the command takes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.servers.command import run
from tests.servers.go_programs import MINIO
from tests.servers.local_server import HOST
from tests.servers.s3_server import S3Server

__all__ = ["MinioServer"]


class MinioServer(S3Server):
    """MinIO with one drive: a folder."""

    program = MINIO

    def _command(self, executable: Path) -> list[str]:
        return [
            str(executable),
            "server",
            "--quiet",
            "--address",
            f"{HOST}:{self.port}",
            str(self.data),
        ]

    def _environment(self) -> dict[str, str]:
        return {
            "MINIO_ROOT_USER": self.access_key,
            "MINIO_ROOT_PASSWORD": self.secret_key,
            "MINIO_BROWSER": "off",  # its console would listen on every interface
            "MINIO_UPDATE": "off",
        }


if __name__ == "__main__":
    sys.exit(run(MinioServer(), sys.argv[1:]))

"""Spark's standalone cluster from the installed pyspark package: a master, and workers that start
executors.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path

from tests.servers.local_server import HOST, READY_S, LocalServer

__all__ = ["SparkMaster", "SparkWorker"]

LOOK_AGAIN_S = 0.05
WORKER_MEMORY = "600m"


@dataclass(frozen=True)
class InstalledSpark:
    """The package's folder, which has the same jars and scripts as a distribution of Spark."""

    name: str = "spark"

    @property
    def version(self) -> str:
        return metadata.version("pyspark")

    @property
    def path(self) -> Path:
        found = util.find_spec("pyspark")
        assert found is not None
        assert found.origin is not None
        return Path(found.origin).parent

    def build(self) -> Path:
        return self.path


class _SparkServer(LocalServer):
    program = InstalledSpark()

    def _environment(self) -> dict[str, str]:
        """Small daemons that listen on the loopback interface only, their pages included."""
        java = {"JAVA_HOME": home} if (home := os.environ.get("JAVA_HOME")) else {}
        options = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        memory = {"SPARK_DAEMON_MEMORY": "128m", "SPARK_DAEMON_JAVA_OPTS": options}
        return {"SPARK_HOME": str(self.program.path), "SPARK_LOCAL_IP": HOST, **memory, **java}

    def _answers(self) -> bool:
        deadline = time.monotonic() + READY_S
        while not self.has_ended() and time.monotonic() < deadline:
            if self._is_ready():
                return True
            time.sleep(LOOK_AGAIN_S)
        return False

    def _is_ready(self) -> bool:
        raise AssertionError("each kind of server has its own sign")

    def said(self) -> str:
        """Its log so far."""
        return self._log().read_text(errors="replace")

    @property
    def environment(self) -> dict[str, str]:
        return {}


class SparkMaster(_SparkServer):
    """The master of a cluster without workers yet."""

    @property
    def url(self) -> str:
        """The setting `spark.master`."""
        return f"spark://{HOST}:{self.port}"

    def _command(self, executable: Path) -> list[str]:
        place = ["--host", HOST, "--port", str(self.port), "--webui-port", "0"]
        return [
            str(executable / "bin/spark-class"),
            "org.apache.spark.deploy.master.Master",
            *place,
        ]

    def _is_ready(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), timeout=1.0).close()
        except OSError:
            return False
        return True


class SparkWorker(_SparkServer):
    """A worker with one core. Its executors write to `data`, one folder for each of them."""

    def __init__(self, master: SparkMaster) -> None:
        super().__init__()
        self._master = master

    def _command(self, executable: Path) -> list[str]:
        place = [
            "--host",
            HOST,
            "--port",
            str(self.port),
            "--webui-port",
            "0",
            "--work-dir",
            str(self.data),
        ]
        size = ["--cores", "1", "--memory", WORKER_MEMORY]
        program = "org.apache.spark.deploy.worker.Worker"
        return [str(executable / "bin/spark-class"), program, *place, *size, self._master.url]

    def _is_ready(self) -> bool:
        return "Successfully registered with master" in self.said()

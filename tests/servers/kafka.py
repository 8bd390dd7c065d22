"""Apache Kafka, one broker. `python -m tests.servers.kafka` runs it until Ctrl-C; with `--
COMMAND`, for as long as the command takes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.servers.command import run
from tests.servers.java_programs import KAFKA
from tests.servers.local_server import HOST, READY_S, LocalServer, ServerFailed, free_port

__all__ = ["KafkaBroker"]

HEAP = "1G"

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers={host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
num.partitions=1
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class KafkaBroker(LocalServer):
    """A broker that is its own controller, with Kafka's defaults: it answers before anything is
    synced to disk.
    """

    program = KAFKA

    @property
    def address(self) -> str:
        """`bootstrap.servers`, e.g. `127.0.0.1:23456`."""
        return f"{HOST}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "DELTAQ_BENCH_KAFKA": self.address,
            "DELTAQ_BENCH_KAFKA_VERSION": self.program.version,
        }

    def _prepare(self, executable: Path) -> None:
        about = {"host": HOST, "port": self.port, "controller": free_port(), "data": self.data}
        self._settings.write_text(_PROPERTIES.format(**about))
        tool = ["kafka.tools.StorageTool"]
        cluster = self._java(executable, [*tool, "random-uuid"]).splitlines()[-1]
        self._java(
            executable, [*tool, "format", "--standalone", "-t", cluster, "-c", str(self._settings)]
        )

    def _command(self, executable: Path) -> list[str]:
        if not self._settings.exists():
            self._prepare(executable)
        memory = [f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"]
        return [
            "java",
            *memory,
            *_QUIET,
            "-cp",
            f"{executable}/*",
            "kafka.Kafka",
            str(self._settings),
        ]

    def _environment(self) -> dict[str, str]:
        return {}

    def _answers(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        deadline = time.monotonic() + READY_S
        while not self.has_ended() and time.monotonic() < deadline:
            try:
                if admin.list_topics(timeout=1.0).brokers:
                    return True
            except KafkaException:
                pass
        return False

    @property
    def _settings(self) -> Path:
        return self._scratch / "server.properties"

    def _java(self, jars: Path, arguments: list[str]) -> str:
        command = ["java", *_QUIET, "-cp", f"{jars}/*", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerFailed(
                f"{' '.join(arguments[:2])} of Kafka failed:\n{(done.stdout + done.stderr)[-2000:]}"
            )
        return done.stdout


_QUIET = ["-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]

if __name__ == "__main__":
    sys.exit(run(KafkaBroker(), sys.argv[1:]))

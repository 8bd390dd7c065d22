"""Servers written in Java, fetched once into `.tools/` from a pinned version in Maven Central."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.servers.go_programs import NO_NETWORK, TOOLS, BuildFailed, CannotBuild, one_at_a_time

__all__ = ["KAFKA", "JavaProgram"]

_POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>deltaq.peers</groupId><artifactId>{name}</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
      <exclusions>{exclusions}</exclusions>
    </dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""

_SAID_MAX = 2000


@dataclass(frozen=True)
class JavaProgram:
    """A program and where it comes from: `version` is pinned, so that every machine measures the
    same server.

    `left_out` are artifacts, as (group, artifact), that it names and does not need.
    """

    name: str
    group: str
    artifact: str
    version: str
    left_out: tuple[tuple[str, str], ...] = ()

    @property
    def path(self) -> Path:
        """The folder of its jars, once they are fetched."""
        return TOOLS / f"{self.name}@{self.version}"

    def build(self) -> Path:
        """Fetch its jars unless that is done; their folder. A minute the first time. CannotBuild,
        BuildFailed.
        """
        maven = shutil.which("mvn")
        with one_at_a_time(self.name):
            if self.path.exists():
                return self.path
            if maven is None or shutil.which("java") is None:
                raise CannotBuild(f"{self.name} needs Java and Maven (mvn), and they are not here")
            print(
                f"Fetching {self.name} {self.version}: a minute the first time ...",
                file=sys.stderr,
                flush=True,
            )
            with tempfile.TemporaryDirectory(prefix=f"{self.name}-", dir=TOOLS) as folder:
                self._fetch(maven, Path(folder))
                Path(folder, "jars").replace(self.path)
        return self.path

    def _fetch(self, maven: str, folder: Path) -> None:
        exclusions = "".join(
            f"<exclusion><groupId>{group}</groupId><artifactId>{artifact}</artifactId></exclusion>"
            for group, artifact in self.left_out
        )
        about = {
            "name": self.name,
            "group": self.group,
            "artifact": self.artifact,
            "version": self.version,
        }
        (folder / "pom.xml").write_text(_POM.format(exclusions=exclusions, **about))
        goal = [
            "dependency:copy-dependencies",
            f"-DoutputDirectory={folder / 'jars'}",
            "-DincludeScope=runtime",
        ]
        command = [maven, "--quiet", "--batch-mode", "-f", str(folder / "pom.xml"), *goal]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        said = (done.stdout + done.stderr)[-_SAID_MAX:]
        if any(
            sign in said for sign in (*NO_NETWORK, "Could not transfer artifact", "Unknown host")
        ):
            raise CannotBuild(
                f"{self.name} comes from Maven Central, which cannot be reached:\n{said}"
            )
        raise BuildFailed(f"the jars of {self.name} cannot be fetched:\n{said}")


# Its kafka-tools-api is not in Maven Central, and a broker does without.
KAFKA = JavaProgram(
    "kafka", "org.apache.kafka", "kafka_2.13", "4.4.0", (("org.apache.kafka", "kafka-tools-api"),)
)

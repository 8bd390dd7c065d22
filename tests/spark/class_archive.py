"""An archive of the classes of Spark, for the JVMs of the tests. `python -m
tests.spark.class_archive` makes it.

A JVM maps the archive instead of reading and checking some 20,000 classes: 8 of the 39 s of
processor time of a small Spark program. One that finds no archive, or that of another Java, starts
as usual.

Source: Java's application class-data sharing (JEP 350).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["ARCHIVE", "USE_ARCHIVE", "main"]

_TOOLS = Path(__file__).resolve().parents[2] / ".tools"

ARCHIVE = _TOOLS / f"spark-{metadata.version('pyspark')}.jsa"

USE_ARCHIVE = f'-Xshare:auto "-XX:SharedArchiveFile={ARCHIVE}" -Xlog:disable'
"""For the variable SPARK_SUBMIT_OPTS. Without the last option, the JVM would print why it does not
use an archive.
"""

_TIMEOUT_S = 300.0


def main() -> int:
    """Make the archive, unless it is there, another process makes it, or there is no Java."""
    _TOOLS.mkdir(exist_ok=True)
    with (_TOOLS / "spark.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        if ARCHIVE.exists() or shutil.which("java") is None:
            return 0
        with TemporaryDirectory(dir=_TOOLS) as folder:
            made = Path(folder, "classes.jsa")
            environment = {
                **os.environ,
                "SPARK_SUBMIT_OPTS": f'"-XX:ArchiveClassesAtExit={made}" -Xlog:disable',
            }
            # The JVM writes the archive when this program has ended. It holds the pipes until then.
            program = [sys.executable, "-m", "tests.spark.class_archive", "load"]
            asked = subprocess.run(
                program, env=environment, capture_output=True, timeout=_TIMEOUT_S, check=False
            )
            if asked.returncode or not made.exists():
                print(
                    "no archive of Spark's classes was made: Spark starts more slowly",
                    file=sys.stderr,
                )
                return 1
            made.replace(ARCHIVE)
    return 0


def _load_classes() -> None:
    """Start Spark and run a query. What else the tests do adds little to what this loads."""
    from deltaq.spark import spark_session

    spark = spark_session("classes", quick_start=True, conf={"spark.master": "local[2]"})
    spark.range(100).selectExpr("id % 7 AS value").groupBy("value").count().orderBy(
        "value"
    ).collect()
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1:] == ["load"]:
        _load_classes()
    else:
        sys.exit(main())

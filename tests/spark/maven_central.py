"""The jars that Spark fetches from Maven Central and keeps: without either there is nothing to
test.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest

__all__ = ["lack_of_jar", "need_jar"]


def need_jar(group: str, artifact: str, version: str) -> None:
    """Skip the test where a jar is neither kept nor to be had."""
    if lack := lack_of_jar(group, artifact, version):
        pytest.skip(reason=f"needs {artifact} {version}: {lack}")


def lack_of_jar(group: str, artifact: str, version: str) -> str | None:
    """Why a jar is neither kept nor to be had; None if it is."""
    if any(Path.home().glob(f".ivy2*/jars/{group}_{artifact}-{version}.jar")):
        return None
    # Not the repository's root: a mirror may refuse to list that and have the files nevertheless.
    folder = f"https://repo1.maven.org/maven2/{group.replace('.', '/')}/{artifact}/{version}"
    address = f"{folder}/{artifact}-{version}.pom"
    try:
        urllib.request.urlopen(address, timeout=10).close()
    except (urllib.error.URLError, OSError) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()  # it is the answer too, and holds the connection
        return f"{address} does not answer: {error}"
    return None

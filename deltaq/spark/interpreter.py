"""The Python that runs Spark's workers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pyspark
from pyspark import SparkContext
from pyspark.find_spark_home import _find_spark_home

from deltaq.errors import InvalidConfig

LAUNCHER = Path(__file__).with_name("python.sh")
"""Starts `PYTHON_OF_LAUNCHER` without Spark's archives on the path. Python would compile a whole
pyspark from them in each worker: 1.1 s of processor time for each kind of work of a query.
"""

PYTHON_OF_LAUNCHER = "DELTAQ_SPARK_PYTHON"
"""The environment variable that names the Python of `LAUNCHER`."""

_INTERPRETERS: Mapping[str, str] = MappingProxyType(
    {
        "spark.pyspark.driver.python": "PYSPARK_DRIVER_PYTHON",
        "spark.pyspark.python": "PYSPARK_PYTHON",
    }
)
"""The settings that name the Python of Spark's workers, and the environment variable of each. The
first one wins.
"""

_MAY_NAME_A_MASTER = ("MASTER", "PYSPARK_SUBMIT_ARGS", "SPARK_CONF_DIR", "SPARK_REMOTE")
"""Environment variables by which Spark may run on other machines without a setting
`spark.master`.
"""

_DIVIDED = re.compile(r"[\s|&;<>()$`\\\"']")
"""What a path must not contain. Spark asks a shell, without quotes, whether its Python exists. If
the answer is no, it knows no data source of Python.
"""

_HAS_DELTAQ = (
    "import importlib.util; print('deltaq:', importlib.util.find_spec('pyspark_deltaq') is not "
    "None)"
)


def choose_interpreter(conf: Mapping[str, str]) -> None:
    """Make Spark's workers use the current Python, unless `conf` or the environment names another
    one.

    Spark's default is the `python3` on the path. If deltaq is not installed there, Spark only
    reports that the data source does not exist. Raises InvalidConfig if the named Python lacks
    deltaq.
    """
    _forget_launcher()
    named = {
        variable: conf.get(name, os.environ.get(variable))
        for name, variable in _INTERPRETERS.items()
    }
    for variable, python in named.items():
        if python is not None:
            _check_found_by_spark(variable, python)
            _check_has_deltaq(variable, python)
            break
    # PySpark reads the variables. The settings apply only if spark-submit has set the variables
    # from them.
    os.environ.update(
        {variable: python for variable, python in named.items() if python is not None}
    )
    if set(named.values()) == {None} and _can_launch(conf):
        os.environ.update({"PYSPARK_PYTHON": str(LAUNCHER), PYTHON_OF_LAUNCHER: sys.executable})
    os.environ.setdefault("PYSPARK_PYTHON", _current_python())


def is_launched() -> bool:
    """Whether `LAUNCHER` starts the workers, as `choose_interpreter` has decided."""
    return os.environ.get("PYSPARK_PYTHON") == str(LAUNCHER)


def _forget_launcher() -> None:
    """Undo the choice of an earlier session, or of the process that has started this one."""
    if is_launched():
        del os.environ["PYSPARK_PYTHON"]


def _can_launch(conf: Mapping[str, str]) -> bool:
    """Whether workers that `LAUNCHER` starts run here, and import the same pyspark as from Spark's
    archives.
    """
    return (
        _starts_here(conf)
        and Path(_find_spark_home()).resolve() == Path(pyspark.__file__).resolve().parent
        and all(map(_is_installed, ("pyspark", "py4j")))
        and os.access(LAUNCHER, os.X_OK)
        and _DIVIDED.search(str(LAUNCHER)) is None
    )


def _starts_here(conf: Mapping[str, str]) -> bool:
    """Whether a session with these settings starts a JVM that runs the workers itself.

    The workers have the environment of that JVM. One that is running already keeps what it was
    started with.
    """
    if "PYSPARK_GATEWAY_PORT" in os.environ or "spark.remote" in conf:
        return False
    if SparkContext._gateway is not None and PYTHON_OF_LAUNCHER not in os.environ:
        return False
    if master := conf.get("spark.master"):
        return master == "local" or master.startswith("local[")
    defaults = Path(_find_spark_home(), "conf", "spark-defaults.conf")
    return (
        not any(variable in os.environ for variable in _MAY_NAME_A_MASTER) and not defaults.exists()
    )


def _is_installed(package: str) -> bool:
    """Whether every process of the current Python imports the package from the same place as this
    one.
    """
    spec = importlib.util.find_spec(package)
    folders = {
        Path(folder).resolve() for folder in (*site.getsitepackages(), site.getusersitepackages())
    }
    return (
        spec is not None
        and spec.origin is not None
        and Path(spec.origin).resolve().parents[1] in folders
    )


def _current_python() -> str:
    """The current Python as Spark finds it: its path, or its name if the path would be divided.

    Raises InvalidConfig if neither leads to it.
    """
    name = Path(sys.executable).name
    python = (
        name
        if _DIVIDED.search(sys.executable) and shutil.which(name) == sys.executable
        else sys.executable
    )
    _check_found_by_spark("PYSPARK_PYTHON", python)
    return python


def _check_found_by_spark(variable: str, python: str) -> None:
    """Raise InvalidConfig for a path that a shell divides."""
    if found := _DIVIDED.search(python):
        raise InvalidConfig(
            f"{variable} cannot be {python!r}: Spark finds no data source if the path of its Python"
            f" contains {found[0]!r}; put the folder of this Python first on PATH and name only the"
            " program, or install it in another folder",
            key=variable,
        )


def _check_has_deltaq(variable: str, python: str) -> None:
    """Raise InvalidConfig if deltaq is not installed in `python`. Takes some 30 ms.

    The check runs on the driver, where Spark uses this Python too.
    """
    if python == sys.executable:
        return
    try:
        # The interpreter that the user has configured, started as Spark starts it.
        asked = subprocess.run(  # noqa: S603
            [python, "-c", _HAS_DELTAQ], capture_output=True, text=True, timeout=60, check=False
        )
        answer = asked.stdout
    except (OSError, subprocess.TimeoutExpired):
        answer = ""
    if "deltaq: True" not in answer:
        lacks = "has no deltaq" if "deltaq: False" in answer else "does not run as a Python"
        raise InvalidConfig(
            f"{variable} is {python!r}, which {lacks}, and Spark runs deltaq there: install deltaq "
            f"there, or unset {variable} to use {sys.executable}",
            key=variable,
        )

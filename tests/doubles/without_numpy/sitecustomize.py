"""Python imports this first in a process that has this folder on its path. There, numpy and pandas
are not installed, but for those that the environment names.
"""

from __future__ import annotations

import os
import sys

_ABSENT = {"numpy", "pandas"} - set(os.environ.get("DELTAQ_TESTS_NEED", "").split())


class _WithoutNumpy:
    """A finder of modules: `importlib.abc`, with its base class, would take 0.05 s to load."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name in _ABSENT:
            raise ModuleNotFoundError(f"the processes that tests start have no {name}", name=name)


sys.meta_path.insert(0, _WithoutNumpy())

"""Python imports this first in a process that has this folder on its path. There, pandas is not installed."""

from __future__ import annotations

import sys


class _WithoutPandas:
    """A finder of modules: `importlib.abc`, with its base class, would take 0.05 s to load."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("the processes that tests start have no pandas", name=name)


sys.meta_path.insert(0, _WithoutPandas())

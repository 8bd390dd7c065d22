"""What the garbage collector of Spark's worker processes looks at."""

from __future__ import annotations

import functools
import gc
import sys


@functools.cache
def freeze_loaded() -> None:
    """Keep what a worker has loaded by now out of its garbage collections; called at the end of its
    first work.

    Spark's workers collect after each piece of work. All that pyspark, pyarrow and deltaq have
    loaded lives as long as the process, and to go through it takes 30 ms of processor time, in four
    processes for each micro-batch. Other processes are left alone.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if "pyspark.daemon" in sys.modules or (spec is not None and spec.name == "pyspark.daemon"):
        gc.collect()  # what is garbage already must not be kept
        gc.freeze()

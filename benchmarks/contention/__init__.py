"""Contention: producers, consumers and partitions of one topic in growing numbers, and the share of
each.
"""

from benchmarks.contention.measuring import measure_contention
from benchmarks.contention.plan import FULL_CONTENTION, QUICK_CONTENTION

__all__ = ["FULL_CONTENTION", "QUICK_CONTENTION", "measure_contention"]

"""Contention: more and more producers, consumers and partitions of one topic, and what each of them still gets."""

from benchmarks.contention.measuring import measure_contention
from benchmarks.contention.plan import FULL_CONTENTION, QUICK_CONTENTION

__all__ = ["FULL_CONTENTION", "QUICK_CONTENTION", "measure_contention"]

"""The published benchmark of Delta tables as a queue, once more: its rates through deltaq, and
through plain delta-rs.

What was published is of Pathway: one program writes a Delta table on MinIO, another one reads it,
and the latency of each message is taken. Here too it goes from one process to another. What is
different: 100 random bytes a message instead of 17 that are the same 100 times over, a time of its
own for each, sent when due instead of 10,000 at once, percentiles of windows beside cumulative
ones, and every message accounted for.
"""

from benchmarks.published.measuring import measure_published
from benchmarks.published.trials import FULL_PUBLISHED, QUICK_PUBLISHED, range_plan

__all__ = ["FULL_PUBLISHED", "QUICK_PUBLISHED", "measure_published", "range_plan"]

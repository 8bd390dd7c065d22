"""Consumer groups: how soon partitions are assigned and move, and what a member costs in requests
and dollars.
"""

from benchmarks.groups.measuring import measure_groups
from benchmarks.groups.plan import FULL_GROUPS, QUICK_GROUPS

__all__ = ["FULL_GROUPS", "QUICK_GROUPS", "measure_groups"]

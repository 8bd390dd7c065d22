"""A modelled S3: what a topic costs a day, and how long messages take, over `linger.ms`.

No bucket is needed: a store in memory keeps each request waiting as long as S3 would, drawn from
what others have published of it, and counts it at S3's price.
"""

from benchmarks.modelled.measuring import measure_modelled
from benchmarks.modelled.plan import FULL_MODELLED, QUICK_MODELLED

__all__ = ["FULL_MODELLED", "QUICK_MODELLED", "measure_modelled"]

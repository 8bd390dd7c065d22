"""Seeded random numbers that depend only on their arguments: equal on every machine and in any
order of calls.
"""

from __future__ import annotations

import hashlib

__all__ = ["chance"]


def chance(*question: object) -> float:
    """A number in [0, 1), derived from the `repr` of `question`, which includes the seed."""
    digest = hashlib.blake2b(repr(question).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2.0**53  # 53 bits: the precision of a float

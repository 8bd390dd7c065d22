"""Seeded chance: the same question with the same seed gets the same answer, on every machine and in any order."""

from __future__ import annotations

import hashlib

__all__ = ["chance"]


def chance(*question: object) -> float:
    """A number in [0, 1) that depends on nothing but the texts of `question`, the seed among them."""
    digest = hashlib.blake2b(repr(question).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2.0**53  # as many bits as a float has

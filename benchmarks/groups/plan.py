"""What is measured of groups: changes of the membership, requests, commits, and a subscription to
many topics.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.modelled.model import S3_STANDARD, StoreModel

__all__ = ["FULL_GROUPS", "QUICK_GROUPS", "GroupsPlan"]


@dataclass(frozen=True, slots=True)
class GroupsPlan:
    """`rounds` of joins and leaves with each of the `strategies`; Kafka takes seconds for each, and
    has `kafka_rounds`.

    `takeovers`: how often a member with a session of `session_s` is killed. `sizes`: the groups
    whose requests are counted, those of one tuple at the same time, for `idle_s` and, after
    `warmup_s` in which each has committed once, for `busy_s`. `committers`: so many members commit
    at once for `commit_s`. `topics`: how many a pattern matches. `logged_s`: the modelled time for
    which one member commits every five seconds.
    """

    rounds: int
    kafka_rounds: int
    strategies: tuple[str, ...]
    takeovers: int
    session_s: float
    sizes: tuple[tuple[int, ...], ...]
    idle_s: float
    warmup_s: float
    busy_s: float
    committers: tuple[int, ...]
    commit_s: float
    topics: int
    logged_s: int
    model: StoreModel = S3_STANDARD
    seed: int = 1


_STRATEGIES = ("range", "cooperative-sticky")
FULL_GROUPS = GroupsPlan(
    20,
    10,
    _STRATEGIES,
    3,
    2.0,
    ((1, 3, 10), (50,)),
    10.0,
    6.0,
    20.0,
    (1, 3, 10),
    5.0,
    1_000,
    86_400,
)
QUICK_GROUPS = GroupsPlan(
    2, 1, _STRATEGIES, 1, 1.0, ((1, 3),), 3.0, 6.0, 5.0, (1, 3), 1.0, 100, 3_600
)

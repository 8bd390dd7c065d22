"""Retry delays after an error and after a lost race for a slot. Pure functions; the caller
sleeps.
"""

from __future__ import annotations

_ERROR_FIRST_S = 0.01
_ERROR_MAX_S = 1.0
_COMMIT_MAX_S = 1.0


def error_pause_s(failures: int, chance: float) -> float:
    """Seconds to wait after `failures` consecutive errors: the limit doubles from 10 ms to 1 s,
    with jitter.

    `chance` is a random number in [0, 1). The delay is 10 % to 100 % of the limit, which spreads
    the clients of a throttling store. Source: the back-off called "full jitter".
    """
    ceiling = min(_ERROR_MAX_S, _ERROR_FIRST_S * 2.0 ** min(failures - 1, 16))
    return ceiling * (0.1 + 0.9 * chance)


def race_pause_s(lost_races: int, commit_s: float, chance: float) -> float:
    """Seconds to wait after losing `lost_races` consecutive slots, where one commit takes
    `commit_s` seconds.

    The maximum delay *shrinks* with each loss, from four commits to one. The writer that has waited
    longest therefore retries soonest, so no writer starves. `chance` is a random number in [0, 1).
    A commit counts as 1 s at most: one that took longer was probably stopped, as by SIGSTOP or a
    stalled disk, and must not wait for that long again.
    """
    return min(commit_s, _COMMIT_MAX_S) * max(1.0, 8.0 / 2.0**lost_races) * chance

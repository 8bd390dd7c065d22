"""How long to wait after an error, and after a lost race for a slot. Pure rules; the caller sleeps."""

from __future__ import annotations

__all__ = ["error_pause_s", "race_pause_s"]

_ERROR_FIRST_S = 0.01
_ERROR_MAX_S = 1.0


def error_pause_s(failures: int, chance: float) -> float:
    """Seconds to wait after `failures` errors in a row: doubling from 10 ms to 1 s, with full jitter.

    `chance` is a random number in [0, 1). Source: "full jitter", which spreads the clients of a throttling store best.
    """
    ceiling = min(_ERROR_MAX_S, _ERROR_FIRST_S * 2.0 ** min(failures - 1, 16))
    return ceiling * (0.1 + 0.9 * chance)


def race_pause_s(lost_races: int, commit_s: float, chance: float) -> float:
    """Seconds to wait after losing `lost_races` slots in a row, where one commit takes `commit_s` seconds.

    The window *shrinks* with each further loss, from four commits to one: whoever has waited longest tries soonest, so
    no writer starves while the newcomers spread out behind it.
    """
    return commit_s * max(1.0, 8.0 / 2.0**lost_races) * chance

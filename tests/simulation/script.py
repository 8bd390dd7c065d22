"""What a seed decides before the play begins: who takes part, and what may befall them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from deltaq.log.delta_log import HEAD_PROOF_S
from deltaq.testing.simulation.network import Faults

__all__ = ["TOPIC", "Script", "script_of"]

TOPIC = "t"


@dataclass(frozen=True)
class Script:
    """One play. `messages` are per producer, which rests up to `rest_s` seconds after every few of them.

    `pauses` are of seconds, `sleeps` longer than a head is trusted.
    """

    producers: int
    readers: int
    members: int
    partitions: int
    messages: int
    rest_s: float
    linger_ms: int
    timeout_ms: int
    latency_s: float
    signals: bool
    remote: bool
    preempt: float
    faults: Faults
    crashes: bool
    pauses: bool
    sleeps: bool
    wrong_clocks: bool
    growth: bool
    lives: bool
    cleaning: bool
    log_append_time: bool
    auto_create: bool


def script_of(seed: int, kind: str | None = None) -> Script:
    """The play of `seed`: of one of a few kinds (`kind`, if it is given), and the rest by chance."""
    chance = random.Random(f"script of {seed}")
    chosen = chance.choice(["all goes well", "storm", "sleepers", "a bit of all", "a bit of all", "a bit of all"])
    kind = kind or chosen
    # Healthy systems lose messages too.
    well, mixed = kind == "all goes well", kind == "a bit of all"

    def sometimes(probability: float) -> bool:
        return chance.random() < probability

    return Script(
        producers=chance.randint(2 if kind == "sleepers" else 1, 4),
        readers=chance.randint(1, 2),
        members=2 if kind == "sleepers" else chance.choice([0, 1, 2, 2]),
        partitions=chance.randint(1, 3),
        messages=60 if kind == "sleepers" else chance.choice([10, 30, 60]),
        rest_s=15.0 if kind == "sleepers" else chance.choice([1.0, 1.0, 10.0]),
        linger_ms=chance.choice([0, 5, 50]),
        # In a storm, time runs out before the outcome is known.
        timeout_ms=2_500 if kind == "storm" else chance.choice([8_000, 60_000, 300_000]),
        latency_s=chance.choice([0.0005, 0.005, 0.05]),
        signals=sometimes(0.5),
        remote=sometimes(0.5),
        preempt=chance.choice([0.0, 0.02, 0.2]),
        faults=_faults(chance, kind),
        crashes=mixed and sometimes(0.7),
        pauses=mixed and sometimes(0.6),
        sleeps=mixed and sometimes(0.4),
        wrong_clocks=not well and sometimes(0.4),
        growth=sometimes(0.3),
        lives=sometimes(0.15),
        # Whoever sleeps over the clean-up of the log finds its slots open again.
        cleaning=kind == "sleepers" or sometimes(0.3),
        log_append_time=sometimes(0.2),
        auto_create=sometimes(0.4),
    )


def _faults(chance: random.Random, kind: str) -> Faults:
    def rate(most: float) -> float:
        return chance.choice([0.0, most / 4, most])

    if kind == "all goes well":
        return Faults()
    if kind == "storm":
        return Faults(lost_request=rate(0.3), lost_answer=0.3, late=0.3, conflict=rate(0.2), damage=rate(0.05))
    if kind == "sleepers":
        return Faults(stall=0.1, stall_s=chance.choice([15.0, 5 * HEAD_PROOF_S]), late=rate(0.05))
    return Faults(
        lost_request=rate(0.1),
        lost_answer=rate(0.15),
        late=rate(0.15),
        conflict=rate(0.1),
        stale_list=rate(0.3),
        stall=rate(0.04),
        damage=rate(0.02),
        late_s=chance.choice([0.02, 3.0]),
    )

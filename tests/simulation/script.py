"""The script of a run, derived from its seed: the actors, the settings and the possible faults."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from deltaq.delta.slot_proof import HEAD_PROOF_S
from deltaq.maintenance.settings import DEFAULT_SETTINGS, MaintenanceSettings
from deltaq.testing.simulation.network import Faults

__all__ = ["TOPIC", "Script", "script_of"]

TOPIC = "t"


@dataclass(frozen=True)
class Script:
    """One play. `messages` are per producer, which rests up to `rest_s` seconds after every few of them.

    `pauses` are of seconds, `sleeps` longer than a head is trusted. `topic` has the topic's settings. `maintainers`
    rest up to `maintenance_rest_s` between rounds and go by the numbers in `upkeep`, as do clients, with `caretaking`.
    `reset`: what readers do about an offset that is gone. `orphan`: somebody has uploaded a file and not committed it.
    `company`: writers take along what others have uploaded even if they commit seldom, all but as many as `loners`.
    With `batch_messages` a batch is full, and does not wait for the one before it.
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
    auto_create: bool
    topic: Mapping[str, str] = field(default_factory=dict)
    maintainers: int = 0
    maintenance_rest_s: float = 10.0
    caretaking: bool = False
    upkeep: MaintenanceSettings = DEFAULT_SETTINGS
    reset: str = "earliest"
    orphan: bool = False
    company: bool = False
    loners: int = 0
    batch_messages: int = 10_000

    def group_commit(self, number: int) -> str:
        """What this producer says about committing for others."""
        if not self.company:
            return "auto"
        return "false" if number < self.loners else "true"

    @property
    def is_compacted(self) -> bool:
        """Whether the topic wants a key in every message."""
        return "compact" in self.topic.get("cleanup.policy", "delete")


def script_of(seed: int, kind: str | None = None) -> Script:
    """The play of `seed`: of one of a few kinds (`kind`, if it is given), and the rest by chance."""
    chance = random.Random(f"script of {seed}")
    mixed = "a bit of all"
    chosen = chance.choice(["all goes well", "storm", "sleepers", "upkeep", "upkeep", mixed, mixed, mixed])
    kind = kind or chosen
    # Healthy systems lose messages too.
    well = kind == "all goes well"
    # Files leave while somebody sleeps over it, and slots of the log are opened again.
    long = kind in ("sleepers", "upkeep")

    def sometimes(probability: float) -> bool:
        return chance.random() < probability

    auto_create = not long and sometimes(0.4)
    return Script(
        producers=chance.randint(2 if kind == "sleepers" else 1, 4),
        readers=chance.randint(1, 2),
        members=2 if kind == "sleepers" else chance.choice([0, 1, 2, 2]),
        partitions=chance.randint(1, 3),
        messages=60 if kind == "sleepers" else chance.choice([30, 45] if long else [10, 30, 60]),
        rest_s=15.0 if long else chance.choice([1.0, 1.0, 10.0]),
        linger_ms=chance.choice([0, 5, 50]),
        # In a storm, time runs out before the outcome is known.
        timeout_ms=2_500 if kind == "storm" else chance.choice([8_000, 60_000, 300_000]),
        latency_s=chance.choice([0.0005, 0.005, 0.05]),
        signals=sometimes(0.5),
        remote=sometimes(0.5),
        preempt=chance.choice([0.0, 0.02, 0.2]),
        faults=_faults(chance, kind),
        crashes=kind in (mixed, "upkeep") and sometimes(0.7),
        pauses=kind in (mixed, "upkeep") and sometimes(0.6),
        sleeps=kind in (mixed, "upkeep") and sometimes(0.4),
        wrong_clocks=not well and sometimes(0.3),
        growth=sometimes(0.3),
        lives=sometimes(0.15),
        auto_create=auto_create,
        topic=_topic(chance, is_kept=not long and (auto_create or sometimes(0.5))),
        maintainers=chance.choice([1, 2, 2]) if long else chance.choice([0, 0, 1, 2]),
        caretaking=sometimes(0.4),
        upkeep=_upkeep(chance),
        reset=chance.choice(["earliest", "error"]),
        company=sometimes(0.7),
        loners=chance.choice([0, 0, 1]),
        batch_messages=chance.choice([2, 10_000]),
    )


def _topic(chance: random.Random, *, is_kept: bool) -> dict[str, str]:
    """The topic's settings. Of one that `is_kept` no records leave."""
    settings = {
        "segment.bytes": "1048576",
        "message.timestamp.type": "LogAppendTime" if chance.random() < 0.2 else "CreateTime",
    }
    policy = chance.choice(["delete", "delete", "compact", "compact,delete"])
    if is_kept:
        return settings
    return settings | {
        "cleanup.policy": policy,
        "retention.ms": chance.choice(["-1", "20000", "60000"]),
        "retention.bytes": chance.choice(["-1", "2000", "12000"]),
        "min.cleanable.dirty.ratio": chance.choice(["0.01", "0.5"]),
        "min.compaction.lag.ms": chance.choice(["0", "0", "10000"]),
        "delete.retention.ms": chance.choice(["0", "15000", "60000"]),
    }


def _upkeep(chance: random.Random) -> MaintenanceSettings:
    """Limits and intervals so small that a run of minutes covers what takes days."""
    keep_entries_min = chance.choice([1, 2, 4])
    return MaintenanceSettings(
        checkpoint_interval=chance.choice([3, 5, 8]),
        keep_entries_min=keep_entries_min,
        keep_entries_max=keep_entries_min + chance.choice([1, 4, 10]),
        keep_checkpoints=chance.choice([1, 2]),
        keep_checkpoint_interval=chance.choice([10, 1000]),
        merge_files=chance.choice([2, 3, 5]),
        dirty_bytes_max=chance.choice([4_000, 1_000_000]),
        file_delete_delay_ms=chance.choice([1_000, 10_000, 60_000]),
        look_interval_ms=chance.choice([500, 5_000, 20_000]),
        in_flight_ms=chance.choice([2_000, 10_000, 30_000]),
        background_share=0.5,
        background_interval_s=chance.choice([5.0, 40.0]),
        clean_up_interval_s=chance.choice([1.0, 10.0]),
    )


def _faults(chance: random.Random, kind: str) -> Faults:
    def rate(most: float) -> float:
        return chance.choice([0.0, most / 4, most])

    if kind == "all goes well":
        return Faults()
    if kind == "storm":
        return Faults(lost_request=rate(0.3), lost_answer=0.3, late=0.3, conflict=rate(0.2), damage=rate(0.05))
    if kind == "sleepers":
        return Faults(stall=0.1, stall_s=chance.choice([15.0, 10 * HEAD_PROOF_S, 10 * HEAD_PROOF_S]), late=rate(0.05))
    if kind == "upkeep":
        return Faults(stall=rate(0.08), stall_s=chance.choice([5.0, 6 * HEAD_PROOF_S]), stale_list=rate(0.3))
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

"""The scenario of a run, derived from its seed: the actors, the settings and the possible
faults.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from deltaq.delta.slot_proof import HEAD_PROOF_S
from deltaq.maintenance.run import TRANSACTIONAL_ID_EXPIRATION_MS
from deltaq.maintenance.settings import DEFAULT_SETTINGS, MaintenanceSettings
from tests.simulator.network import Faults

__all__ = [
    "COPIES",
    "GROUP",
    "INPUT",
    "KINDS",
    "OTHER",
    "OUTPUTS",
    "RANDOM_GROUP",
    "RANDOM_PARTITIONS",
    "RANDOM_TOPICS",
    "TOPIC",
    "VIEWS",
    "Scenario",
    "calmed",
    "scenario_of",
]

TOPIC = "t"
OTHER = "u"
"""A topic without messages, to which members that change their subscriptions subscribe at times."""
GROUP = "g"
INPUT = "in"
OUTPUTS = "a", "b"
"""What transactional programs read and write."""
COPIES = "copies"
"""What workers of a share group write that acknowledge in transactions."""
RANDOM_TOPICS = "x", "y"
"""What programs of random transactions read and write, with so many partitions each."""
RANDOM_PARTITIONS = 2
RANDOM_GROUP = "random"
TRANSACTIONS = "transactions"
SHARING = "share groups"
VIEWS = "views"
KINDS = (
    "no faults",
    "lossy network",
    "suspensions",
    "maintenance",
    "mixed",
    "groups",
    TRANSACTIONS,
    SHARING,
    VIEWS,
)


@dataclass(frozen=True)
class Scenario:
    """What happens in a run.

    `messages` are per producer, which rests up to `rest_s` seconds after every few of them. With
    `batch_messages`, a batch is full and does not wait for the one before it.

    `pauses` last seconds, `sleeps` longer than a client relies on its head. `recreates`: the topic
    is deleted and created again; `grows`: it gets more partitions. `topic` has its settings.
    `reset`: what readers do about an offset out of range. `orphan`: an uploaded file is never
    committed.

    `maintainers` rest up to `maintenance_rest_s` between rounds. They and, with
    `background_maintenance`, the clients use the settings in `maintenance`. `eager_group_commit`:
    group commit also at a low load, except for as many producers as `without_group_commit`.

    Group members use the assignor `strategy`, and with `static` have a `group.instance.id`. With
    `auto_commit` they commit by themselves, and have no callback for revoked partitions; otherwise
    they call `commit`. With `resubscribes` they change their subscriptions at times. `is_calm`:
    nothing happens to them but rebalances.

    With `processors`, all of this is replaced: so many members of the group copy the `messages` of
    one topic to two others in transactions, with so many `transactional_ids`. Beside them,
    `random_programs` make random transactions with topics of their own. With `large_messages` some
    of their messages are written in pieces, and with `arrow_outputs` some copies are written as
    Arrow tables. Maintenance expires ids that are not used for `id_expiration_ms`.

    With `workers`, all of this is replaced, too: so many members of a share group take the
    `messages`. A lock lasts `lock_s` seconds, a message is delivered `deliveries_max` times at
    most, and `locks_max` of a partition are undecided at most. With `dead_letters` the group
    has a topic for what fails. With `delays` some messages are to be delivered later. So many of
    the workers as `copiers` copy the messages in transactions.

    With `view_runners`, so many programs publish views over the `messages`, which `readers` read.
    `topic` has the settings of the compacted input.
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
    grows: bool
    recreates: bool
    auto_create: bool
    topic: Mapping[str, str] = field(default_factory=dict)
    maintainers: int = 0
    maintenance_rest_s: float = 10.0
    background_maintenance: bool = False
    maintenance: MaintenanceSettings = DEFAULT_SETTINGS
    reset: str = "earliest"
    orphan: bool = False
    eager_group_commit: bool = False
    without_group_commit: int = 0
    batch_messages: int = 10_000
    strategy: str = "range"
    static: bool = False
    auto_commit: bool = False
    resubscribes: bool = False
    is_calm: bool = False
    processors: int = 0
    transactional_ids: int = 1
    random_programs: int = 0
    large_messages: bool = False
    arrow_outputs: bool = False
    id_expiration_ms: int = TRANSACTIONAL_ID_EXPIRATION_MS
    workers: int = 0
    copiers: int = 0
    lock_s: float = 30.0
    deliveries_max: int = 5
    locks_max: int = 2_000
    dead_letters: bool = False
    view_runners: int = 0
    delays: bool = False

    def group_commit(self, number: int) -> str:
        """The setting `deltaq.group.commit` of a producer."""
        if not self.eager_group_commit:
            return "auto"
        return "false" if number < self.without_group_commit else "true"

    @property
    def is_compacted(self) -> bool:
        """Whether the topic wants a key in every message."""
        return "compact" in self.topic.get("cleanup.policy", "delete")


def scenario_of(seed: int, kind: str | None = None) -> Scenario:
    """The scenario of `seed`. `kind` is one of `KINDS`; if None, it is drawn from all but
    "groups", "transactions", "share groups" and "views".
    """
    if kind == TRANSACTIONS:
        return _transactional(seed)
    if kind == SHARING:
        return _sharing(seed)
    if kind == VIEWS:
        return _viewing(seed)
    # Another text here, or another order of draws below, changes the scenarios of all seeds.
    chance = random.Random(f"script of {seed}")
    mixed = "mixed"
    drawn = chance.choice(
        [
            "no faults",
            "lossy network",
            "suspensions",
            "maintenance",
            "maintenance",
            mixed,
            mixed,
            mixed,
        ]
    )
    kind = kind or drawn
    # Messages must not be lost without faults either.
    well = kind == "no faults"
    # Files are removed, and slots of the log are freed, while a process is suspended.
    long = kind in ("suspensions", "maintenance")
    groups = kind == "groups"

    def sometimes(probability: float) -> bool:
        return chance.random() < probability

    auto_create = not long and sometimes(0.4)
    scenario = Scenario(
        producers=1 if groups else chance.randint(2 if kind == "suspensions" else 1, 4),
        readers=0 if groups else chance.randint(1, 2),
        members=chance.randint(2, 5)
        if groups
        else 2
        if kind == "suspensions"
        else chance.choice([0, 1, 2, 2]),
        partitions=chance.randint(1, 6 if groups else 3),
        messages=60 if kind == "suspensions" else chance.choice([30, 45] if long else [10, 30, 60]),
        rest_s=15.0 if long or groups else chance.choice([1.0, 1.0, 10.0]),
        linger_ms=chance.choice([0, 5, 50]),
        # Short enough that deadlines pass while outcomes are unknown.
        timeout_ms=2_500 if kind == "lossy network" else chance.choice([8_000, 60_000, 300_000]),
        latency_s=chance.choice([0.0005, 0.005, 0.05]),
        signals=sometimes(0.5),
        remote=sometimes(0.5),
        preempt=chance.choice([0.0, 0.02, 0.2]),
        faults=_faults(chance, kind),
        crashes=kind in (mixed, "maintenance", "groups") and sometimes(0.7),
        pauses=kind in (mixed, "maintenance", "groups") and sometimes(0.6),
        sleeps=kind in (mixed, "maintenance", "groups") and sometimes(0.4),
        wrong_clocks=not well and sometimes(0.3),
        grows=sometimes(0.3),
        recreates=sometimes(0.15),
        auto_create=auto_create,
        topic=_topic(chance, is_kept=not long and (auto_create or sometimes(0.5))),
        maintainers=chance.choice([1, 2, 2]) if long else chance.choice([0, 0, 1, 2]),
        background_maintenance=sometimes(0.4),
        maintenance=_archiving(seed, _maintenance_settings(chance)),
        reset=chance.choice(["earliest", "error"]),
        eager_group_commit=sometimes(0.7),
        without_group_commit=chance.choice([0, 0, 1]),
        batch_messages=chance.choice([2, 10_000]),
        strategy=chance.choice(
            ["range", "roundrobin", "sticky", "cooperative-sticky", "cooperative-sticky"]
        ),
        static=sometimes(0.2),
        auto_commit=sometimes(0.4),
        resubscribes=groups and sometimes(0.5),
    )
    return calmed(scenario) if groups and sometimes(0.2) else scenario


def _transactional(seed: int) -> Scenario:
    """Transactional programs among the faults of a mixed scenario, and others like them."""
    chance = random.Random(f"transactions of {seed}")
    kind = chance.choice(["no faults", "lossy network", "mixed", "mixed", "groups", "maintenance"])
    base = scenario_of(seed, kind)
    processors = chance.choice([2, 3])
    return replace(
        base,
        processors=processors,
        transactional_ids=chance.randint(1, processors),
        messages=chance.choice([12, 24]),
        partitions=chance.randint(1, 3),
        rest_s=chance.choice([0.5, 3.0]),
        timeout_ms=chance.choice([8_000, 30_000, 60_000]),
        latency_s=chance.choice([0.0005, 0.005, 0.05]),
        crashes=kind != "no faults" and chance.random() < 0.7,
        pauses=kind != "no faults" and chance.random() < 0.7,
        sleeps=kind != "no faults" and chance.random() < 0.2,
        recreates=chance.random() < 0.2,
        maintainers=chance.choice([0, 1, 2]),
        static=False,
        topic={"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": "1048576"},
        random_programs=chance.choice([0, 0, 1, 2, 3]),
        large_messages=chance.random() < 0.3,
        arrow_outputs=chance.random() < 0.3,
        id_expiration_ms=chance.choice([TRANSACTIONAL_ID_EXPIRATION_MS, 5_000, 15_000]),
    )


def _sharing(seed: int) -> Scenario:
    """Workers of a share group among the faults of a mixed scenario, and others like them."""
    chance = random.Random(f"share groups of {seed}")
    kind = chance.choice(["no faults", "lossy network", "mixed", "mixed", "groups", "maintenance"])
    base = scenario_of(seed, kind)
    return replace(
        base,
        workers=chance.randint(1, 4),
        lock_s=chance.choice([2.0, 6.0, 20.0]),
        deliveries_max=chance.choice([3, 1_000]),
        locks_max=chance.choice([4, 2_000]),
        messages=chance.choice([20, 60]),
        partitions=chance.randint(1, 3),
        rest_s=chance.choice([0.5, 3.0]),
        latency_s=chance.choice([0.0005, 0.005, 0.05]),
        crashes=kind != "no faults" and chance.random() < 0.7,
        pauses=kind != "no faults" and chance.random() < 0.7,
        sleeps=kind != "no faults" and chance.random() < 0.3,
        grows=chance.random() < 0.3,
        recreates=chance.random() < 0.15,
        auto_create=False,
        maintainers=chance.choice([0, 1, 2]),
        topic={"cleanup.policy": "delete", "retention.ms": "-1", "segment.bytes": "1048576"},
        dead_letters=chance.random() < 0.6,
        delays=chance.random() < 0.5,
        copiers=random.Random(f"copiers of {seed}").choice([0, 0, 1, 2]),
    )


def _viewing(seed: int) -> Scenario:
    """Runners of views among the faults of a mixed scenario, and others like them."""
    chance = random.Random(f"views of {seed}")
    kind = chance.choice(["no faults", "lossy network", "mixed", "mixed", "groups", "maintenance"])
    base = scenario_of(seed, kind)
    return replace(
        base,
        view_runners=chance.choice([1, 1, 2, 3]),
        readers=1,
        messages=chance.choice([40, 80]),
        partitions=chance.randint(1, 3),
        rest_s=chance.choice([3.0, 8.0]),
        latency_s=chance.choice([0.0005, 0.005, 0.05]),
        crashes=kind != "no faults" and chance.random() < 0.7,
        pauses=kind != "no faults" and chance.random() < 0.7,
        sleeps=kind != "no faults" and chance.random() < 0.3,
        grows=chance.random() < 0.3,
        recreates=False,
        auto_create=False,
        maintainers=chance.choice([0, 1, 2]),
        topic={
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": chance.choice(["0.01", "0.5"]),
            # Until what writes the topic has read what it wrote, by any clock that is trusted.
            "min.compaction.lag.ms": "400000" if base.wrong_clocks else "10000",
            "delete.retention.ms": chance.choice(["0", "15000"]),
        },
    )


def calmed(scenario: Scenario) -> Scenario:
    """The scenario with nothing that could let a member return a record of another one again:
    `is_calm`.
    """
    return replace(
        scenario,
        faults=Faults(),
        crashes=False,
        pauses=False,
        sleeps=False,
        recreates=False,
        static=False,
        auto_commit=True,
        is_calm=True,
    )


def _topic(chance: random.Random, *, is_kept: bool) -> dict[str, str]:
    """The topic's settings; with `is_kept`, such that no record is removed."""
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


def _maintenance_settings(chance: random.Random) -> MaintenanceSettings:
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
        scan_interval_ms=chance.choice([500, 5_000, 20_000]),
        in_flight_ms=chance.choice([2_000, 10_000, 30_000]),
        background_fraction=0.5,
        background_interval_s=chance.choice([5.0, 40.0]),
        clean_up_interval_s=chance.choice([1.0, 10.0]),
    )


def _archiving(seed: int, settings: MaintenanceSettings) -> MaintenanceSettings:
    """The settings with room in the log's folder for a few names, which only stores that are not
    remote heed.
    """
    chance = random.Random(f"archive of {seed}")
    listed, interval = chance.choice([200, 600, 25_600]), chance.choice([1, 3])
    # The limit is 28 KiB, or so near that the threads that commit reach it as well.
    limit = min(listed + 100 * interval, settings.listed_bytes_limit)
    return replace(
        settings, listed_bytes_max=listed, archive_interval=interval, listed_bytes_limit=limit
    )


def _faults(chance: random.Random, kind: str) -> Faults:
    def rate(most: float) -> float:
        return chance.choice([0.0, most / 4, most])

    if kind == "no faults":
        return Faults()
    if kind == "lossy network":
        return Faults(
            lost_request=rate(0.3), lost_answer=0.3, late=0.3, conflict=rate(0.2), damage=rate(0.05)
        )
    if kind == "suspensions":
        stall_s = chance.choice([15.0, 10 * HEAD_PROOF_S, 10 * HEAD_PROOF_S])
        return Faults(stall=0.1, stall_again=0.9, stall_s=stall_s, late=rate(0.05))
    if kind == "maintenance":
        return Faults(
            stall=rate(0.08), stall_s=chance.choice([5.0, 6 * HEAD_PROOF_S]), stale_list=rate(0.3)
        )
    # Members are suspended while they commit, for longer than their session.
    stall, stall_s = (rate(0.15), 20.0) if kind == "groups" else (rate(0.04), 10.0)
    return Faults(
        lost_request=rate(0.1),
        lost_answer=rate(0.15),
        late=rate(0.15),
        conflict=rate(0.1),
        stale_list=rate(0.3),
        stall=stall,
        damage=rate(0.02),
        late_s=chance.choice([0.02, 3.0]),
        stall_s=stall_s,
    )

"""A topic's log as maintenance leaves it: a checkpoint in place of the entries."""

from __future__ import annotations

from deltaq.clock import SYSTEM_CLOCK
from deltaq.maintenance.settings import MaintenanceSettings
from deltaq.maintenance.throttle import Throttle
from deltaq.maintenance.topic_pass import TopicPass
from deltaq.names import log_entry, topic_log
from deltaq.store import ObjectMissing, Store

_SHORT = MaintenanceSettings(
    checkpoint_interval=1,
    keep_entries_max=1,
    keep_entries_min=0,
    keep_checkpoints=1,
    merge_files=10**6,
    clean_up_grace_s=0.0,
    clean_up_interval_s=0.0,
)


def checkpoint_and_clean_up(store: Store, topic: str) -> None:
    """Write a checkpoint of the newest version, and remove all entries below it."""
    work = TopicPass(store, topic, SYSTEM_CLOCK, _SHORT, Throttle(SYSTEM_CLOCK))
    done = work.run() + work.run()  # entries are marked first, and removed later
    assert done["checkpoints"] == 1, done
    try:
        store.get(log_entry(topic_log(topic), 0))
    except ObjectMissing:
        return
    raise AssertionError("the first entry is still there")

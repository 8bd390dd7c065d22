"""Checkpoints and log clean-up, as maintenance does them: delta-rs writes the checkpoint, the marker goes first."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from deltalake import DeltaTable

from deltaq import KafkaException, names
from deltaq.log.delta_log import CLEAN_UP_GRACE_S
from deltaq.log.topic_log import TopicLog
from deltaq.store import Store, StoreError
from deltaq.testing.simulation.world import Machine
from tests.simulation.script import TOPIC
from tests.simulation.stage import Stage

__all__ = ["Cleaner"]

FOLDER = names.topic_folder(TOPIC)
LOG = names.topic_log(TOPIC)


class Cleaner:
    """Keeps the topic's log short."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        self.is_done = False
        self._stage = stage

    def act(self, machine: Machine) -> None:
        while not self._stage.is_calm:
            machine.clock.sleep(self._stage.between(2, 15))
            try:
                self._clean(machine)
            except (StoreError, KafkaException):
                continue  # half done is fine: the next round does the rest
        self.is_done = True

    def _clean(self, machine: Machine) -> None:
        store = machine.store
        log = TopicLog(store, TOPIC, machine.clock)
        if not log.load():
            return
        checkpointed = _checkpoint(store, log.version)
        start = checkpointed - self._stage.pick(3)
        if start <= 0:
            return
        marker = names.log_start_marker(FOLDER, start)
        if marker not in [entry.key for entry in store.list(names.log_start_folder(FOLDER))]:
            store.create(marker, b"")
        machine.clock.sleep(CLEAN_UP_GRACE_S)
        for entry in list(store.list(LOG)):
            version = names.entry_version(entry.key)
            if version is not None and version < start:
                store.delete(entry.key)
                self._stage.network.count("a log entry was cleaned up")


def _checkpoint(store: Store, version: int) -> int:
    """Let delta-rs write a checkpoint of a copy of the log; put it where readers find it. Its version."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "_delta_log")
        copy.mkdir()
        for entry in list(store.list(LOG)):
            (copy / entry.key.removeprefix(LOG)).write_bytes(store.get(entry.key))
        table = DeltaTable(folder)
        table.create_checkpoint()
        made = names.checkpoint_file("", table.version())
        store.put(LOG + made, (copy / made).read_bytes())
        pointer = json.dumps({"version": table.version(), "size": 1}).encode()
        store.put(names.last_checkpoint(LOG), pointer)
        return table.version()

"""What is measured: streams of messages, each with a `linger.ms`, through a store of the model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchmarks.load import Load
from benchmarks.modelled.model import S3_STANDARD, StoreModel

__all__ = ["FULL_MODELLED", "QUICK_MODELLED", "ModelledPlan", "Stream"]


@dataclass(frozen=True, slots=True)
class Stream:
    """What is sent: messages of `message_bytes` to one topic, by `pairs` producers that each send
    an equal share of them to a partition of their own, which one of as many consumers reads.
    """

    load: Load
    message_bytes: int
    pairs: int = 1

    @property
    def mb_per_s(self) -> float:
        """Megabytes (10^6) a second."""
        return self.load.rate * self.message_bytes / 1e6

    @property
    def share(self) -> Load:
        """What one of the producers sends."""
        return replace(self.load, rate=self.load.rate // self.pairs)

    def __str__(self) -> str:
        clients = f", {self.pairs} producers and consumers" if self.pairs > 1 else ""
        size = f"of {self.message_bytes / 1000:g} KB{clients}"
        return f"{self.mb_per_s:g} MB/s {size}, linger {self.load.linger_ms:g} ms"


@dataclass(frozen=True, slots=True)
class ModelledPlan:
    """Each stream on a new store of the model, whose delays come from `seed`."""

    streams: tuple[Stream, ...]
    model: StoreModel = S3_STANDARD
    seed: int = 1


_LINGERS_MS = (5.0, 20.0, 100.0, 250.0, 1_000.0)
FULL_MODELLED = ModelledPlan(
    (
        *(Stream(Load(10_000, linger_ms, 20.0, 10.0), 1_000) for linger_ms in _LINGERS_MS),
        # One request brings 44 MB/s, and one client has few under way. Of 100 KB, so that the
        # Python of 16 clients in one process is not what is measured.
        *(
            Stream(Load(1_000, linger_ms, 20.0, 10.0), 100_000, pairs=8)
            for linger_ms in _LINGERS_MS
        ),
    )
)
QUICK_MODELLED = ModelledPlan(
    tuple(Stream(Load(10_000, linger_ms, 4.0, 4.0), 1_000) for linger_ms in (20.0, 250.0))
)

"""What is measured: streams of messages, each with a `linger.ms`, through a store of the model."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.load import Load
from benchmarks.modelled.model import S3_STANDARD, StoreModel

__all__ = ["FULL_MODELLED", "QUICK_MODELLED", "ModelledPlan", "Stream"]


@dataclass(frozen=True, slots=True)
class Stream:
    """What is sent: messages of `message_bytes`."""

    load: Load
    message_bytes: int

    @property
    def mb_per_s(self) -> float:
        """Megabytes (10^6) a second."""
        return self.load.rate * self.message_bytes / 1e6

    def __str__(self) -> str:
        return f"{self.mb_per_s:g} MB/s, linger {self.load.linger_ms:g} ms"


@dataclass(frozen=True, slots=True)
class ModelledPlan:
    """Each stream on a new store of the model, whose delays come from `seed`."""

    streams: tuple[Stream, ...]
    model: StoreModel = S3_STANDARD
    seed: int = 1


_LINGERS_MS = (5.0, 20.0, 100.0, 250.0, 1_000.0)
FULL_MODELLED = ModelledPlan(
    # Of 1 KB and of 10 KB, so many of them that the client's own work does not count for much.
    tuple(
        Stream(Load(10_000, linger_ms, seconds, warmup_s), size)
        for size, seconds, warmup_s in ((1_000, 20.0, 10.0), (10_000, 15.0, 5.0))
        for linger_ms in _LINGERS_MS
    )
)
QUICK_MODELLED = ModelledPlan(tuple(Stream(Load(10_000, linger_ms, 4.0, 4.0), 1_000) for linger_ms in (20.0, 250.0)))

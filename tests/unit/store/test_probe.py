"""A store that cannot be trusted is refused before anything is entrusted to it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deltaq.clock import SystemClock
from deltaq.store import (
    CreateUnsupported,
    MemoryStore,
    ObjectExists,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    StoreUnsafe,
    probe,
    probed,
)


class PatientClock(SystemClock):
    """Does not sleep, but says for how long it was asked to."""

    def __init__(self) -> None:
        self.slept_s: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)

    def random(self) -> float:
        return 0.5  # the middle: no jitter


class OddStore(MemoryStore):
    """A store in memory whose `create` answers as the script says, one entry a call; None is the
    true answer.
    """

    def __init__(self, *script: Callable[[OddStore, str, bytes], None] | StoreError | None) -> None:
        super().__init__("odd")
        self.script = list(script)
        self.creates = 0

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        self.creates += 1
        answer = self.script.pop(0) if self.script else None
        if answer is None:
            super().create(key, data, after)
        elif isinstance(answer, StoreError):
            raise answer
        else:
            answer(self, key, bytes(data))


def _overwrites(store: OddStore, key: str, data: bytes) -> None:
    store.put(key, data)


def _overwrites_and_denies_it(store: OddStore, key: str, data: bytes) -> None:
    store.put(key, data)
    raise ObjectExists("create", key, "412")


def _loses_the_object(store: OddStore, key: str, data: bytes) -> None:
    store.delete(key)
    raise ObjectExists("create", key, "412")


def _writes_without_an_answer(store: OddStore, key: str, data: bytes) -> None:
    store.put(key, data)
    raise StoreUnavailable("create", key, "timed out")


def _left_in(store: MemoryStore) -> list[str]:
    return [entry.key for entry in store.list("")]


def test_a_store_that_honours_the_condition_passes() -> None:
    store = OddStore()
    probe(store)
    assert store.creates == 2
    assert _left_in(store) == []


@pytest.mark.fault("S2")
@pytest.mark.parametrize("second", [_overwrites, _overwrites_and_denies_it, _loses_the_object])
def test_a_store_that_ignores_the_condition_is_refused_by_its_url(second) -> None:
    store = OddStore(None, second)
    with pytest.raises(StoreUnsafe, match=r"memory://odd .*If-None-Match"):
        probe(store)
    assert _left_in(store) == []


@pytest.mark.fault("S2")
def test_a_store_without_conditional_creates_is_refused_by_its_url() -> None:
    store = OddStore(CreateUnsupported("create", "k", "501 Not Implemented"))
    with pytest.raises(StoreUnsafe, match=r"memory://odd: 501 Not Implemented"):
        probe(store)


@pytest.mark.fault("S2")
@pytest.mark.parametrize(
    "script",
    [
        [_writes_without_an_answer],
        [StoreUnavailable("create", "k", "reset")],
        [None, StoreUnavailable("create", "k", "reset")],
        [ObjectExists("create", "k", "409 conflict")],
        [_writes_without_an_answer] * 4,
    ],
)
def test_a_probe_with_a_lost_answer_is_repeated_on_a_fresh_key(script) -> None:
    store, clock = OddStore(*script), PatientClock()
    probe(store, clock)
    assert store.script == []
    assert _left_in(store) == []
    assert clock.slept_s == ([0.05, 0.1, 0.2, 0.4] if len(script) == 4 else [0.05])


@pytest.mark.fault("S2")
def test_a_store_that_never_answers_is_unavailable_not_unsafe() -> None:
    store = OddStore(*[StoreUnavailable("create", "k", "reset")] * 5)
    with pytest.raises(StoreUnavailable):
        probe(store, PatientClock())


def test_missing_permission_is_reported_as_such() -> None:
    store, clock = OddStore(*[StoreRefused("create", "k", "403 Forbidden")] * 5), PatientClock()
    with pytest.raises(StoreRefused, match="403 Forbidden"):
        probe(store, clock)
    assert (store.creates, clock.slept_s) == (3, [0.05, 0.1])


@pytest.mark.parametrize("earlier", [[], [None]], ids=["the first create", "the second create"])
def test_a_single_refusal_is_verified_by_a_second_probe(earlier) -> None:
    # MinIO denies access to a folder from which another client is removing the last object.
    store = OddStore(*earlier, StoreRefused("create", "k", "403 Forbidden"))
    probe(store, PatientClock())
    assert store.script == []
    assert _left_in(store) == []


def test_a_client_without_delete_permission_passes_the_probe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = OddStore()

    def refuse(key: str) -> None:
        raise StoreRefused("delete", key, "403 Forbidden")

    monkeypatch.setattr(store, "delete", refuse)
    probe(store)


def test_a_store_is_probed_once_and_again_only_after_a_failure() -> None:
    store = OddStore(None, _overwrites)
    with pytest.raises(StoreUnsafe):
        probed(store)
    probed(store)
    probed(store)
    assert store.creates == 4
    probed(other := OddStore())
    assert other.creates == 2

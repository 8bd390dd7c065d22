"""Maintenance of all topics, groups, transactional ids and schemas under a root, as a service or a
scheduled job.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

from deltaq import names
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.config import ProducerConfig, parse_client_config
from deltaq.delta.store_errors import raising_unavailable
from deltaq.errors import InvalidConfig, KafkaException, printable
from deltaq.maintenance.checkpoint import CheckpointFailed
from deltaq.maintenance.clock_check import clock_fault, compare_clocks, expiry_ms
from deltaq.maintenance.groups import GroupPass
from deltaq.maintenance.report import FAILURES, Notify
from deltaq.maintenance.schemas import SCHEMAS, SchemasPass
from deltaq.maintenance.settings import DEFAULT_SETTINGS, MaintenanceSettings
from deltaq.maintenance.throttle import Stopped, Throttle
from deltaq.maintenance.topic_pass import TopicPass
from deltaq.maintenance.transactions import TransactionsPass
from deltaq.root import open_root
from deltaq.store import Store, left_probes, remove_left_probes

_log = logging.getLogger("deltaq.maintenance")

P = TypeVar("P")
Pass: TypeAlias = TopicPass | GroupPass | SchemasPass | TransactionsPass

_ROOT_SETTINGS = ("bootstrap.servers", "metadata.broker.list")

OFFSETS_RETENTION_MS = 7 * 24 * 3600 * 1000
"""Milliseconds; Kafka's default of `offsets.retention.minutes`."""

TRANSACTIONAL_ID_EXPIRATION_MS = 7 * 24 * 3600 * 1000
"""Kafka's default of `transactional.id.expiration.ms`."""


class Maintenance:
    """Maintenance of one root. Several instances, in any processes, may run at once. Not
    thread-safe.

    `notify` receives a line for each action. A failure of one topic, group or id is reported and
    counted under `FAILURES`; the round goes on with the others. So is a wall clock that differs
    from the store's; nothing is then removed because of its age. `offsets_retention_ms` is Kafka's
    `offsets.retention.minutes` in milliseconds, and `transactional_id_expiration_ms` its
    `transactional.id.expiration.ms`.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock = SYSTEM_CLOCK,
        settings: MaintenanceSettings = DEFAULT_SETTINGS,
        throttle: Throttle | None = None,
        notify: Notify | None = None,
        offsets_retention_ms: int = OFFSETS_RETENTION_MS,
        transactional_id_expiration_ms: int = TRANSACTIONAL_ID_EXPIRATION_MS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._throttle = throttle or Throttle(clock)
        self._notify: Notify = notify or (lambda _: None)
        self._offsets_retention_ms = offsets_retention_ms
        self._expiration_ms = transactional_id_expiration_ms
        self._transactions: dict[str, TransactionsPass] = {}
        self._topics: dict[str, TopicPass] = {}
        self._groups: dict[str, GroupPass] = {}
        self._schemas: SchemasPass | None = None
        self._unfinished_at = float("-inf")  # when the root was last searched for unfinished files

    @property
    def is_of_use(self) -> bool:
        """Whether the last round found a topic, a group or a schema registry."""
        return bool(self._topics or self._groups or self._schemas)

    def plan(self) -> Counter[str]:
        """Report the first action of each kind that a round would take. Changes nothing. Raises
        Unavailable.
        """
        done: Counter[str] = Counter()
        for name, work in self._passes():
            done += self._attempt(name, work.plan)
        return done + self._attempt("probes", self._plan_probe_removal)

    def round(self) -> Counter[str]:
        """Do all that is due under the root, once. Returns counts by kind of action. Raises
        Unavailable, Stopped.
        """
        done: Counter[str] = Counter()
        for name, work in self._passes():
            done += self._attempt(name, work.run)
        done += self._attempt("probes", self._remove_left_probes)
        done += self._attempt("unfinished files", self._remove_unfinished)
        if (fault := clock_fault(self._store, self._clock)) is not None:
            self._notify(fault)
            done[FAILURES] += 1
        return done

    def finish(self) -> Counter[str]:
        """After the last round: wait for the grace period, then remove what has not changed since
        that round.

        Log entries and heartbeats are removed only if the same instance has seen them twice. Raises
        Stopped.
        """
        done: Counter[str] = Counter()
        passes: list[tuple[str, Pass]] = [*self._topics.items(), *self._groups.items()]
        passes += self._transactions.items()
        passes += [] if self._schemas is None else [(SCHEMAS, self._schemas)]
        waiting = [(name, work) for name, work in passes if work.is_waiting()]
        if waiting:
            self._notify(
                f"waiting {self._settings.clean_up_grace_s:g} s before what others may still use is"
                " removed"
            )
            self._throttle.rest(self._settings.clean_up_grace_s)
        for name, work in waiting:
            done += self._attempt(name, work.finish)
        return done

    def _passes(self) -> Iterator[tuple[str, Pass]]:
        about = self._clock, self._settings
        # First: until a decision is published, topics lag behind it.
        yield from self._kept(
            names.TRANSACTIONS_FOLDER,
            self._transactions,
            lambda id_: TransactionsPass(
                self._store, id_, *about, self._expiration_ms, self._notify
            ),
        )
        yield from self._kept(
            names.TOPICS_FOLDER,
            self._topics,
            lambda topic: TopicPass(self._store, topic, *about, self._throttle, self._notify),
        )
        yield from self._kept(
            names.GROUPS_FOLDER,
            self._groups,
            lambda group: GroupPass(
                self._store, group, *about, self._offsets_retention_ms, self._notify
            ),
        )
        with raising_unavailable():
            has_schemas = bool(self._store.list_folders(names.SCHEMAS_FOLDER))
        if has_schemas and self._schemas is None:
            self._schemas = SchemasPass(self._store, self._clock, self._settings, self._notify)
        if self._schemas is not None:
            yield SCHEMAS, self._schemas

    def _kept(
        self, folder: str, passes: dict[str, P], begun: Callable[[str], P]
    ) -> Iterator[tuple[str, P]]:
        """The passes of the names in a folder. Those of the previous round are reused: they
        remember what they saw.
        """
        with raising_unavailable():
            found = list(names.named(folder, self._store.list_folders(folder)))
        for gone in passes.keys() - set(found):
            del passes[gone]
        for name in found:
            if name not in passes:
                passes[name] = begun(name)
            yield name, passes[name]

    def _plan_probe_removal(self) -> Counter[str]:
        with raising_unavailable():
            left = left_probes(self._store, expiry_ms(self._store, self._clock))
        if left:
            self._notify(f"probes: delete {len(left)} that were interrupted")
        return Counter({"actions planned": int(bool(left))})

    def _remove_left_probes(self) -> Counter[str]:
        with raising_unavailable():
            if not left_probes(self._store, expiry_ms(self._store, self._clock)):
                return Counter()
            compare_clocks(self._store, self._clock)
            removed = remove_left_probes(self._store, expiry_ms(self._store, self._clock))
            return Counter({"probes deleted": removed})

    def _remove_unfinished(self) -> Counter[str]:
        now = self._clock.uptime()
        if (now - self._unfinished_at) * 1000 < self._settings.scan_interval_ms:
            return Counter()
        removed = 0
        with raising_unavailable():
            for count in self._store.remove_unfinished():
                removed += count
                self._throttle.step()
        self._unfinished_at = now
        return Counter({"unfinished files deleted": removed})

    def _attempt(self, name: str, work: Callable[[], Counter[str]]) -> Counter[str]:
        shown = printable(name)
        try:
            return work()
        except KafkaException as error:
            self._notify(f"{shown}: {error.error.str()}")
        except CheckpointFailed as error:
            self._notify(f"{shown}: {error}")
        except Stopped:
            raise
        except Exception as error:  # noqa: BLE001 - a defect, or a malformed table, must not stop the other topics
            _log.exception("maintenance failed of=%r", name)
            self._notify(f"{shown}: {type(error).__name__}: {error}")
        return Counter({FAILURES: 1})


def run(
    root: str | os.PathLike[str],
    *,
    once: bool = False,
    dry_run: bool = False,
    interval_s: float = 60.0,
    conf: Mapping[str, Any] | None = None,
    notify: Notify | None = None,
    store: Store | None = None,
    clock: Clock = SYSTEM_CLOCK,
    settings: MaintenanceSettings = DEFAULT_SETTINGS,
) -> Counter[str]:
    """Maintain all topics, groups, transactional ids and schemas under `root`: one round every
    `interval_s` seconds for ever, or one with `once`.

    With `dry_run`, report what would be done first and change nothing. `conf` is a producer's
    configuration, of which `store.*`, `offsets.retention.minutes` and
    `transactional.id.expiration.ms` are used; use the same values wherever the root is maintained.
    A `conf` that names another root is refused. `notify` receives each line of progress.

    With `once` or `dry_run`, returns the number of actions of each kind; `failures` is the number
    of failures.

    Raises InvalidConfig for a root or an option that cannot be used. If the store does not answer,
    raises Unavailable with `once` or `dry_run`; without them the error is reported, and the next
    round tries again.
    """
    root = os.fspath(root)
    for key in _ROOT_SETTINGS:
        if (conf or {}).get(key, root) != root:  # the value is not shown: it may hold credentials
            raise InvalidConfig(
                f"{key} names another root than the one to be maintained: leave it out", key=key
            )
    config = parse_client_config(ProducerConfig, {**(conf or {}), "bootstrap.servers": root})
    store = open_root(config, clock) if store is None else store
    notify = notify or (lambda _: None)
    retention_ms = config.offsets_retention_minutes * 60_000
    maintenance = Maintenance(
        store,
        clock,
        settings,
        notify=notify,
        offsets_retention_ms=retention_ms,
        transactional_id_expiration_ms=config.transactional_id_expiration_ms,
    )

    def report_if_empty() -> None:
        if not maintenance.is_of_use:
            notify(f"there are no topics and no groups under {store.url}")

    if dry_run:
        planned = maintenance.plan()
        report_if_empty()
        return planned
    while True:
        try:
            done = maintenance.round()
        except KafkaException as error:
            if once:
                raise
            _log.warning("a round of maintenance failed: %s", error)
            done = Counter({FAILURES: 1})
            notify(f"{store.url}: {error}")
        else:
            report_if_empty()
        if once:
            done += maintenance.finish()
        parts = [f"{count:,} {what}" for what, count in sorted(done.items()) if count]
        notify("done: " + (", ".join(parts) or "nothing was due"))
        if once:
            return done
        clock.sleep(interval_s)

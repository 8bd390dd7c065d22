"""Copies of the registry in other roots, with the same ids, versions and settings.

What the registry says is copied, and not the entries of its log, of which clean-up removes the
older ones. A copy keeps a digest of itself, so that one with changes of its own is noticed and left
alone.
"""

from __future__ import annotations

from dataclasses import replace

from deltaq.clock import Clock
from deltaq.errors import KafkaError, KafkaException
from deltaq.schema_registry.changes import Change
from deltaq.schema_registry.log import RegistryLog
from deltaq.schema_registry.state import Registry, RegistryHead, copy_mark
from deltaq.store import Store

COMMIT_TIMEOUT_S = 60.0

DOMAINS_AT_ONCE = 1000
"""Schemas and subjects in one entry of the copy's log."""


class RegistryCopier:
    """Copies the registry of one root to another. It keeps both as last read, and reads only what
    is new.
    """

    def __init__(self, source: Store, target: Store, clock: Clock) -> None:
        self._source = RegistryLog(source, clock)
        self._target = RegistryLog(target, clock)
        self._target_url = target.url

    def run(self) -> int:
        """Copy what the target lacks; the number of schemas and subjects that were changed there.

        An interrupted copy is continued. Raises KafkaException (_INCONSISTENT) if the registry of
        the target is no copy of this source or has changes of its own, Corrupt, Incompatible,
        Unavailable, OutcomeUnknown, UnsafeStore.
        """
        source = self._source.read()
        changed = 0
        while step := self._target.change(
            "COPY REGISTRY", lambda target: self._plan(source, target), COMMIT_TIMEOUT_S
        ):
            changed += step
        return changed

    def _plan(self, source: Registry, target: Registry) -> Change[int]:
        if not may_continue(source, target):
            reason = (
                f"the schema registry of {self._target_url} has entries of its own: copy to another"
                " root"
            )
            raise KafkaException(KafkaError(KafkaError._INCONSISTENT, reason))
        return plan_copy(source, target)


def may_continue(source: Registry, target: Registry) -> bool:
    """Whether the target is empty, or an earlier copy of this source without changes of its own."""
    if not target.domains():
        return True
    same = all(
        source.schemas.get(number, stored).guid == stored.guid
        for number, stored in target.schemas.items()
    )
    return (
        target.copied_digest == target.digest()
        and target.head.next_id <= source.head.next_id
        and same
    )


def plan_copy(source: Registry, target: Registry, at_once: int = DOMAINS_AT_ONCE) -> Change[int]:
    """The next step that makes the target equal to the source, and how many schemas and subjects it
    changes.
    """
    wanted, there = source.domains(), target.domains()
    steps = [action for domain, action in wanted.items() if action != there.get(domain)]
    # Backwards: no schema goes before the subjects that name it.
    gone = [action for domain, action in reversed(there.items()) if domain not in wanted]
    steps += [replace(action, configuration="{}", removed=True) for action in gone]
    steps = steps[:at_once]
    if not steps:
        return Change(0)
    head = RegistryHead().action()  # a log gets it with its first entry, if the step has none
    after = {head.domain: head} | there | {step.domain: step for step in steps}
    mark = copy_mark(action for action in after.values() if not action.removed)
    return Change(sum(step.domain != head.domain for step in steps), [*steps, mark])

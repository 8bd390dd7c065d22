"""The outcome of the groups suite: its tables, charts and targets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.finding import Chart, Series, Table, Target, at_least, at_most, known_cores
from benchmarks.groups.changes import Changes, Takeover
from benchmarks.groups.commits import Commits, LogSize
from benchmarks.groups.cost import GroupCost
from benchmarks.groups.patterns import Pattern
from benchmarks.groups.plan import GroupsPlan
from benchmarks.groups.requests import LABELS

__all__ = ["Groups"]

FIRST_AIM_MS = 300.0
HAND_OVER_AIM_MS = 1_000.0
PATTERN_AIM_S = 3.0
GROWTH_AIM = 1.2
"""How many times the requests for the group of a member of the smallest group with a leader to
watch those of a member of a larger one may be.
"""
FAIRNESS_AIM = 0.5


@dataclass(frozen=True, slots=True)
class Groups:
    """The outcome of a plan. `judged` says whether assignments were measured on local disk, for
    which there are aims. `others` are the cores that other programs kept busy.
    """

    plan: GroupsPlan
    judged: bool
    changes: tuple[Changes, ...]
    takeovers: tuple[Takeover, ...]
    costs: tuple[GroupCost, ...]
    commits: tuple[Commits, ...]
    log: LogSize
    patterns: tuple[Pattern, ...]
    others: float | None

    @property
    def is_clean(self) -> bool:
        """True: a member without its partitions or its record has raised, and records are not
        compared here.
        """
        return True

    @property
    def others_cores(self) -> tuple[float, ...]:
        return known_cores([self.others])

    def ratio(self, one: Changes) -> float | None:
        """The median time until `on_assign` relative to Kafka's; None if Kafka was not measured."""
        same = (
            other
            for other in self.changes
            if (other.strategy, other.name) == (one.strategy, one.name)
        )
        theirs = next((other for other in same if other.client == "Kafka"), None)
        return None if theirs is None else one.assigned.p50 / theirs.assigned.p50

    def growth(self, cost: GroupCost) -> float | None:
        """Requests of a member for its group, relative to the smallest group of several; None for
        that one.
        """
        same = [one for one in self.costs if one.busy == cost.busy and one.members > 1]
        if (
            cost.members == 1
            or cost.members == (least := min(same, key=lambda one: one.members)).members
        ):
            return None
        return cost.group_per_minute / least.group_per_minute

    def tables(self) -> Iterator[Table]:
        """Changes, takeovers, requests, commits, the size of the log, and patterns."""
        yield self._change_table()
        yield Table(
            "Takeover of a killed member's partitions",
            ("session.timeout.ms", "seconds", "sessions"),
            tuple((f"{of.session_s * 1000:,.0f}", f"{of.seconds:.2f}", f"{of.seconds / of.session_s:.2f}")  # noqa: E501
                  for of in self.takeovers),
        )  # fmt: skip
        yield self._cost_table()
        yield self._commit_table()
        yield self._log_table()
        title = "A subscription by pattern: seconds until all topics are assigned"
        rows = tuple(
            (one.place, one.strategy, f"{one.topics:,}", f"{one.seconds:.2f}")
            for one in self.patterns
        )
        yield Table(title, ("place", "strategy", "topics", "seconds"), rows)

    def charts(self) -> Iterator[Chart]:
        """Requests over the number of members."""
        series = tuple(
            Series(
                name,
                tuple(
                    (one.members, one.group_per_minute) for one in self.costs if one.busy == busy
                ),
            )
            for name, busy in (("idle", False), ("busy", True))
        )
        yield Chart("Requests for the group", "members", "a minute and member", series, log_x=True)

    def targets(self) -> Iterator[Target]:
        """Times on local disk, the growth of the requests, the share of each member, and the
        pattern.
        """
        for one in self.changes:
            if self.judged and one.client == "deltaq":
                aim = FIRST_AIM_MS if one.name.startswith("first") else HAND_OVER_AIM_MS
                yield at_most(f"{one.name}, {one.strategy}, p50", aim, one.assigned.p50, " ms")
        for cost in self.costs:
            growth = self.growth(cost)
            if growth is not None:
                state = "busy" if cost.busy else "idle"
                yield at_most(
                    f"requests per member, {cost.members} members, {state}",
                    GROWTH_AIM,
                    growth,
                    " times",
                )
        for commits in self.commits:
            if commits.members > 1:
                yield at_least(
                    f"slowest/median, {commits.members} at once, {commits.place}",
                    FAIRNESS_AIM,
                    commits.fairness,
                )
        for pattern in self.patterns:
            name = f"{pattern.topics:,} topics by pattern, {pattern.place}, {pattern.strategy}"
            yield at_most(name, PATTERN_AIM_S, pattern.seconds, " s")

    def _change_table(self) -> Table:
        head = (
            "change",
            "strategy",
            "client",
            "p50",
            "p95",
            "max",
            "to Kafka's",
            "first record p50",
            "p95",
            "rounds",
        )
        rows = []
        for one in sorted(
            self.changes, key=lambda one: (one.name, one.strategy, one.client != "deltaq")
        ):
            ratio = self.ratio(one) if one.client == "deltaq" else None
            times = (
                f"{time:,.0f}" for time in (one.assigned.p50, one.assigned.p95, one.assigned.max)
            )
            records = (f"{time:,.0f}" for time in (one.record.p50, one.record.p95))
            shown = "-" if ratio is None else f"{ratio:.2f}"
            rows.append(
                (
                    one.name,
                    one.strategy,
                    one.client,
                    *times,
                    shown,
                    *records,
                    str(one.assigned.count),
                )
            )
        return Table(
            "ms until `on_assign` of the new owner, and until its first record", head, tuple(rows)
        )

    def _cost_table(self) -> Table:
        title = (
            f"Modelled {self.plan.model.name}: requests a minute of one member, and its dollars a "
            "day. Busy: each partition gets two records a second in one commit, automatic commits "
            "every 5 s"
        )
        head = "members", *LABELS, "entries/s", "start s", "$"
        rows = [
            (
                f"{cost.members} {'busy' if cost.busy else 'idle'}",
                *(f"{cost.per_minute(label):,.1f}" for label in LABELS),
                f"{cost.commits_per_s:.2f}",
                f"{cost.started_s:.1f}",
                f"{cost.dollars(self.plan.model):.2f}",
            )
            for cost in sorted(self.costs, key=lambda cost: (cost.busy, cost.members))
        ]
        return Table(title, head, tuple(rows))

    def _commit_table(self) -> Table:
        head = (
            "place",
            "members",
            "commits/s, median",
            "slowest",
            "fastest",
            "slowest/median",
            "all",
            "p50 ms",
            "p99 ms",
            "max",
        )
        rows = [
            (
                one.place,
                str(one.members),
                f"{one.per_member:.1f}",
                *(f"{count / one.seconds:.1f}" for count in (one.counts[0], one.counts[-1])),
                f"{one.fairness:.2f}",
                f"{sum(one.counts) / one.seconds:.1f}",
                *(f"{time:,.1f}" for time in (one.latency.p50, one.latency.p99, one.latency.max)),
            )
            for one in self.commits
        ]
        return Table("Synchronous commits of members that commit at once", head, tuple(rows))

    def _log_table(self) -> Table:
        log, sizes = self.log, sorted({size for together in self.plan.sizes for size in together})
        rows = [
            (
                f"1, {log.modelled_s / 3600:g} h written",
                f"{log.entries:,}",
                f"{log.objects:,}",
                f"{log.mb:.1f}",
            )
        ]
        for members in sizes:
            entries, mb = log.after_a_day(members)
            rows.append((f"{members}, a day reckoned", f"{entries:,}", "-", f"{mb:,.0f}"))
        title = (
            "The group's log: one entry of five offsets every 5 s and member, with checkpoints and "
            "clean-up"
        )
        return Table(title, ("members", "entries", "objects", "MB"), tuple(rows))

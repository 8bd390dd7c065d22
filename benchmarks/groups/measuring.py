"""Carries out a plan, one part after the other."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from benchmarks.client import deltaq_client, kafka_client
from benchmarks.groups.changes import Changes, measure_changes, measure_takeovers
from benchmarks.groups.commits import Commits, measure_commits, measure_log
from benchmarks.groups.cost import GroupCost, measure_costs
from benchmarks.groups.outcome import Groups
from benchmarks.groups.patterns import measure_patterns
from benchmarks.groups.plan import GroupsPlan
from benchmarks.machine import OthersLoad
from benchmarks.suite import Place

__all__ = ["measure_groups"]


def measure_groups(plan: GroupsPlan, place: Place) -> Iterator[Groups]:
    """One outcome. Kafka takes part if `place` names a broker."""
    others, report, root = OthersLoad(), place.report, place.root
    changes = list(_changes(plan, place))
    report(f"groups, takeover of a session of {plan.session_s:g} s: {plan.takeovers} times")
    takeovers = measure_takeovers(deltaq_client(root), plan.session_s, plan.takeovers)
    costs: list[GroupCost] = []
    for sizes in plan.sizes:
        report(f"groups, requests of {', '.join(map(str, sizes))} members")
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            measure = pool.submit(measure_costs, plan, sizes)
            costs += measure.result()
    commits: list[Commits] = []
    for members in plan.committers:
        report(f"groups, {members} members commit at once")
        commits += measure_commits(root, members, plan.commit_s, plan.model, plan.seed)
    report(f"groups, the log of {plan.logged_s / 3600:g} h; {plan.topics:,} topics by pattern")
    log, patterns = measure_log(plan.logged_s), measure_patterns(root, plan.topics, plan.strategies)
    found = tuple(changes), tuple(takeovers), tuple(costs), tuple(commits), log, tuple(patterns)
    yield Groups(plan, "://" not in root, *found, others.cores())


def _changes(plan: GroupsPlan, place: Place) -> Iterator[Changes]:
    clients = [(deltaq_client(place.root), plan.rounds)]
    if place.kafka:
        clients.append((kafka_client(place.kafka), plan.kafka_rounds))
    for strategy in plan.strategies:
        for client, rounds in clients:
            place.report(f"groups, changes under {strategy}, {client.name}: {rounds} rounds")
            for change in measure_changes(client, strategy, rounds):
                place.report(
                    f"  {change.name}: p50 {change.assigned.p50:,.0f} ms, p95 "
                    f"{change.assigned.p95:,.0f} ms"
                )
                yield change

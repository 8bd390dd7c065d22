"""What pages show of a root at one time: rates, lags and costs, from two samples of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from deltaq.admin.groups import MemberDescription, PartitionLag, PendingOffset, total_lag
from deltaq.admin.share_groups import ShareGroupDescription
from deltaq.config import TopicSettings
from deltaq.tools.cost import Cost
from deltaq.tools.rates import GroupCount, RootSample, topic_rates
from deltaq.units import as_size, as_span

NO_POINTS: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicPage:
    """A topic. Rates are None after the first look; `rates` are those of the last looks, the newest
    last.
    """

    name: str
    messages: int
    bytes: int
    files: int
    files_to_compact: int
    version: int
    ranges: Sequence[tuple[int, int]]
    settings: TopicSettings
    is_typed: bool
    messages_per_s: float | None
    commits_per_s: float | None
    produced: int = 0
    rates: Sequence[float] = NO_POINTS

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes of files a second, by the average size of a message in the files that there are;
        None if unknown.
        """
        if not self.messages_per_s:
            return self.messages_per_s
        return self.messages_per_s * self.bytes / self.messages if self.messages else None

    @property
    def retention(self) -> str:
        """When records are removed, in a few words."""
        policy = self.settings.cleanup_policy
        limits = []
        if "delete" in policy:
            if self.settings.retention_ms >= 0:
                limits.append(as_span(self.settings.retention_ms))
            if self.settings.retention_bytes >= 0:
                limits.append(as_size(self.settings.retention_bytes))
        if "compact" in policy:
            limits.append("newest of each key")
        return ", ".join(limits) or "for ever"


@dataclass(frozen=True, slots=True)
class GroupPage:
    """A group. `lags` are those of the last looks, the newest last."""

    name: str
    state: str
    assignor: str
    members: Sequence[MemberDescription]
    partitions: Sequence[PartitionLag]
    lag: int | None
    lag_per_s: float | None
    lags: Sequence[float] = NO_POINTS
    pending: Sequence[PendingOffset] = ()

    @property
    def topics(self) -> list[str]:
        """The topics in which it has a position, or that it subscribes to."""
        return sorted({partition.topic for partition in self.partitions})

    def lag_in(self, topic: str) -> int | None:
        """The lag in one of its topics; None if it is not known."""
        return total_lag([partition for partition in self.partitions if partition.topic == topic])

    @property
    def clients(self) -> Mapping[str, str]:
        """The names of clients by the ids of members."""
        return {member.member_id: f"{member.client_id} on {member.host}" for member in self.members}


@dataclass(frozen=True, slots=True)
class RootView:
    """A root at one time. `number` counts looks. `problem` says why the last one failed; the rest
    is older then.
    """

    number: int
    topics: Mapping[str, TopicPage]
    groups: Mapping[str, GroupPage]
    errors: Mapping[str, str]
    cost: Cost
    rates: Sequence[float] = NO_POINTS
    lags: Sequence[float] = NO_POINTS
    dollars: Sequence[float] = NO_POINTS
    requests_per_s: float | None = None
    problem: str = ""
    queues: Mapping[str, ShareGroupDescription] = field(default_factory=dict)

    @property
    def messages_per_s(self) -> float | None:
        """Of all topics; None after the first look."""
        known = [
            topic.messages_per_s
            for topic in self.topics.values()
            if topic.messages_per_s is not None
        ]
        return sum(known) if known else None

    @property
    def bytes(self) -> int:
        """Of all topics."""
        return sum(topic.bytes for topic in self.topics.values())

    @property
    def lag(self) -> int:
        """Of the groups whose lag is known."""
        return sum(group.lag or 0 for group in self.groups.values())

    @property
    def unknown_lags(self) -> int:
        """The groups whose lag is not known."""
        return sum(group.lag is None for group in self.groups.values())


EMPTY = RootView(0, {}, {}, {}, Cost())


@dataclass(slots=True)
class LagHistory:
    """The values of the last looks, by what they are of. A name that is gone is forgotten."""

    length: int
    _values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, values: Mapping[str, float | None]) -> dict[str, tuple[float, ...]]:
        """Take the values of a look, and return all that are known. None is left out."""
        for gone in self._values.keys() - values.keys():
            del self._values[gone]
        for name, value in values.items():
            points = self._values.setdefault(name, [])
            if value is not None:
                points.append(value)
            del points[: -self.length]
        return {name: tuple(points) for name, points in self._values.items()}


def topic_views(before: RootSample | None, now: RootSample) -> dict[str, TopicPage]:
    """The topics of a sample, by name, with their rates since the sample before."""
    found = {}
    for rate in topic_rates(before, now):
        count = now.topics[rate.topic]
        if count.settings is not None:
            size = count.bytes, count.files, count.files_to_compact
            about = count.ranges, count.settings, count.is_typed
            rates = rate.messages_per_s, rate.commits_per_s
            found[rate.topic] = TopicPage(
                rate.topic, count.messages, *size, count.version, *about, *rates, count.produced
            )
    return dict(sorted(found.items()))


def group_views(before: RootSample | None, now: RootSample) -> dict[str, GroupPage]:
    """The groups of a sample, by name."""
    return {
        name: _group_view(name, count, before, now) for name, count in sorted(now.groups.items())
    }


def _group_view(
    name: str, count: GroupCount, before: RootSample | None, now: RootSample
) -> GroupPage:
    earlier = None if before is None else before.groups.get(name)
    rate, lag, lag_before = None, count.lag.lag, None if earlier is None else earlier.lag.lag
    if before is not None and lag is not None and lag_before is not None and now.at_s > before.at_s:
        rate = (lag - lag_before) / (now.at_s - before.at_s)
    about = count.about
    state = about.state.name.lower().replace("_", " ")
    return GroupPage(
        name,
        state,
        about.partition_assignor,
        about.members,
        count.lag.partitions,
        lag,
        rate,
        pending=count.lag.pending,
    )

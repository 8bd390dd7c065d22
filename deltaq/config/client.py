"""Parses the arguments of `Producer`, `Consumer` and `AdminClient` into a checked, typed, immutable
configuration.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias, TypeVar

from deltaq import names
from deltaq.config.client_table import CLIENT_SETTINGS
from deltaq.config.setting import Setting, SettingValue, unknown_setting
from deltaq.errors import InvalidConfig

Callback: TypeAlias = Callable[..., object]

_LOG = logging.getLogger("deltaq")
STORE_PREFIX = "store."
_LEGACY_TOPIC_CONFIG = "default.topic.config"
_BROKER_LIST = re.compile(r"[A-Za-z0-9._-]+:[0-9]+(\s*,\s*[A-Za-z0-9._-]+:[0-9]+)*")

_SETTING_OF: Mapping[str, Setting] = {
    name: s for s in CLIENT_SETTINGS.values() for name in (s.name, *s.aliases)
}
"""Each setting under its name and its aliases."""

_KEY_OF_KEYWORD: Mapping[str, str] = {
    name.replace(".", "_"): name for name in (*_SETTING_OF, _LEGACY_TOPIC_CONFIG)
}
"""Keyword argument -> setting: `linger_ms` -> `linger.ms`."""

_warned: set[str] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """The configuration common to all clients. Attributes are Kafka's names with `_` for `.`; units
    are in the names.

    `root` is the URL or path from `bootstrap.servers`; `store_options` are the settings `store.*`
    without that prefix. `repr` masks both, because they may hold secrets.
    """

    kind: ClassVar[str]

    root: str = field(repr=False)
    store_options: Mapping[str, str] = field(repr=False)
    client_id: str
    auto_create_topics_enable: bool
    num_partitions: int
    message_max_bytes: int
    large_message_enabled: bool
    maintenance_enable: bool
    error_cb: Callback | None
    stats_cb: Callback | None
    statistics_interval_ms: int
    logger: logging.Logger | None

    def __repr__(self) -> str:
        shown = {f.name: getattr(self, f.name) for f in fields(self) if f.repr}
        # User information and query of a URL may carry keys and signatures.
        root = re.sub(r"//[^/]*@", "//***@", self.root).partition("?")[0]
        parts = [
            f"root={root!r}",
            f"store_options={{{', '.join(f'{key!r}: ***' for key in self.store_options)}}}",
        ]
        parts += (f"{key}={value!r}" for key, value in shown.items())
        return f"{type(self).__name__}({', '.join(parts)})"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AdminConfig(ClientConfig):
    """The configuration of an admin client."""

    kind = "admin"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ProducerConfig(ClientConfig):
    """The configuration of a producer. 0 means no limit in `queue_buffering_max_messages` and
    `message_timeout_ms`; `deltaq_group_commit` is `auto`, `true` or `false`.
    """

    kind = "producer"

    transactional_id: str | None
    transaction_timeout_ms: int
    linger_ms: float
    batch_size: int
    batch_num_messages: int
    queue_buffering_max_messages: int
    queue_buffering_max_kbytes: int
    max_block_ms: int
    message_timeout_ms: int
    auto_register_schemas: bool
    compression_type: str
    compression_level: int
    partitioner: str
    sticky_partitioning_linger_ms: int
    deltaq_group_commit: str
    delivery_report_only_error: bool
    offsets_retention_minutes: int
    transactional_id_expiration_ms: int
    on_delivery: Callback | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConsumerConfig(ClientConfig):
    """The configuration of a consumer. `auto_offset_reset` is `earliest`, `latest` or `error`."""

    kind = "consumer"

    group_id: str
    auto_offset_reset: str
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    enable_auto_offset_store: bool
    session_timeout_ms: int
    heartbeat_interval_ms: int
    max_poll_interval_ms: int
    partition_assignment_strategy: tuple[str | Callable[..., Any], ...]
    group_instance_id: str | None
    fetch_wait_max_ms: int
    fetch_max_bytes: int
    queued_max_messages_kbytes: int
    enable_partition_eof: bool
    allow_auto_create_topics: bool
    topic_metadata_refresh_interval_ms: int
    on_commit: Callback | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ShareConsumerConfig(ClientConfig):
    """The configuration of a share consumer. `share_acknowledgement_mode` is `implicit` or
    `explicit`.
    """

    kind = "share consumer"

    group_id: str
    share_acknowledgement_mode: str
    max_poll_records: int
    fetch_wait_max_ms: int


ConfigT = TypeVar("ConfigT", bound=ClientConfig)

_NOT_OF_SHARE_CONSUMERS = (
    "auto.offset.reset",
    "enable.auto.commit",
    "enable.partition.eof",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "isolation.level",
    "partition.assignment.strategy",
    "queued.min.messages",
    "session.timeout.ms",
)
"""Settings of consumers that librdkafka refuses for share consumers."""


def parse_client_config(
    config: type[ConfigT],
    conf: Mapping[str, object] | None,
    kwargs: Mapping[str, object] = MappingProxyType({}),
) -> ConfigT:
    """A `config` from a client's arguments, which are not modified.

    `kwargs` take precedence over `conf` and may be spelled `linger_ms` or `linger.ms`.
    InvalidConfig for an unknown key, an invalid value, or settings that contradict each other;
    ValueError for a consumer without `group.id`, and for a setting that a share consumer refuses;
    TypeError if `conf` is not a mapping.
    """
    if conf is None and kwargs:
        conf = {}
    if not isinstance(conf, Mapping):
        raise TypeError("expected configuration dict")
    given: dict[str, Any] = {}
    store_options: dict[str, str | None] = {}
    for key, value in _merged(conf, kwargs):
        if key.startswith(STORE_PREFIX) and key != STORE_PREFIX:
            store_options[key.removeprefix(STORE_PREFIX)] = store_option(key, value)
        elif key in _SETTING_OF:
            given[_SETTING_OF[key].name] = (
                None if value is None else _checked(_SETTING_OF[key], key, value)
            )
        else:
            raise unknown_setting(key, _SETTING_OF)
    # None selects the default, and overrides an earlier value.
    given = {name: value for name, value in given.items() if value is not None}
    options = {name: value for name, value in store_options.items() if value is not None}
    if config is ShareConsumerConfig:
        _check_share_consumer(given)
    _check_required(config.kind, given)
    _warn_of_no_effect(config.kind, given)
    values: dict[str, Any] = {
        name: given.get(name, setting.default) for name, setting in CLIENT_SETTINGS.items()
    }
    if config is ProducerConfig:
        _fit_producer(values, frozenset(given))
    elif config is ConsumerConfig:
        _fit_consumer(values, frozenset(given))
    wanted = {f.name for f in fields(config)}
    attributes = {
        s.attribute: values[s.name] for s in CLIENT_SETTINGS.values() if s.attribute in wanted
    }
    return config(root=values["bootstrap.servers"], store_options=options, **attributes)


def _merged(
    conf: Mapping[Any, object], kwargs: Mapping[str, object]
) -> Iterator[tuple[str, object]]:
    """All (key, value) pairs with Kafka's spelling; a later pair overrides an earlier one of the
    same key.
    """
    pairs = [(str(key), value) for key, value in conf.items()]
    pairs += [(_key_of_keyword(keyword), value) for keyword, value in kwargs.items()]
    yield from (pair for pair in pairs if pair[0] != _LEGACY_TOPIC_CONFIG)
    for key, nested in pairs:
        # Last, since confluent-kafka lets it take precedence over the same setting outside it.
        if key == _LEGACY_TOPIC_CONFIG and nested is not None:
            if not isinstance(nested, Mapping):
                raise TypeError(f"{key} must be a dict, not {type(nested).__name__}")
            yield from ((str(inner), value) for inner, value in nested.items())


def _key_of_keyword(keyword: str) -> str:
    if keyword.startswith("store_"):
        return STORE_PREFIX + keyword.removeprefix("store_")
    return _KEY_OF_KEYWORD.get(keyword, keyword)


def _checked(setting: Setting, key: str, value: object) -> object:
    if setting.kind in ("callable", "logger"):
        return setting.check_callable(value)
    parsed = setting.parse(value, key)
    if parsed is not None and setting.name == "group.id":
        names.check_group(parsed)
    elif parsed is not None and setting.name == "transactional.id":
        names.check_transactional_id(parsed)
    elif parsed is not None and setting.name in _IDS:
        names.check_id(parsed, setting.name)
    return parsed


_IDS = {"client.id", "group.instance.id"}


def store_option(key: str, value: object) -> str | None:
    """The value of a setting `store.*` as text. InvalidConfig for a value of another type."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    raise InvalidConfig(
        f'Invalid value for "{key}": expected a string, got {type(value).__name__}', key=key
    )


def _check_required(kind: str, values: Mapping[str, object]) -> None:
    if kind in ("consumer", "share consumer") and not values.get("group.id"):
        # confluent-kafka raises a ValueError with this text.
        raise ValueError("Failed to create consumer: group.id must be set")
    root = values.get("bootstrap.servers")
    remedy = (
        "set it to the root of the topics, e.g. /data/events, s3://bucket/prefix or memory://test"
    )
    if not root:
        raise InvalidConfig(f"bootstrap.servers is missing: {remedy}", key="bootstrap.servers")
    if _BROKER_LIST.fullmatch(str(root)):
        raise InvalidConfig(
            f"bootstrap.servers {root!r} is a list of brokers: {remedy}", key="bootstrap.servers"
        )


def _warn_of_no_effect(kind: str, values: Mapping[str, SettingValue]) -> None:
    """Warn once per process about each setting without effect, unless its value is the default."""
    for name, value in values.items():
        setting = CLIENT_SETTINGS[name]
        if value == setting.default or name in _warned:
            continue
        if setting.effect == "none":
            _LOG.warning("Configuration property %s has no effect in deltaq. %s", name, setting.doc)
        elif setting.clients not in ("both", kind, *_ALSO.get(kind, ())):
            _LOG.warning(
                "Configuration property %s is a %s property and will be ignored by this %s "
                "instance",
                name,
                setting.clients,
                kind,
            )
        else:
            continue
        _warned.add(name)


_ALSO = {"share consumer": ("consumer",)}
"""The clients whose settings another one takes without a warning."""


def _check_share_consumer(given: Mapping[str, object]) -> None:
    """Raise ValueError, as confluent-kafka does, for a setting that a share consumer refuses."""
    if "on_commit" in given:
        raise ValueError(
            "on_commit is not supported on ShareConsumer; use set_acknowledgement_commit_callback"
        )
    for name in _NOT_OF_SHARE_CONSUMERS:
        if name in given:
            raise ValueError(
                f"Failed to create share consumer: `{name}` is not applicable for share consumer; "
                "settings of the group are set by AdminClient.incremental_alter_configs"
            )


def _fit_producer(values: dict[str, Any], given: frozenset[str]) -> None:
    """Reject contradictory settings and derive unset ones, by librdkafka's rules."""
    if values["transactional.id"] is not None:
        if not values["enable.idempotence"] and "enable.idempotence" in given:
            raise InvalidConfig(
                "`transactional.id` requires `enable.idempotence=true`", key="enable.idempotence"
            )
        values["enable.idempotence"] = True
        if "message.timeout.ms" not in given:
            values["message.timeout.ms"] = values["transaction.timeout.ms"]
        elif values["message.timeout.ms"] > values["transaction.timeout.ms"]:
            raise InvalidConfig(
                "`message.timeout.ms` must be set <= `transaction.timeout.ms`",
                key="message.timeout.ms",
            )
    if values["enable.idempotence"]:
        _check_idempotent(values, given)
    elif values["enable.gapless.guarantee"]:
        raise InvalidConfig(
            "`enable.gapless.guarantee` requires `enable.idempotence` to be enabled",
            key="enable.gapless.guarantee",
        )
    timeout_ms = values["message.timeout.ms"]
    if 0 < timeout_ms <= values["linger.ms"]:
        if "linger.ms" in given:
            raise InvalidConfig(
                "`message.timeout.ms` must be greater than `linger.ms`", key="linger.ms"
            )
        values["linger.ms"] = timeout_ms / 2
    if "allow.auto.create.topics" in given and not values["allow.auto.create.topics"]:
        values["auto.create.topics.enable"] = False
    if "sticky.partitioning.linger.ms" not in given:
        values["sticky.partitioning.linger.ms"] = min(900_000, round(2 * values["linger.ms"]))


def _check_idempotent(values: Mapping[str, Any], given: frozenset[str]) -> None:
    when = "when `enable.idempotence` is true"
    in_flight = "max.in.flight.requests.per.connection"
    if values["acks"] != -1:
        raise InvalidConfig(f"`acks` must be set to `all` {when}", key="acks")
    if in_flight in given and values[in_flight] > 5:
        raise InvalidConfig(f"`max.in.flight` must be set <= 5 {when}", key=in_flight)
    if values["retries"] < 1:
        raise InvalidConfig(f"`retries` must be set >= 1 {when}", key="retries")
    if values["queuing.strategy"] != "fifo":
        raise InvalidConfig(
            f"`queuing.strategy` must be set to `fifo` {when}", key="queuing.strategy"
        )


def _fit_consumer(values: dict[str, Any], given: frozenset[str]) -> None:
    """Reject contradictory settings and derive unset ones, by librdkafka's rules and one more
    (heartbeat interval).
    """
    session_ms = values["session.timeout.ms"]
    if values["max.poll.interval.ms"] < session_ms:
        raise InvalidConfig(
            "`max.poll.interval.ms` must be >= `session.timeout.ms`", key="max.poll.interval.ms"
        )
    # librdkafka leaves this check to the broker. Here, such a member would be removed from its
    # group again and again.
    if values["heartbeat.interval.ms"] >= session_ms:
        raise InvalidConfig(
            "`heartbeat.interval.ms` must be < `session.timeout.ms`", key="heartbeat.interval.ms"
        )
    strategy = values["partition.assignment.strategy"]
    if "cooperative-sticky" in strategy and len(strategy) > 1:
        shown = ",".join(str(getattr(assignor, "__name__", assignor)) for assignor in strategy)
        raise InvalidConfig(
            f"All partition.assignment.strategy ({shown}) assignors must have the same protocol "
            "type: use `cooperative-sticky` alone, or leave it out",
            key="partition.assignment.strategy",
        )
    if values["fetch.max.bytes"] < values["message.max.bytes"]:
        if "fetch.max.bytes" in given:
            raise InvalidConfig(
                "`fetch.max.bytes` must be >= `message.max.bytes`", key="fetch.max.bytes"
            )
        values["fetch.max.bytes"] = values["message.max.bytes"]

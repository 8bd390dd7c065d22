"""What every command works with: the root and its clients, the clock, and the output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from deltaq.cli.output import Output, OutputForm
from deltaq.clock import Clock
from deltaq.errors import InvalidConfig

if TYPE_CHECKING:
    from deltaq.admin import AdminClient
    from deltaq.consumer import Consumer
    from deltaq.schema_registry import SchemaRegistryClient
    from deltaq.store import Store
    from deltaq.tools.registry_values import RegistryDecoder, RegistryEncoder
    from deltaq.topic import Topic

ROOT = "bootstrap.servers"


@dataclass
class CliSession:
    """One run of a command. `conf` is the configuration of its clients, and may hold secrets."""

    conf: Mapping[str, str]
    clock: Clock
    out: Output

    @classmethod
    def opened(
        cls,
        *,
        root: str | None,
        output: OutputForm | None,
        command_config: Path | None,
        settings: Sequence[str],
        clock: Clock,
    ) -> CliSession:
        """The session that the shared options ask for. Raises InvalidConfig. Reads nothing but
        `command_config`.
        """
        conf = (
            {} if command_config is None else settings_of_file(command_config, "--command-config")
        )
        conf |= _settings(settings, "--set")
        if root is not None:
            conf[ROOT] = root
        return cls(conf, clock, Output(output))

    def __repr__(self) -> str:
        return f"<CliSession {sorted(self.conf)}>"

    @property
    def root(self) -> str:
        """The root as it was given. Raises InvalidConfig if it was not."""
        root = self.conf.get(ROOT)
        if not root:
            raise InvalidConfig(
                "no root: give --root or set DELTAQ_ROOT to a folder or URL", key=ROOT
            )
        return root

    @cached_property
    def store(self) -> Store:
        """The store of the root. Raises InvalidConfig if there is none."""
        from deltaq.config import AdminConfig, parse_client_config  # noqa: PLC0415 - `deltaq --help` needs no clients
        from deltaq.root import open_root  # noqa: PLC0415 - as above

        conf = {**self.conf, ROOT: self.root}
        return open_root(parse_client_config(AdminConfig, conf), self.clock)

    @cached_property
    def admin(self) -> AdminClient:
        """The admin client of the root. Raises InvalidConfig."""
        from deltaq.admin import AdminClient  # noqa: PLC0415 - `topics list` is quick without it

        return AdminClient(self.conf, store=self.store, clock=self.clock)

    def topic(self, name: str) -> Topic:
        """A handle on a topic. Raises InvalidConfig for a wrong name."""
        from deltaq.topic import Topic  # noqa: PLC0415 - as above

        return Topic(name, store=self.store, clock=self.clock)

    def registry(self) -> SchemaRegistryClient:
        """The client of the root's schema registry."""
        from deltaq.schema_registry import SchemaRegistryClient  # noqa: PLC0415 - as above

        return SchemaRegistryClient({"url": self.store.url}, store=self.store, clock=self.clock)

    def decoder(self) -> RegistryDecoder:
        """What decodes values that have a schema of the root's registry."""
        from deltaq.tools.registry_values import RegistryDecoder  # noqa: PLC0415 - as above

        return RegistryDecoder(self.registry())

    def encoder(self) -> RegistryEncoder:
        """What encodes values with schemas of the root's registry."""
        from deltaq.tools.registry_values import RegistryEncoder  # noqa: PLC0415 - as above

        return RegistryEncoder(self.store, self.clock)

    def consumer(self, group: str, **settings: str) -> Consumer:
        """A consumer that commits only what it is told to."""
        from deltaq.consumer import Consumer  # noqa: PLC0415 - as above

        conf = {"enable.auto.commit": "false", **self.conf, **settings, "group.id": group}
        return Consumer(conf, store=self.store, clock=self.clock)

    def at(self, root: str) -> CliSession:
        """This session on another root, with the same settings."""
        return CliSession({**self.conf, ROOT: root}, self.clock, self.out)


def settings_of_file(path: Path, option: str) -> dict[str, str]:
    """The NAME=VALUE lines of the file that an option names. Raises InvalidConfig, which shows no
    line.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{option} {path}: {error}", key=option) from None
    stripped = (line.strip() for line in lines)
    return _settings(
        [line for line in stripped if line and not line.startswith("#")], f"{option} {path}"
    )


def _settings(pairs: Sequence[str], where: str) -> dict[str, str]:
    """NAME=VALUE pairs as a dict. Raises InvalidConfig, which shows no pair: it may hold a
    secret.
    """
    found = {}
    for number, pair in enumerate(pairs, 1):
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise InvalidConfig(f"{where}: setting {number} is not NAME=VALUE", key=where)
        found[name.strip()] = value.strip()
    return found

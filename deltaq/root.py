"""The root URL of a client's configuration, opened as a store."""

from __future__ import annotations

from deltaq.clock import Clock
from deltaq.config import ClientConfig
from deltaq.errors import InvalidConfig
from deltaq.store import Store, open_store


def open_root(config: ClientConfig, clock: Clock) -> Store:
    """The store that `bootstrap.servers` names. Does no I/O. InvalidConfig for an invalid URL or
    option.
    """
    try:
        return open_store(config.root, config.store_options, clock)
    except ValueError as error:
        # Not chained: the error text holds no secrets, but values in the traceback may.
        raise InvalidConfig(str(error), key="bootstrap.servers") from None

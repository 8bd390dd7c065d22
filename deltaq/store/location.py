"""Parses a root URL and opens the store that it names."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.errors import printable
from deltaq.store.contract import Store
from deltaq.store.keys import PREFIX_LENGTH_MAX, is_key
from deltaq.store.local import LocalStore
from deltaq.store.memory import memory_store

_SCHEMES = ("file", "memory", "s3", "gs", "az")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,19}")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")
# What begins with `host:port` is not accepted as a path: it is a Kafka broker address, and may hold
# a password.
_BROKERS = re.compile(r"[^/\\]+:\s*\d{1,5}([^\w.-].*)?|[^/\\]*[:,;@][^/\\]*", re.DOTALL)
_ENVIRONMENT = ("AWS_", "AZURE_", "GOOGLE_", "MINIO_S3_")

# One object per location, held weakly, so that state shared per store (group commit, probe) can be
# keyed by the object.
_open: WeakValueDictionary[str, Store] = WeakValueDictionary()
_lock = SYSTEM_CLOCK.lock()


@dataclass(frozen=True)
class Location:
    """The location of a store. `name` is an absolute path, a memory store's name or a bucket, and
    never a secret.
    """

    scheme: str
    name: str
    prefix: str = ""


def open_store(
    url: str, options: Mapping[str, object] | None = None, clock: Clock = SYSTEM_CLOCK
) -> Store:
    """The store at `url`: a path with a slash, `file:///path`, `memory://name`,
    `s3://bucket/prefix`, `gs://…` or `az://…`.

    Does no I/O. `options` are the `store.*` keys of a configuration without that prefix, for object
    stores only (`deltaq/store/object_options.py` lists them). Two calls in one process with equal
    URL, options and clock return the same object; a `memory://` store keeps the clock of the first
    call. ValueError with the remedy, without secrets.
    """
    location, options = parse_location(url), dict(options or {})
    if location.scheme in {"file", "memory"} and options:
        names = ", ".join(f"store.{name}" for name in sorted(options))
        raise ValueError(
            f"{names}: a {location.scheme}:// store has no options; remove them, or use s3://, "
            "gs:// or az://"
        )
    if location.scheme == "memory":
        return memory_store(location.name, clock)
    identity = _identity(location, options, clock)
    store = _open.get(identity)
    if store is None:
        made = _make(location, options, clock)
        with _lock:  # two threads that open it at once get the same object
            store = _open.setdefault(identity, made)
    return store


def parse_location(url: str) -> Location:
    """Parse a root URL or path. ValueError if it is invalid or holds credentials, which the text
    does not contain.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme = url.partition(":")[0]
        if scheme in _SCHEMES:
            raise ValueError(
                f"store URL: begins with {scheme}: and has no // after it; write {scheme}://"
            )
        if not url or "\0" in url:
            raise ValueError(
                "store URL: must be a path that is not empty, or a URL such as s3://bucket/prefix"
            )
        if not url.startswith((".", "~")):
            _refuse_server(url)
        return Location("file", os.path.abspath(os.path.expanduser(url)))
    if scheme not in _SCHEMES:
        shown = repr(scheme) if _SCHEME.fullmatch(scheme) else "that is none (not shown)"
        near = difflib.get_close_matches(scheme.lower(), _SCHEMES, n=1)
        hint = (
            f"did you mean {near[0]}://?"
            if near
            else f"known are {', '.join(f'{known}://' for known in _SCHEMES)}"
        )
        raise ValueError(f"store URL with scheme {shown}: not a kind of store; {hint}")
    authority = rest.partition("/")[0]
    if "@" in authority or ":" in authority or "?" in rest or "#" in rest:
        raise ValueError(
            f"store URL ({scheme}://, rest not shown): must not hold credentials, a query or a "
            "fragment; pass credentials as store.* options or in the environment"
        )
    return _parse_file(url) if scheme == "file" else _parse_named(scheme, rest)


def _refuse_server(url: str) -> None:
    """Raise ValueError for what may be a server instead of a path: a misspelt one would become a
    new folder.
    """
    if _BROKERS.fullmatch(url):
        raise ValueError(
            "store URL: looks like the address of a Kafka broker or a list of servers (not shown); "
            "it must be the root of the topics: a path, or a URL such as s3://bucket/prefix. If it "
            "is a folder, write ./ before its name"
        )
    if "/" not in url:
        raise ValueError(
            f"store URL {printable(url)!r}: a name alone may be that of a server; for a folder "
            f"write ./{printable(url)}, else use a URL such as s3://bucket/prefix"
        )


def _parse_file(url: str) -> Location:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc not in {"", "localhost"} or not path.startswith("/") or "\0" in path:
        raise ValueError(
            f"store URL {url!r}: must be file:/// and an absolute path, or just a path"
        )
    return Location("file", os.path.abspath(path))


def _parse_named(scheme: str, rest: str) -> Location:
    name, _, prefix = rest.partition("/")
    prefix = prefix.rstrip("/")
    shown = f"store URL {scheme}://{printable(rest)}"
    if not _NAME.fullmatch(name):
        what = "name" if scheme == "memory" else "bucket"
        raise ValueError(f"{shown}: {name!r} is no {what}; use letters, digits, '.', '_' and '-'")
    if scheme == "memory" and prefix:
        raise ValueError(f"{shown}: a memory store has a name only; use memory://{name}")
    if len(prefix) > PREFIX_LENGTH_MAX:
        raise ValueError(
            f"store URL {scheme}://{name}/...: the prefix has {len(prefix)} characters; use "
            f"{PREFIX_LENGTH_MAX} at most, for object stores allow 1024 bytes for prefix and key"
        )
    if prefix and not is_key(prefix):
        raise ValueError(
            f"{shown}: {prefix!r} is no prefix; use parts of printable ASCII, none empty"
        )
    if scheme == "s3" and name.endswith("--x-s3"):
        raise ValueError(
            f"{shown}: directory buckets do not list in key order; use a general purpose bucket"
        )
    return Location(scheme, name, prefix)


def _identity(location: Location, options: Mapping[str, object], clock: Clock) -> str:
    """The identity of an opened store. It is a hash because options and environment hold
    secrets.
    """
    facts: list[tuple[str, object]] = [
        ("location", location),
        ("clock", id(clock)),
        *sorted(options.items()),
    ]
    if location.scheme != "file":
        facts += sorted(
            (name, value) for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)
        )
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def _make(location: Location, options: Mapping[str, object], clock: Clock) -> Store:
    if location.scheme == "file":
        return LocalStore(location.name, clock)
    # Imported on first use: the object store client is a large binary, which local stores do not
    # need.
    from deltaq.store.objects import open_object_store  # noqa: PLC0415

    return open_object_store(location.scheme, location.name, location.prefix, options, clock)

"""Which keys a store accepts: the same on every store, so that data can move from one to another.

Narrower than any of them: printable ASCII only, because file systems differ in what they do to other letters (they
normalise, fold, or refuse them), and no backslash, which some clients take for a separator.
"""

from __future__ import annotations

import re

from deltaq.store.contract import StoreRefused

__all__ = ["RESERVED_PREFIX", "check_folder", "check_key", "check_prefix", "is_key"]

KEY_LENGTH_MAX = 600
"""Characters. Names of 249 characters make keys of up to 540."""

PREFIX_LENGTH_MAX = 1024 - 1 - KEY_LENGTH_MAX
"""Characters. S3, GCS and Azure allow 1024 bytes for the root's own prefix, a slash and the key."""

PART_LENGTH_MAX = 255
"""Characters between two slashes: the limit of file names on the usual file systems."""

RESERVED_PREFIX = ".~"
"""A name that begins so is an unfinished file of the local store. `~` is in no topic, group or client name."""

_PART = rf"(?!\.\.?(?:/|\Z))(?!\.~)[ -.0-\[\]-~]{{1,{PART_LENGTH_MAX}}}"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")


def is_key(text: str) -> bool:
    """Whether every store accepts `text` as a key."""
    return len(text) <= KEY_LENGTH_MAX and _KEY.fullmatch(text) is not None


def check_key(operation: str, key: str) -> None:
    """StoreRefused, saying why, if `key` is not a key."""
    if not is_key(key):
        raise StoreRefused(operation, key, f"not a key: {_fault(key)}")


def check_prefix(operation: str, prefix: str) -> None:
    """StoreRefused if no key can begin with `prefix`. Empty, `a`, `a/` and `a/b` are prefixes."""
    if prefix and not is_key(prefix.removesuffix("/")):
        raise StoreRefused(operation, prefix, f"not a prefix: {_fault(prefix.removesuffix('/'))}")


def check_folder(operation: str, folder: str) -> None:
    """StoreRefused if `folder` is neither empty (the root) nor a key followed by `/`."""
    check_prefix(operation, folder)
    if folder and not folder.endswith("/"):
        raise StoreRefused(operation, folder, "not a folder: it must end in '/'")


def _fault(text: str) -> str:
    """What is wrong with it, in words."""
    parts = text.split("/")
    if len(text) > KEY_LENGTH_MAX:
        return f"longer than {KEY_LENGTH_MAX} characters"
    if "" in parts:
        return "empty, absolute, or with an empty part"
    if "." in parts or ".." in parts:
        return "'.' and '..' are not allowed"
    if any(part.startswith(RESERVED_PREFIX) for part in parts):
        return f"names beginning with {RESERVED_PREFIX!r} are reserved for unfinished files"
    if any(len(part) > PART_LENGTH_MAX for part in parts):
        return f"a part is longer than {PART_LENGTH_MAX} characters"
    return "only printable ASCII without backslash is allowed"

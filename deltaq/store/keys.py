"""The grammar of keys. It is the same for every store, so that data can be moved between stores.

Keys are printable ASCII, because file systems normalise, case-fold or refuse other characters. A
backslash is not allowed, because some clients treat it as a separator.
"""

from __future__ import annotations

import re

from deltaq.store.contract import StoreRefused

KEY_LENGTH_MAX = 600
"""In characters. Names of 249 characters make keys of up to 592."""

PREFIX_LENGTH_MAX = 1024 - 1 - KEY_LENGTH_MAX
"""In characters. S3, GCS and Azure allow 1024 bytes for the root's prefix, a slash and the key."""

PART_LENGTH_MAX = 255
"""Maximum characters between two slashes: the limit for file names on common file systems."""

RESERVED_PREFIX = ".~"
"""Prefix of the local store's unfinished files. No part of a key that `names` makes begins with
it.
"""

_PART = rf"(?!\.\.?(?:/|\Z))(?!\.~)[ -.0-\[\]-~]{{1,{PART_LENGTH_MAX}}}"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")


def is_key(text: str) -> bool:
    """Whether every store accepts `text` as a key."""
    return len(text) <= KEY_LENGTH_MAX and _KEY.fullmatch(text) is not None


def check_key(operation: str, key: str) -> None:
    """StoreRefused with the reason if `key` is not a valid key."""
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


def check_range(key: str, start: int, length: int) -> None:
    """ValueError for a negative start or length."""
    if start < 0 or length < 0:
        raise ValueError(
            f"get_range of {key!r}: start={start} and length={length} must not be negative"
        )


def _fault(text: str) -> str:
    """The reason why `text` is not a valid key."""
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

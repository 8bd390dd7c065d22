"""Listings of a bucket. The end of each is verified."""

from __future__ import annotations

from collections.abc import Iterator

import obstore

from deltaq.store.contract import ObjectEntry, ObjectMissing, StoreUnavailable
from deltaq.store.keys import is_key
from deltaq.store.object_connection import BucketConnection

LIST_CHUNK = 1000  # entries: one page of S3's listing

_NEVER_WRITTEN = "_deltaq/none"
"""No object has this key. A server that answers a read of it with content is no store."""

# Sorts after every key, since keys are printable ASCII; without its last character it is a key.
_ABOVE_ALL = "~\x7f"


class ObjectListing:
    """Lists the objects of a bucket.

    A page of a proxy could end a listing early: see `_missing`. `known` is a key that the store has
    read or written last; an empty listing is verified by it.
    """

    def __init__(self, connection: BucketConnection) -> None:
        self._connection = connection
        self.known = ""
        # Rather than another server, which may answer every request with its page.
        self._is_store = False

    def entries(self, prefix: str, start_after: str) -> Iterator[ObjectEntry]:
        """See `Store.list`."""
        entries = self._entries(prefix, start_after)
        if self._connection.lists_in_order:
            return entries
        return iter(sorted(entries, key=lambda entry: entry.key))

    def some(self, prefix: str, start_after: str) -> list[ObjectEntry]:
        """See `Store.list_some`."""
        client, after = self._connection.client, start_after if is_key(start_after) else None
        stream = self._connection.attempt(
            "list_some",
            prefix,
            lambda: iter(obstore.list(client, prefix or None, offset=after, chunk_size=LIST_CHUNK)),
        )
        page = self._connection.attempt("list_some", prefix, lambda: next(stream, None))
        return [
            _entry(meta)
            for meta in page or ()
            if meta["path"] > start_after and is_key(meta["path"])
        ]

    def folders(self, prefix: str) -> list[str]:
        """See `Store.list_folders`."""
        folders, last = self._folders(prefix)
        if self._connection.lists_in_order:
            missing = next(
                (meta["path"] for meta in self._missing("list_folders", prefix, last)), None
            )
            if missing is not None:  # written since, or the listing was truncated
                folders, last = self._folders(prefix)
                if missing > last and self._exists(missing):
                    raise StoreUnavailable(
                        "list_folders", prefix, f"the listing lacks {missing!r}, which exists"
                    )
        return folders

    def _entries(self, prefix: str, start_after: str) -> Iterator[ObjectEntry]:
        # The client lists whole folders only, so the rest of the prefix is filtered here. The
        # listing starts after the prefix without its last character, which sorts before every key
        # with the prefix.
        folder = _folder_of(prefix)
        after = max(start_after, prefix[:-1] if prefix != folder else "")
        for meta in self._pages("list", prefix, folder, after if is_key(after) else ""):
            key = meta["path"]
            if self._connection.lists_in_order:
                if key[: len(prefix)] > prefix:
                    return
                if key <= after:
                    continue  # a page may come twice
                after = key
            if key.startswith(prefix) and key > start_after and is_key(key):
                yield _entry(meta)
        if self._connection.lists_in_order:
            yield from (
                _entry(meta)
                for meta in self._missing("list", prefix, after)
                if is_key(meta["path"])
            )

    def _folders(self, prefix: str) -> tuple[list[str], str]:
        """The names, and an upper bound of all keys that the listing covers."""
        client = self._connection.client
        found = self._connection.attempt(
            "list_folders", prefix, lambda: obstore.list_with_delimiter(client, prefix or None)
        )
        folders = sorted(folder.rstrip("/") for folder in found["common_prefixes"])
        ends = [meta["path"] for meta in found["objects"]] + [
            f"{folder}/{_ABOVE_ALL}" for folder in folders
        ]
        return [folder[len(prefix) :] for folder in folders if is_key(folder)], max(
            ends, default=""
        )

    def _pages(
        self, operation: str, prefix: str, folder: str, after: str
    ) -> Iterator[obstore.ObjectMeta]:
        """All objects in `folder` with keys above `after`; `operation` and `prefix` are for error
        texts.
        """
        client = self._connection.client
        stream = self._connection.attempt(
            operation,
            prefix,
            lambda: iter(
                obstore.list(client, folder or None, offset=after or None, chunk_size=LIST_CHUNK)
            ),
        )
        last = ""
        while (
            chunk := self._connection.attempt(operation, prefix, lambda: next(stream, None))
        ) is not None:
            yield from chunk
            if chunk[-1]["path"] == last:
                raise StoreUnavailable(operation, prefix, "the store repeats a page of its listing")
            last = chunk[-1]["path"]

    def _missing(self, operation: str, prefix: str, after: str) -> Iterator[obstore.ObjectMeta]:
        """The objects missing from a listing of `prefix` that ended after `after`: normally none.

        The client takes any XML that is not a listing (a proxy's page, an error with status 200)
        for an empty last page. So the end of a listing is verified: the store must list the next
        object in the root or, if there is none, any object at all. StoreUnavailable if it lists
        none although one is known to exist. While none is known, as in a new process, the server
        must have said once that an object that is never written does not exist.
        """
        # The lowest key that the folder can have, as the start of a listing; it need not exist.
        start = after.rstrip(_ABOVE_ALL[-1])
        shows_something = False
        for meta in self._pages(
            operation, prefix, "", start if is_key(start) else f"{_folder_of(prefix)} "
        ):
            shows_something = True
            if meta["path"][: len(prefix)] > prefix:
                return
            if meta["path"].startswith(prefix) and meta["path"] > after:
                after = meta["path"]
                yield meta
        if shows_something:
            return
        if not (known := self.known):
            self._check_store(operation, prefix)
        else:
            anything = next(self._pages(operation, prefix, "", ""), None)
            if anything is None and self._exists(known):
                raise StoreUnavailable(
                    operation, prefix, f"the listing lacks {known!r}, which exists"
                )

    def _check_store(self, operation: str, prefix: str) -> None:
        """StoreUnavailable if the server has content where none was written. It is asked once."""
        if not self._is_store and self._exists(_NEVER_WRITTEN):
            reason = (
                "the server lists nothing, and has content where none was written: check `endpoint`"
            )
            raise StoreUnavailable(operation, prefix, reason)
        self._is_store = True

    def _exists(self, key: str) -> bool:
        try:
            self._connection.get_range(key, 0, 1)
        except ObjectMissing:
            return False
        return True


def _entry(meta: obstore.ObjectMeta) -> ObjectEntry:
    return ObjectEntry(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))


def _folder_of(prefix: str) -> str:
    """The folder that holds all keys with `prefix`; empty for the root."""
    return prefix[: prefix.rfind("/") + 1]

"""Delta tables that other programs write, as inputs of views. deltalake, which reads them, is known
only here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from deltaq.errors import InvalidConfig, KafkaError, KafkaException, Unavailable, printable

if TYPE_CHECKING:
    import deltalake

Rows: TypeAlias = "tuple[pa.Schema, Iterator[pa.RecordBatch]]"

_EXTRA = "delta"

_SCHEMES = frozenset({"abfs", "abfss", "az", "file", "gs", "s3", "s3a"})

_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})
"""Reader features that do not change what a data file holds."""

_OF_FILES = frozenset({"columnMapping", "deletionVectors"})
"""Reader features that do: only a scan of the whole table heeds them."""

_OF_TOPICS = frozenset({"_offset", "_partition"})

_STORE_OPTIONS = {"max_retries": "4", "retry_timeout": "30s"}

_OF_STORE = re.compile(
    r"Generic (?!LocalFileSystem)\w+ error|error sending request|HTTP error|timed out"
)
_GONE = re.compile("not found|NotFound|No such file")


def checked_address(name: str, address: str) -> str:
    """The address of a table, a folder as an absolute path: the record of a tick keeps it. Raises
    InvalidConfig for one with a password, and for a store that is not known.
    """
    if not address:
        raise InvalidConfig(f"input {name!r} needs the address of a Delta table", key=name)
    if "://" not in address:
        return str(Path(address).absolute())
    parts = urlsplit(address)
    if parts.password is not None or parts.query or parts.fragment:
        reason = f"the address of input {name!r} must not have credentials: readers see it"
        raise InvalidConfig(f"{reason}; the environment names them", key=name)
    if parts.scheme not in _SCHEMES:
        known = ", ".join(f"{scheme}://" for scheme in sorted(_SCHEMES))
        reason = f"input {name!r} is at {parts.scheme}://; Delta tables are in folders, or at"
        raise InvalidConfig(f"{reason} {known}", key=name)
    return address.rstrip("/")


class TableVersionLost(KafkaException):
    """A version of a Delta table is not kept any more. Read a later tick of the group."""

    def __init__(self, reason: str) -> None:
        super().__init__(KafkaError(KafkaError.OFFSET_OUT_OF_RANGE, printable(reason)))


@dataclass(frozen=True, slots=True)
class DeltaVersion:
    """A version of a table, with its columns."""

    table_id: str
    version: int
    columns: pa.Schema
    _source: DeltaSource
    _table: deltalake.DeltaTable = field(repr=False, compare=False)

    def rows(self) -> Rows:
        """All rows. Raises as `DeltaSource.at`."""
        with self._source.errors(self.version):
            found = pa.RecordBatchReader.from_stream(self._table.scan())
        return found.schema, self._read(found)

    def added_since(self, version: int) -> Rows | None:
        """The rows of the files that were added after an earlier version, if nothing else has
        changed since, or that is not known: None.
        """
        if not self._has_plain_files():
            return None
        try:
            before = self._source.at(version)
        except TableVersionLost:
            return None  # the log does not reach so far back any more
        old, now = before._paths(), self._paths()
        is_elsewhere = any("://" in path for path in now)  # such as the files of a shallow clone
        if is_elsewhere or not old <= now or not before._has_plain_files():
            return None
        with self._source.errors(self.version):
            return self._rows_of(now - old)

    @property
    def stored_bytes(self) -> int:
        """The size of its data files."""
        return sum(pa.table(self._table.get_add_actions()).column("size_bytes").to_pylist())

    def _rows_of(self, paths: frozenset[str]) -> Rows | None:
        from pyarrow.dataset import FileSystemDataset  # noqa: PLC0415 - takes as long as deltalake

        whole = self._table.to_pyarrow_dataset()
        files = [found for found in whole.get_fragments() if found.path in paths]
        if {found.path for found in files} != paths:
            return None  # rather than lose rows, if the log and a dataset name a file differently
        some = FileSystemDataset(files, whole.schema, whole.format, whole.filesystem)
        return some.schema, self._read(some.to_batches())

    def _read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self._source.errors(self.version):
            yield from batches

    def _paths(self) -> frozenset[str]:
        """The files, as a dataset names them: the log has their names in the form of a URL."""
        paths = pa.table(self._table.get_add_actions()).column("path").to_pylist()
        return frozenset(map(unquote, paths))

    def _has_plain_files(self) -> bool:
        """Whether a data file holds its rows as they are."""
        features = self._table.protocol().reader_features or ()
        mode = self._table.metadata().configuration.get("delta.columnMapping.mode", "none")
        return mode == "none" and _OF_FILES.isdisjoint(features)


@dataclass(frozen=True, slots=True)
class DeltaSource:
    """The Delta table of an input, by its address. The environment has the credentials of a store,
    as for other readers of Delta tables: `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL` and so on.
    """

    name: str
    address: str

    def newest(self) -> DeltaVersion:
        """The newest version. Raises InvalidConfig if there is no table, or it has what views do
        not read; Unavailable.
        """
        return self._opened(None)

    def at(self, version: int) -> DeltaVersion:
        """A version. Raises as `newest`, and TableVersionLost."""
        return self._opened(version)

    def _opened(self, version: int | None) -> DeltaVersion:
        with self.errors(version, opening=True):
            from deltalake import DeltaTable  # noqa: PLC0415 - an extra

            table = DeltaTable(self.address, version=version, storage_options=self._options())
            columns = pa.schema(table.schema().to_arrow())
            self._check(table.protocol().reader_features or (), columns)
            return DeltaVersion(str(table.metadata().id), table.version(), columns, self, table)

    def _options(self) -> dict[str, str] | None:
        return dict(_STORE_OPTIONS) if "://" in self.address else None

    def _check(self, features: Iterable[str], columns: pa.Schema) -> None:
        unknown = sorted({*features} - _FEATURES - _OF_FILES)
        if unknown:
            raise self._refused(f"has the feature {unknown[0]!r}, which views do not read")
        if own := sorted(_OF_TOPICS & {*columns.names}):
            raise self._refused(f"has the column {own[0]!r}: read a topic by its name")

    def _refused(self, what: str) -> InvalidConfig:
        reason = f"input {self.name!r}: the Delta table at {self.address} {what}"
        return InvalidConfig(printable(reason), key=self.name)

    def lost(self, version: int) -> TableVersionLost:
        """The error for a version that cannot be read any more."""
        return TableVersionLost(
            f"input {self.name!r}: version {version} of the Delta table at {self.address} is not "
            "kept any more, as VACUUM or log clean-up has removed it: read a later tick; "
            "delta.deletedFileRetentionDuration and delta.logRetentionDuration of the table keep "
            "versions longer"
        )

    @contextmanager
    def errors(self, version: int | None, *, opening: bool = False) -> Iterator[None]:
        """What deltalake raises within it becomes an error of deltaq. `version` is what is read,
        or is `opening`; None for the newest one.
        """
        try:
            from deltalake import DeltaTable  # noqa: PLC0415 - an extra
            from deltalake.exceptions import (  # noqa: PLC0415 - an extra
                DeltaError,
                TableNotFoundError,
            )
        except ModuleNotFoundError:
            reason = f"Delta tables as inputs need the extra [{_EXTRA}]"
            text = f"{reason}: pip install 'deltaq[{_EXTRA}]'"
            raise InvalidConfig(text, key=self.name) from None
        try:
            yield
        except TableNotFoundError:
            if version is not None and DeltaTable.is_deltatable(self.address, self._options()):
                raise self.lost(version) from None
            raise self._refused("does not exist") from None
        except (DeltaError, pa.ArrowException, OSError) as error:
            text = " ".join(str(error).split())
            if _OF_STORE.search(text) and not _GONE.search(text):
                raise Unavailable(printable(f"input {self.name!r}: {text:.500}")) from None
            # No entry of the log and no checkpoint leads to the version, or its files are gone.
            is_gone = _GONE.search(text) or (opening and isinstance(error, DeltaError))
            if version is not None and is_gone:
                raise self.lost(version) from None
            raise self._refused(f"cannot be read: {text:.500}") from None

"""The addresses of data files for Spark, which reads them through Hadoop's file systems, and those
of checkpoints, which it writes through them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import unquote

from deltaq.errors import Incompatible, InvalidConfig

_GLOB = re.compile(r"([\\*?\[\]{}])")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ADDRESS = re.compile(r"(?:([^/:]+):)?(?://)?(.*)", re.DOTALL)

_CONNECTORS: Mapping[str, str] = {
    "s3a": (
        "hadoop-aws of the Hadoop version of the session, with its AWS SDK, and set "
        "spark.hadoop.fs.s3a.endpoint, spark.hadoop.fs.s3a.access.key and "
        "spark.hadoop.fs.s3a.secret.key unless the machine has a role"
    ),
    "gs": "Google's gcs-connector",
    "abfss": "hadoop-azure of the Hadoop version of the session",
}

_MISSING = (
    "No FileSystem for scheme",
    "S3AFileSystem",
    "SecureAzureBlobFileSystem",
    "GoogleHadoopFileSystem",
)


def hadoop_root(url: str, options: Mapping[str, str]) -> str:
    """The root URL of a store as an address of Hadoop. `options` are the `store.*` options without
    that prefix.

    Raises InvalidConfig for an Azure store whose account is not given.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "file":
        return f"file://{unquote(rest)}"  # Hadoop takes text for a path, not for an encoded URL
    if scheme == "s3":
        return f"s3a://{rest}"
    if scheme == "az":
        account = options.get("account_name") or os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
        if not account:
            raise InvalidConfig(
                "Spark's address of an Azure container contains the account: set the option "
                "store.account_name",
                key="store.account_name",
            )
        container, _, prefix = rest.partition("/")
        return f"abfss://{container}@{account}.dfs.core.windows.net" + (
            f"/{prefix}" if prefix else ""
        )
    return url


def store_address(address: str) -> tuple[str, dict[str, str]]:
    """The URL of the store at an address of Hadoop, and the `store.*` options, without that prefix,
    that the address contains. The inverse of `hadoop_root`.

    Raises InvalidConfig for a file system that no store reads.
    """
    found = _ADDRESS.fullmatch(address)
    scheme, rest = found.groups() if found else (None, address)
    if scheme is None or scheme == "file":
        return rest if rest.startswith("/") else f"./{rest}", {}
    if scheme in {"s3", "s3a", "gs"}:
        return f"{scheme.removesuffix('a')}://{rest}", {}
    if scheme in {"abfs", "abfss"}:
        authority, slash, prefix = rest.partition("/")
        container, _, host = authority.partition("@")
        return f"az://{container}{slash}{prefix}", {"account_name": host.partition(".")[0]}
    raise InvalidConfig(
        f"deltaq cannot read a checkpoint at {scheme!a}: use a folder that the driver has mounted, "
        "or s3a://, gs:// or abfss://",
        key="checkpointLocation",
    )


def file_path(root: str, key: str) -> str:
    """The path of a data file, with the characters escaped that Spark takes for a pattern.

    Raises Incompatible for a name that Spark hides, or shows differently from the log.
    """
    name = key.rpartition("/")[2]
    if not _NAME.fullmatch(name):
        raise Incompatible(
            f'Spark\'s Parquet reader cannot be given the file {key!r}: read with format("deltaq")'
        )
    return _GLOB.sub(r"\\\1", f"{root}/{key}")


def lacks_file_system(root: str, error: BaseException) -> InvalidConfig | None:
    """The error for a session that cannot read the scheme of `root`; None if `error` says something
    else.
    """
    scheme = root.partition("://")[0]
    if scheme not in _CONNECTORS or not any(text in str(error) for text in _MISSING):
        return None
    return InvalidConfig(
        f"this Spark session cannot read {scheme}:// itself: add {_CONNECTORS[scheme]}; or read"
        ' with format("deltaq"), which needs no jar',
        key="path",
    )

"""The token of a commit, by which its outcome is found out later."""

from __future__ import annotations

import re
import zlib

_TOKEN = re.compile(r"([0-9]{1,18}):([!-9;-~]{1,200}):([0-9a-f]{8})")


def commit_token(folder: str, version: int, txn_id: str) -> str:
    """The token of a commit to the log of the table in `folder`.

    It contains a checksum of the folder, so that a token presented to another log is refused.
    """
    return f"{version}:{txn_id}:{zlib.crc32(folder.encode()):08x}"


def parse_commit_token(folder: str, token: str) -> tuple[int, str]:
    """Version and txnId of a token of this log. ValueError for any other text, TypeError if not a
    str.
    """
    if not isinstance(token, str):
        raise TypeError(f"token must be str, not {type(token).__name__}")
    parts = _TOKEN.fullmatch(token)
    if parts is None:
        raise ValueError(f"{token!r:.100} is not the token of an OutcomeUnknown error")
    version, txn_id = int(parts[1]), parts[2]
    if commit_token(folder, version, txn_id) != token:
        raise ValueError(
            f"{token!r:.100} is the token of another topic's or group's commit than {folder!r}'s"
        )
    return version, txn_id

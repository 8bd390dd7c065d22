"""Converts errors of the object store client to store errors without secrets.

The client's texts quote the request and the whole answer, which may hold signatures or access keys.
So the reason is built from harmless parts: status, error code, message. Known secrets are masked in
these parts too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

from deltaq.errors import printable
from deltaq.store.contract import (
    CreateUnsupported,
    ObjectExists,
    ObjectMissing,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)

CLIENT_ERRORS = (BaseError, OSError, ValueError, RuntimeError)
"""All exceptions of obstore for a failed operation. Some are not of its base class
(FileNotFoundError, ValueError).
"""

MASK = "***"

_WRITES = {"create", "put", "delete"}
_TRANSIENT_STATUS = {408, 409, 412, 425, 429}  # of the 4xx
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_NO_KEY = "<Code>NoSuchKey</Code>"

_STATUS = re.compile(r"status code: (\d{3} ?[A-Za-z -]*)")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,80})</Code>")
_MESSAGE = re.compile(r"<Message>([^<]{1,200})|\"message\": ?\"([^\"]{1,200})")
_RETRIES = re.compile(r"after (\d+) retries")
_SYSTEM_MESSAGE = re.compile(r'(?:message|error): "([^"]{1,100})"')
_TLS_FAULT = re.compile(r"\b((?:InvalidCertificate|InvalidMessage)\(\s*\w+)")
_SENSITIVE = re.compile(
    r"(?i)\b(X-Amz-[\w-]+|X-Goog-[\w-]+|sig|signature|token|AWSAccessKeyId|GoogleAccessId)=[^&\s\"'<>]+"
)
_USER_INFO = re.compile(r"://[^/@\s\"']+@")

# Without permission to list, S3 answers 403 instead of 404 for a missing object.
_CHECK_CREDENTIALS = (
    "check the credentials, and that they permit reading, writing, deleting and listing"
)
_HINTS = (
    (
        r"NoSuchBucket|ContainerNotFound|bucket does not exist",
        "create the bucket first; `deltaq setup` does so on S3 and MinIO",
    ),
    (r"RequestTimeTooSkewed", "set the clock of this machine right (NTP keeps it so)"),
    (r"\b40[13]\b|ExpiredToken|InvalidAccessKeyId", _CHECK_CREDENTIALS),
    (r"incorrectly configured region", "check `region`"),
    (
        r"InvalidCertificate",
        "check `root_certificate`, which names the authority of the server's certificate",
    ),
    (r"InvalidMessage", "the server does not answer in TLS; check `endpoint`"),
    (r"Too many open files", "raise `ulimit -n`"),
    (
        r"(?i)connection refused|dns error|name or service not known|failed to lookup",
        "check `endpoint`",
    ),
)


def outcome(
    operation: str, key: str, error: BaseException, store: str, secrets: Iterable[str] = ()
) -> StoreError:
    """The store error for an error of the client. `store` names the store in the text. Not chained
    to `error`.
    """
    if (
        isinstance(error, FileNotFoundError)
        and operation.startswith("get")
        and _NO_KEY in str(error)
    ):
        # At once: a reader polls by such answers.
        return ObjectMissing(operation, key, "404 Not Found: NoSuchKey")
    # Masked before parts are cut out: a truncated secret would not be recognised.
    text, _, details = scrub(str(error), secrets).partition("Debug source:")
    status = _status(text)
    reason = _reason(text, details)
    code = _found(_CODE, text)
    no_bucket = code in _NO_BUCKET or "bucket does not exist" in text
    if operation == "create" and isinstance(error, AlreadyExistsError | PreconditionError):
        return ObjectExists(operation, key, reason)
    if isinstance(error, FileNotFoundError) and operation.startswith("get") and not no_bucket:
        return ObjectMissing(operation, key, reason)
    if operation == "create" and (status in {405, 501} or code == "NotImplemented"):
        return CreateUnsupported(
            operation, key, f"{store} does not support create-if-absent: {reason}"
        )
    if operation in _WRITES and int(_found(_RETRIES, text) or 0) > 0:
        # An earlier attempt without an answer may have succeeded, whatever the answer to the last
        # one is.
        return StoreUnavailable(operation, key, reason)
    refused = (
        no_bucket
        or isinstance(error, PermissionDeniedError | UnauthenticatedError | FileNotFoundError)
        or (400 <= status < 500 and status not in _TRANSIENT_STATUS and code != "RequestTimeout")
        or status == 501
        or "incorrectly configured region" in text
    )
    return (StoreRefused if refused else StoreUnavailable)(operation, key, reason)


def is_past_the_end(error: BaseException) -> bool:
    """Whether the store refused a range because the object ends before it."""
    return _status(str(error)) == 416


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """The text with signatures, tokens, user information and the given secrets masked."""
    for secret in sorted(secrets, key=len, reverse=True):  # one may be part of another
        text = text.replace(secret, MASK)
    return _USER_INFO.sub(f"://{MASK}@", _SENSITIVE.sub(rf"\1={MASK}", text))


def _status(text: str) -> int:
    """HTTP status of the answer; 0 if there was none."""
    return int(_found(_STATUS, text)[:3] or 0)


def _reason(text: str, details: str) -> str:
    if status := _found(_STATUS, text).strip():
        parts = [status, _found(_CODE, text), _found(_MESSAGE, text)]
    else:
        # No answer: the end of the client's text ("HTTP error: error sending request"), and the
        # cause in its details.
        cause = _found(_SYSTEM_MESSAGE, details) or re.sub(
            r"\(\s*", ": ", _found(_TLS_FAULT, details)
        )
        parts = [text.strip().rpartition(" - ")[2].partition("\n")[0][:200], cause]
    reason = printable(": ".join(part for part in parts if part))
    hint = next((hint for pattern, hint in _HINTS if re.search(pattern, reason)), "")
    return f"{reason}; {hint}" if hint else reason


def _found(pattern: re.Pattern[str], text: str) -> str:
    """The first group that matched; empty if none did."""
    match = pattern.search(text)
    return next(filter(None, match.groups()), "") if match else ""

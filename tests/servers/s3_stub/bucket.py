"""Buckets in memory, behind the part of S3's protocol that deltaq's client uses; correct and
without faults.

PUT (on condition too), GET (whole, or a range), HEAD and DELETE of objects, version 2 of the
listing, uploads in parts; PUT and HEAD of buckets, and their lifecycle rules as they were sent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from urllib.parse import parse_qsl, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from deltaq.clock import SYSTEM_CLOCK, Clock

__all__ = ["Answer", "Buckets", "Request", "error_answer"]

_CONDITIONS = {"if-match", "if-modified-since", "if-unmodified-since"}
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True)
class Request:
    """A parsed request. The names of `headers` are in lower case; `key` is empty for requests to
    the bucket itself.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    bucket: str
    key: str
    query: Mapping[str, str]

    @staticmethod
    def of(method: str, target: str, headers: Mapping[str, str], body: bytes) -> Request:
        """`target` is the first line's: path and query, still quoted."""
        path, _, query = target.partition("?")
        bucket, _, key = unquote(path).lstrip("/").partition("/")
        lowered = {name.lower(): value for name, value in headers.items()}
        return Request(
            method,
            target,
            lowered,
            body,
            bucket,
            key,
            dict(parse_qsl(query, keep_blank_values=True)),
        )

    @property
    def operation(self) -> str:
        """The operation of `deltaq.store.Store` that it serves, or `head`, `multipart` or
        `other`.
        """
        if self.query.keys() & {"uploads", "uploadId"}:
            return "multipart"
        if not self.key:
            listing = "list_folders" if "delimiter" in self.query else "list"
            return listing if self.method == "GET" else "other"
        if self.method == "PUT":
            return "create" if "if-none-match" in self.headers else "put"
        if self.method == "GET":
            return "get_range" if "range" in self.headers else "get"
        return {"HEAD": "head", "DELETE": "delete"}.get(self.method, "other")

    @property
    def subject(self) -> str:
        """The key; for a listing, its prefix."""
        return self.key or self.query.get("prefix", "")

    @property
    def access_key(self) -> str:
        """The access key id that signed it; empty if it is not signed."""
        found = re.search(r"Credential=([^/,\s]+)/", self.headers.get("authorization", ""))
        return found[1] if found else ""


@dataclass
class Answer:
    """An answer, before a fault changes it."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def error_answer(status: int, code: str, message: str = "") -> Answer:
    """S3's XML for an error."""
    body = (
        f"<Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error>"
        if code
        else ""
    )
    return Answer(status, body.encode(), {"Content-Type": "application/xml"})


@dataclass(frozen=True)
class _Object:
    data: bytes
    modified_ms: int
    number: int  # in the order of all writes, for a fault that leaves the newest out

    @property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.data).hexdigest()[:32]}"'


class Buckets:
    """All buckets of a stub. Thread-safe: each request is atomic."""

    def __init__(self, page_keys: int = 1000, clock: Clock = SYSTEM_CLOCK) -> None:
        self._lock = clock.lock()
        self._clock = clock
        self._page_keys = page_keys
        self._buckets: dict[str, dict[str, _Object]] = {}
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._lifecycles: dict[str, bytes] = {}
        self._writes = 0

    def make(self, bucket: str) -> None:
        """Create an empty `bucket` unless it exists."""
        with self._lock:
            self._buckets.setdefault(bucket, {})

    def objects(self, bucket: str, prefix: str) -> dict[str, bytes]:
        """Key and content of all objects below `prefix`, in key order."""
        with self._lock:
            found = self._buckets.get(bucket, {})
            return {key: found[key].data for key in sorted(found) if key.startswith(prefix)}

    def change(self, bucket: str, key: str, data: bytes | None) -> None:
        """Put an object, or with None remove it, bypassing all rules."""
        with self._lock:
            if data is None:
                self._buckets[bucket].pop(key, None)
            else:
                self._store(bucket, key, data)

    def has(self, request: Request) -> bool:
        """Whether the object of the request exists."""
        with self._lock:
            return request.key in self._buckets.get(request.bucket, {})

    def handle(
        self, request: Request, *, conditional: bool = True, without_newest: int = 0
    ) -> Answer:
        """Carry out a request. Unless `conditional`, writes ignore conditions. `without_newest` is
        the number of newest objects that a listing leaves out.
        """
        with self._lock:
            return self._handle(request, conditional, without_newest)

    def _handle(self, request: Request, conditional: bool, without_newest: int) -> Answer:
        is_lifecycle = not request.key and "lifecycle" in request.query
        if not request.key and request.method == "PUT" and not is_lifecycle:
            self._buckets.setdefault(request.bucket, {})
            return Answer()
        objects = self._buckets.get(request.bucket)
        if objects is not None and not request.key and request.method == "HEAD":
            return Answer()
        if objects is not None and is_lifecycle:
            return self._lifecycle(request)
        refusal = _refusal(request, objects)
        if objects is None or refusal is not None:
            return refusal or Answer(404)
        if request.operation in {"list", "list_folders"}:
            return self._list(objects, request, without_newest)
        if request.operation == "multipart":
            return self._multipart(request)
        return self._object(objects, request, conditional)

    def _lifecycle(self, request: Request) -> Answer:
        if request.method == "PUT":
            self._lifecycles[request.bucket] = request.body
            return Answer()
        rules = self._lifecycles.get(request.bucket)
        if rules is None:
            return error_answer(404, "NoSuchLifecycleConfiguration", "There are no rules")
        return Answer(200, rules, {"Content-Type": "application/xml"})

    def _object(self, objects: dict[str, _Object], request: Request, conditional: bool) -> Answer:
        operation = request.operation
        if operation in {"put", "create"}:
            if operation == "create" and conditional and request.key in objects:
                return error_answer(
                    412, "PreconditionFailed", "At least one of the pre-conditions did not hold"
                )
            return Answer(
                headers={"ETag": self._store(request.bucket, request.key, request.body).etag}
            )
        if operation == "delete":
            objects.pop(request.key, None)
            return Answer(204)
        return _read(objects.get(request.key), request.headers.get("range", ""))

    def _store(self, bucket: str, key: str, data: bytes) -> _Object:
        self._writes += 1
        stored = self._buckets[bucket][key] = _Object(data, self._clock.time_ms(), self._writes)
        return stored

    def _list(
        self, objects: Mapping[str, _Object], request: Request, without_newest: int
    ) -> Answer:
        newest = sorted(objects, key=lambda key: objects[key].number, reverse=True)[:without_newest]
        query = request.query
        after = query.get("continuation-token", query.get("start-after", ""))
        limit = min(int(query.get("max-keys", self._page_keys)), self._page_keys)
        shown: list[str] = []
        last = ""
        cut = False
        for entry, is_folder in _entries(sorted(objects.keys() - set(newest)), query):
            # The keys of a folder on an earlier page were reported with that folder.
            if entry <= after or (is_folder and after.startswith(entry)):
                continue
            if len(shown) == limit:
                cut = True
                break
            last = entry
            if is_folder:
                shown.append(f"<CommonPrefixes><Prefix>{escape(entry)}</Prefix></CommonPrefixes>")
            else:
                shown.append(_contents(entry, objects[entry]))
        more = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>" if cut else ""
        prefix = escape(query.get("prefix", ""))
        head = f"<Name>{escape(request.bucket)}</Name><Prefix>{prefix}</Prefix>"
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            "<ListBucketResult"
            f' xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{head}<KeyCount>{len(shown)}</KeyCount>'
            f"<IsTruncated>{str(cut).lower()}</IsTruncated>{''.join(shown)}{more}</ListBucketResult>"
        )
        return Answer(200, body.encode(), {"Content-Type": "application/xml"})

    def _multipart(self, request: Request) -> Answer:
        if request.method == "POST" and "uploads" in request.query:
            upload = self._clock.unique_id()
            self._uploads[upload] = {}
            return Answer(
                body=f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>"
                .encode()
            )  # fmt: skip
        upload = request.query["uploadId"]
        parts = self._uploads.get(upload)
        if parts is None:
            return error_answer(404, "NoSuchUpload", "There is no such upload")
        if request.method == "PUT":
            parts[int(request.query["partNumber"])] = request.body
            return Answer(headers={"ETag": f'"{hashlib.sha256(request.body).hexdigest()[:32]}"'})
        del self._uploads[upload]
        if request.method == "DELETE":
            return Answer(204)
        named = [
            int(node.text or 0)
            for node in ElementTree.fromstring(request.body).iter()
            if _is_part_number(node)
        ]
        if named != sorted(parts):
            return error_answer(400, "InvalidPart", "The parts are not those that were uploaded")
        stored = self._store(
            request.bucket, request.key, b"".join(parts[number] for number in named)
        )
        etag = f"<ETag>{escape(stored.etag)}</ETag>"
        body = f"<CompleteMultipartUploadResult>{etag}</CompleteMultipartUploadResult>"
        return Answer(body=body.encode())


def _refusal(request: Request, objects: object) -> Answer | None:
    """The refusal of a request to a bucket with these objects; None if it can be carried out."""
    if objects is None:
        return error_answer(404, "NoSuchBucket", "The specified bucket does not exist")
    digest = request.headers.get("x-amz-content-sha256", "")
    if re.fullmatch("[0-9a-f]{64}", digest) and digest != hashlib.sha256(request.body).hexdigest():
        return error_answer(400, "XAmzContentSHA256Mismatch", "The body is not what was signed")
    if _CONDITIONS & request.headers.keys() or request.headers.get("if-none-match", "*") != "*":
        return error_answer(
            501, "NotImplemented", "This stub knows one condition, If-None-Match: *"
        )
    if request.operation == "other":
        return error_answer(
            501, "NotImplemented", f"This stub does not know {request.method} of that"
        )
    return None


def _is_part_number(node: ElementTree.Element) -> bool:
    return node.tag.rpartition("}")[2] == "PartNumber"


def _entries(keys: list[str], query: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """Keys and, with a delimiter, folders below the prefix, in order, each once."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    folder = ""
    for key in keys:
        if not key.startswith(prefix) or (folder and key.startswith(folder)):
            continue
        end = key.find(delimiter, len(prefix)) if delimiter else -1
        if end < 0:
            yield key, False
        else:
            folder = key[: end + len(delimiter)]
            yield folder, True


def _contents(key: str, found: _Object) -> str:
    modified = datetime.fromtimestamp(found.modified_ms / 1000, UTC).isoformat(
        timespec="milliseconds"
    )
    return (
        f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
        f"<ETag>{escape(found.etag)}</ETag><Size>{len(found.data)}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def _read(found: _Object | None, wanted: str) -> Answer:
    if found is None:
        return error_answer(404, "NoSuchKey", "The specified key does not exist")
    size = len(found.data)
    headers = {
        "ETag": found.etag,
        "Last-Modified": formatdate(found.modified_ms / 1000, usegmt=True),
    }
    match = _RANGE.fullmatch(wanted)
    if match is None:
        return Answer(200, found.data, headers)
    first, last = match.groups()
    start = int(first) if first else max(0, size - int(last))
    end = min(int(last) + 1, size) if first and last else size
    if start >= size:
        return error_answer(416, "InvalidRange", "The requested range is not satisfiable")
    return Answer(
        206, found.data[start:end], headers | {"Content-Range": f"bytes {start}-{end - 1}/{size}"}
    )

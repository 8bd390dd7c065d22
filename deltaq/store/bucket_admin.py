"""Administration of a bucket on an S3 server, through MinIO's SDK. No other module uses `minio`.

Objects are read and written through obstore (`deltaq/store/objects.py`), which lacks these
operations.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import ssl
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import urllib3
from minio import Minio, MinioAdmin
from minio.credentials.providers import (
    ChainedProvider,
    EnvAWSProvider,
    IamAwsProvider,
    Provider,
    StaticProvider,
)
from minio.error import (
    InvalidResponseError,
    MinioAdminException,
    MinioException,
    S3Error,
    ServerError,
)

from deltaq.errors import InvalidConfig, Unavailable
from deltaq.store.bucket_policies import Document
from deltaq.store.object_errors import scrub
from deltaq.store.object_options import ObjectSettings

TIMEOUT_S = 30.0
ROLE_TIMEOUT_S = 2.0
RETRIES = 3

_T = TypeVar("_T")

_FAILURES = (MinioException, MinioAdminException, urllib3.exceptions.HTTPError, OSError, ValueError)

# Options by which clients obtain credentials from other sources. The SDK reads these only from the
# environment.
_BORROWED = (
    "role_arn",
    "role_session_name",
    "metadata_endpoint",
    "container_credentials_relative_uri",
    "container_credentials_full_uri",
    "container_authorization_token_file",
)
_PERMISSION = "; use credentials of an administrator, whose policy permits it"
_NO_CREDENTIALS = (
    "there are no credentials; set store.access_key_id and store.secret_access_key, or "
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
)
_SIZE_DEFAULT = "x-amz-transition-default-minimum-object-size"


class BucketAdmin:
    """A bucket and its server, accessed with the settings of clients. InvalidConfig for settings
    without support.

    Every method raises Unavailable with the name of the step; it is not retriable if the server
    refused the step.
    """

    def __init__(self, url: str, bucket: str, settings: ObjectSettings) -> None:
        self._url = url
        self._bucket = bucket
        self._secrets = settings.secrets
        config = settings.config
        self.region = str(
            config.get("region") or _first("AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1"
        )
        endpoint = urlsplit(str(config.get("aws_endpoint_url_s3", _address_of_aws(self.region))))
        if endpoint.path.strip("/"):
            raise InvalidConfig(
                "store.endpoint: setup needs an address without a path", key="store.endpoint"
            )
        self.is_aws = str(endpoint.hostname).endswith((".amazonaws.com", ".amazonaws.com.cn"))
        virtual = bool(config.get("virtual_hosted_style_request"))
        # In virtual-hosted style, the endpoint of clients is the bucket's own host.
        host = endpoint.netloc.removeprefix(f"{bucket}.") if virtual else endpoint.netloc
        connect: dict[str, Any] = {
            "credentials": _credentials(config),
            "region": self.region,
            "secure": endpoint.scheme == "https",
            "http_client": _http(settings.client),
        }
        try:
            self._client = Minio(host, **connect)
            self._admin = MinioAdmin(endpoint=host, **connect)
        except ValueError as error:
            raise InvalidConfig(
                f"{url}: {scrub(str(error), self._secrets)}", key="store.endpoint"
            ) from None
        if virtual:
            self._client.enable_virtual_style_endpoint()  # type: ignore[no-untyped-call]

    def make_bucket(self) -> bool:
        """Create the bucket unless it exists; returns whether it was created."""
        if self._ask(
            "check whether the bucket exists", lambda: self._client.bucket_exists(self._bucket)
        ):
            return False
        return self._ask("create the bucket", self._make_bucket)

    def _make_bucket(self) -> bool:
        try:
            self._client.make_bucket(self._bucket)
        except S3Error as error:
            if error.code != "BucketAlreadyOwnedByYou":  # a concurrent setup created it
                raise
            return False
        return True

    def lifecycle(self) -> tuple[bytes | None, dict[str, str]]:
        """The bucket's lifecycle configuration as XML (None if it has none), and the headers to
        send back with it.
        """
        return self._ask("read the bucket's lifecycle rules", self._lifecycle)

    def _lifecycle(self) -> tuple[bytes | None, dict[str, str]]:
        try:
            # The SDK's own method returns a model that lacks some elements of the rules.
            answer = self._client._execute("GET", self._bucket, query_params={"lifecycle": ""})
        except S3Error as error:
            if error.code != "NoSuchLifecycleConfiguration":
                raise
            return None, {}
        size = answer.headers.get(_SIZE_DEFAULT)
        return answer.data, {_SIZE_DEFAULT: size} if size else {}

    def set_lifecycle(self, configuration: bytes, headers: Mapping[str, str]) -> None:
        """Replace the bucket's lifecycle configuration."""
        digest = base64.b64encode(
            hashlib.md5(configuration, usedforsecurity=False).digest()
        ).decode()
        sent: dict[str, Any] = {"Content-MD5": digest, **headers}
        put = partial(self._client._execute, "PUT", self._bucket, query_params={"lifecycle": ""})
        self._ask(
            "add a lifecycle rule to the bucket", lambda: put(body=configuration, headers=sent)
        )

    def policies(self) -> dict[str, Document] | None:
        """All named policies of a MinIO server; None for any other server, whose policies cannot be
        accessed.
        """
        return None if self.is_aws else self._ask("list the server's policies", self._policies)

    def _policies(self) -> dict[str, Document] | None:
        try:
            found = json.loads(self._admin.policy_list())
        except MinioAdminException as error:
            if _admin_answer(error):
                raise
            return None  # another kind of server
        except ValueError:
            return None
        return {name: dict(document) for name, document in found.items()}

    def set_policy(self, name: str, document: Document) -> None:
        """Install a named policy on MinIO, or replace it."""
        self._ask(
            f"install the policy {name}", lambda: self._admin.policy_add(name, policy=document)
        )

    def _ask(self, step: str, request: Callable[[], _T]) -> _T:
        try:
            return request()
        except _FAILURES as error:
            reason, refused = _reason(error)
        # Raised outside the handler, so that it is not chained to the SDK's exception, which holds
        # the whole answer.
        raise Unavailable(
            f"{self._url}: could not {step}: {scrub(reason, self._secrets)}. "
            "What was made before this step stays; setup can be repeated",
            retriable=not refused,
        )


def _reason(error: Exception) -> tuple[str, bool]:
    """(reason with remedy, whether the server refused) of an error of the SDK. Without keys and
    request ids.
    """
    if isinstance(error, S3Error):
        status = error.response.status
        return (
            f"{error.code}: {error.message}" + (_PERMISSION if status in {401, 403} else ""),
            status < 500,
        )
    if isinstance(error, MinioAdminException):
        answer = _admin_answer(error)
        refused = str(answer.get("Code")) in {
            "AccessDenied",
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
        }
        return (
            f"{answer.get('Code')}: {answer.get('Message')}" + (_PERMISSION if refused else ""),
            True,
        )
    if isinstance(error, InvalidResponseError | ServerError):
        return "the answer is none of S3; check store.endpoint", False
    if isinstance(error, ValueError):
        return str(error), True  # a bucket name that S3 does not allow
    return f"no answer ({type(error).__name__}); check store.endpoint", False


def _admin_answer(error: MinioAdminException) -> dict[str, Any]:
    """The answer of MinIO's admin API; empty if the answer is from something else."""
    try:
        answer = json.loads(str(error).partition("Body: ")[2])
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) and "Code" in answer else {}


def _address_of_aws(region: str) -> str:
    if region.startswith("cn-"):
        return f"https://s3.{region}.amazonaws.com.cn"
    return "https://s3.amazonaws.com"


def _credentials(config: Mapping[str, object]) -> Provider:
    if "access_key_id" in config:
        token = str(config["session_token"]) if "session_token" in config else None
        return StaticProvider(str(config["access_key_id"]), str(config["secret_access_key"]), token)
    if found := next((name for name in _BORROWED if name in config), None):
        raise InvalidConfig(
            f"store.{found}: setup takes its credentials from store.access_key_id or from the "
            "environment; set the variables of AWS instead",
            key=f"store.{found}",
        )
    # Outside of AWS, the address of the metadata service does not answer, so the timeout is short.
    impatient = urllib3.PoolManager(
        timeout=ROLE_TIMEOUT_S, retries=urllib3.Retry(total=1, backoff_factor=0.2)
    )
    provider = ChainedProvider([EnvAWSProvider(), IamAwsProvider(http_client=impatient)])
    try:
        provider.retrieve()  # the provider caches them
    except (urllib3.exceptions.HTTPError, OSError, ValueError, KeyError):
        raise InvalidConfig(_NO_CREDENTIALS, key="store.access_key_id") from None
    return provider


def _http(client: Mapping[str, object]) -> urllib3.PoolManager:
    """Connections with the limits, certificates and proxy of the clients' settings."""
    context = ssl.create_default_context()
    if "root_certificate" in client:
        try:
            context.load_verify_locations(cadata=str(client["root_certificate"]))
        except ssl.SSLError:
            raise InvalidConfig(
                "store.root_certificate: not valid PEM", key="store.root_certificate"
            ) from None
    if client.get("allow_invalid_certificates"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connect_s, read_s = _seconds(client.get("connect_timeout")), _seconds(client.get("timeout"))
    pool: dict[str, Any] = {
        "timeout": urllib3.Timeout(connect=connect_s, read=read_s),
        "retries": urllib3.Retry(
            total=RETRIES, backoff_factor=0.2, status_forcelist=[500, 502, 503, 504]
        ),
        "ssl_context": context,
    }
    proxy = client.get("proxy_url")
    return (
        urllib3.PoolManager(**pool) if proxy is None else urllib3.ProxyManager(str(proxy), **pool)
    )


def _seconds(limit: object) -> float:
    return limit.total_seconds() if isinstance(limit, timedelta) else TIMEOUT_S


def _first(*names: str) -> str | None:
    return next((os.environ[name] for name in names if os.environ.get(name)), None)

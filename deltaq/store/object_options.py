"""Builds the arguments of the object store client from `store.*` options and the environment. Pure
functions.

An explicit option takes precedence over the environment. The client itself reads all other settings
from `AWS_*`, `GOOGLE_*` and `AZURE_*` variables. Without keys it requests a role from the machine's
metadata service.
"""

from __future__ import annotations

import difflib
import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal
from urllib.parse import SplitResult, urlsplit

Part = Literal["config", "client", "retry"]
Kind = Literal["text", "flag", "count", "ms"]

RETRIES = 4
RETRY_TIMEOUT_MS = 30_000
RETRY_BACKOFF_MS = (50, 2_000)  # first, longest
_INT32 = 2**31 - 1  # the client has errors of its own for numbers that do not fit
SECRET_LENGTH_MIN = 4  # masking shorter ones would make texts unreadable and protect nothing


@dataclass(frozen=True)
class Option:
    """One `store.*` option: its type, and the argument of the client that it sets."""

    part: Part
    target: str
    kind: Kind = "text"
    secret: bool = False


def _config(*names: str, kind: Kind = "text", secret: bool = False) -> dict[str, Option]:
    return {name: Option("config", name, kind, secret) for name in names}


_ANY = {
    "allow_http": Option("client", "allow_http", "flag"),
    "allow_invalid_certificates": Option("client", "allow_invalid_certificates", "flag"),
    "root_certificate": Option("client", "root_certificate"),  # PEM
    "proxy_url": Option("client", "proxy_url", secret=True),
    "proxy_excludes": Option("client", "proxy_excludes"),
    "user_agent": Option("client", "user_agent"),
    # One request, from connecting to the last byte.
    "timeout_ms": Option("client", "timeout", "ms"),
    "connect_timeout_ms": Option("client", "connect_timeout", "ms"),
    "read_timeout_ms": Option("client", "read_timeout", "ms"),
    "pool_idle_timeout_ms": Option("client", "pool_idle_timeout", "ms"),
    "pool_max_idle_per_host": Option("client", "pool_max_idle_per_host", "count"),
    # Of anything but a create, which is never repeated.
    "retries": Option("retry", "max_retries", "count"),
    "retry_timeout_ms": Option("retry", "retry_timeout", "ms"),
}

OPTIONS: Mapping[str, Mapping[str, Option]] = {
    "s3": {
        **_ANY,
        "endpoint": Option("config", "aws_endpoint_url_s3"),
        **_config("access_key_id", "secret_access_key", "session_token", secret=True),
        **_config(
            "region",
            "checksum_algorithm",
            "server_side_encryption",
            "sse_kms_key_id",
            "request_payer",
        ),
        **_config("role_arn", "role_session_name", "metadata_endpoint"),
        **_config("container_credentials_relative_uri", "container_credentials_full_uri"),
        **_config("container_authorization_token_file"),
        **_config("sse_customer_key_base64", secret=True),
        **_config(
            "skip_signature",
            "unsigned_payload",
            "imdsv1_fallback",
            "sse_bucket_key_enabled",
            kind="flag",
        ),
        "virtual_hosted_style": Option("config", "virtual_hosted_style_request", "flag"),
    },
    "gs": {
        **_ANY,
        "endpoint": Option("config", "base_url"),
        **_config("service_account", "application_credentials"),
        **_config("service_account_key", "bearer_token", secret=True),
        **_config("skip_signature", kind="flag"),
    },
    "az": {
        **_ANY,
        **_config(
            "endpoint",
            "account_name",
            "client_id",
            "tenant_id",
            "authority_host",
            "federated_token_file",
        ),
        **_config("msi_endpoint", "object_id", "msi_resource_id", "credential_type"),
        **_config(
            "account_key", "client_secret", "sas_key", "token", "encryption_key", secret=True
        ),
        **_config("use_emulator", "use_azure_cli", "skip_signature", kind="flag"),
    },
}
"""Scheme -> allowed options."""

_ENDPOINT_VARIABLES = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_PROVIDERS = {"s3": "S3", "gs": "Google Cloud Storage", "az": "Azure Blob Storage"}

# Azure's client prefers some kinds of credentials to others, whatever their source. An explicit one
# must win.
_AZURE_CREDENTIAL_TYPES = {
    "token": "bearer_token",
    "account_key": "access_key",
    "client_secret": "client_secret",
    "federated_token_file": "workload_identity",
    "sas_key": "sas_token",
    "use_azure_cli": "azure_cli",
}


@dataclass(frozen=True)
class ObjectSettings:
    """Arguments of the client. Only `provider` may be shown."""

    provider: str
    config: dict[str, object] = field(repr=False)
    client: dict[str, object] = field(repr=False)
    retry: dict[str, object] = field(repr=False)
    secrets: frozenset[str] = field(repr=False)
    # The environment has a session token that does not belong to these keys.
    ignores_session_token: bool = False


def object_settings(
    scheme: str, options: Mapping[str, object], environ: Mapping[str, str]
) -> ObjectSettings:
    """The client's arguments. ValueError, with the option and the remedy, for options that are not
    valid.
    """
    values = {name: _parse(scheme, name, value) for name, value in options.items()}
    if scheme == "s3":
        values = {**_s3_keys(values, environ), **values}
    if scheme == "az":
        values = {**_azure_credential_type(values), **values}
    endpoint = _endpoint(scheme, values, environ)
    first, longest = (timedelta(milliseconds=ms) for ms in RETRY_BACKOFF_MS)
    retry: dict[str, object] = {
        "max_retries": RETRIES,
        "retry_timeout": timedelta(milliseconds=RETRY_TIMEOUT_MS),
        "backoff": {"init_backoff": first, "max_backoff": longest, "base": 2},
    }
    parts: dict[Part, dict[str, object]] = {"config": {}, "client": {}, "retry": retry}
    for name, value in values.items():
        option = OPTIONS[scheme][name]
        # The client takes numbers as strings, except in its retry settings.
        parts[option.part][option.target] = (
            str(value) if option.kind == "count" and option.part == "client" else value
        )
    if endpoint is not None:
        parts["config"][OPTIONS[scheme]["endpoint"].target] = endpoint.geturl()
        parts["client"]["allow_http"] = endpoint.scheme == "http"
    if values.get("use_emulator"):
        parts["client"]["allow_http"] = True
    if scheme == "s3":
        # Overrides the environment. `create` depends on `conditional_put`, and many servers lack
        # bulk deletes.
        parts["config"] |= {"conditional_put": "etag", "disable_bulk_delete": True}
    where = f" at {endpoint.scheme}://{endpoint.netloc}" if endpoint is not None else ""
    has_foreign_token = _first(environ, ("AWS_SESSION_TOKEN", "AWS_TOKEN")) is not None
    return ObjectSettings(
        provider=_PROVIDERS[scheme] + where,
        **parts,
        secrets=_secrets(scheme, values, environ),
        ignores_session_token=has_foreign_token
        and "access_key_id" in values
        and "session_token" not in values,
    )


def _parse(scheme: str, name: str, value: object) -> object:
    option = OPTIONS[scheme].get(name)
    if option is None:
        near = difflib.get_close_matches(name, OPTIONS[scheme], n=1)
        hint = (
            f"did you mean store.{near[0]}?"
            if near
            else f"known are: {', '.join(sorted(OPTIONS[scheme]))}"
        )
        raise ValueError(f"store.{name}: no such option of {scheme}:// stores; {hint}")
    shown = "(not shown)" if option.secret else repr(value)
    if option.kind == "flag":
        flags = {"true": True, "false": False}
        if str(value).lower() not in flags:
            raise ValueError(f"store.{name}={shown}: must be true or false")
        return flags[str(value).lower()]
    if option.kind in {"count", "ms"}:
        least = 1 if option.kind == "ms" else 0
        is_number = not isinstance(value, bool) and str(value).isdecimal()
        if not is_number or not least <= int(str(value)) <= _INT32:
            unit = "milliseconds" if option.kind == "ms" else "times"
            raise ValueError(
                f"store.{name}={shown}: must be a whole number of {unit}, {least} or more, and at "
                f"most {_INT32}"
            )
        return timedelta(milliseconds=int(str(value))) if option.kind == "ms" else int(str(value))
    if not isinstance(value, str) or not value:
        raise ValueError(f"store.{name}={shown}: must be a non-empty string")
    return value


def _s3_keys(values: Mapping[str, object], environ: Mapping[str, str]) -> dict[str, object]:
    """The pair of keys from MinIO's own variables, if neither options nor AWS variables set one."""
    given = {"access_key_id", "secret_access_key"} & values.keys()
    if len(given) == 1 or (not given and "session_token" in values):
        raise ValueError(
            "store.access_key_id and store.secret_access_key belong together: set both, or neither"
        )
    pair = (
        _first(environ, ["MINIO_S3_ACCESS_KEY"]),
        _first(environ, ["MINIO_S3_SECRET_ACCESS_KEY"]),
    )
    if given or None in pair or _first(environ, ["AWS_ACCESS_KEY_ID"]) is not None:
        return {}
    return {"access_key_id": pair[0], "secret_access_key": pair[1]}


def _azure_credential_type(values: Mapping[str, object]) -> dict[str, object]:
    given = [name for name in _AZURE_CREDENTIAL_TYPES if values.get(name)]
    if len(given) > 1 and "credential_type" not in values:
        names = " and ".join(f"store.{name}" for name in given)
        raise ValueError(
            f"{names}: several credentials; set one of them, or store.credential_type to choose"
        )
    return {"credential_type": _AZURE_CREDENTIAL_TYPES[given[0]]} if len(given) == 1 else {}


def _endpoint(
    scheme: str, values: Mapping[str, object], environ: Mapping[str, str]
) -> SplitResult | None:
    """The validated endpoint from an option or a variable; None for the provider's default."""
    if "endpoint" in values:
        source, text = "store.endpoint", str(values["endpoint"])
    else:
        source = next((name for name in _ENDPOINT_VARIABLES[scheme] if environ.get(name)), "")
        text = environ.get(source, "")
    if not source:
        return None
    # The text is never shown: it may contain a password.
    if any(mark in text for mark in "@?#"):
        raise ValueError(
            f"{source}: must not hold credentials, a query or a fragment; use the options for "
            "credentials"
        )
    try:
        endpoint = urlsplit(text)
        host, _ = endpoint.hostname, endpoint.port
    except ValueError:
        endpoint, host = urlsplit(""), None
    if endpoint.scheme not in {"http", "https"} or not host:
        raise ValueError(
            f"{source}: must be an address such as https://storage.example.com or "
            "http://localhost:9000"
        )
    allowed = values.get(
        "allow_http", str(environ.get("AWS_ALLOW_HTTP", "")).lower() in {"true", "1"}
    )
    if endpoint.scheme == "http" and not (allowed or _is_loopback(host)):
        raise ValueError(
            f"{source}=http://{host}: data would travel unencrypted; use https, or set "
            "store.allow_http=true"
        )
    return endpoint


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _secrets(
    scheme: str, values: Mapping[str, object], environ: Mapping[str, str]
) -> frozenset[str]:
    """All values to mask: secret options, and values of variables that look like credentials."""
    explicit = {str(value) for name, value in values.items() if OPTIONS[scheme][name].secret}
    ambient = {value for name, value in environ.items() if _is_credential(name)}
    return frozenset(secret for secret in explicit | ambient if len(secret) >= SECRET_LENGTH_MIN)


def _is_credential(variable: str) -> bool:
    return (
        variable.startswith(("AWS_", "AZURE_", "GOOGLE_", "MINIO_"))
        and any(word in variable for word in ("KEY", "SECRET", "TOKEN", "SAS", "PASSWORD"))
        and not variable.endswith(("_FILE", "_PATH", "_URI", "_URL"))
    )


def _first(environ: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)

"""Every setting, in one object, read from the environment, and the logs that they configure.

Each setting has a heading in docs/reference/settings.md.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from cortex_plane.kernel.addresses import Allowed, url_fault
from cortex_plane.kernel.errors import SetupError
from cortex_plane.kernel.text import redact


def _addresses(text: str) -> str:
    """Refuse words that are no addresses: the server would take them for names of sockets, and trust nobody."""
    for address in text.split(",") if text != "*" else ():
        ip_network(address.strip())
    return text


def _smtp_url(url: str) -> str:
    from cortex_plane.channels.mail_servers import SmtpServer

    SmtpServer.parse(url)
    return url


def _mail_from(sender: str) -> str:
    from cortex_plane.channels.mail_servers import read_sender

    read_sender(sender)
    return sender


def _public_url(url: str) -> str:
    """Links begin with it, and links in mails are plain ASCII."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii():
        raise ValueError("must be an address such as https://cortex.example.com")
    if parts.query or parts.fragment or parts.username is not None:
        raise ValueError("must be an address without a user, a query or a fragment")
    return url.rstrip("/")


def _roots_url(url: str) -> str:
    if (fault := url_fault(url)) is not None:
        raise ValueError(fault)
    return url


def _listed(text: str) -> str:
    Allowed.parse(text)
    return text


OFF = "off"
"""The value of CORTEX_ROOTS_FILE that writes no file."""


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid")

    database_url: str | None = None
    database_admin_url: str | None = None
    home: Path = Path(".cortex")
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8420
    grpc: Literal["auto", "on", "off"] = "auto"
    grpc_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    grpc_tls_cert: Path | None = None
    grpc_tls_key: Path | None = None
    grpc_client_ca: Path | None = None
    trusted_proxies: Annotated[str, AfterValidator(_addresses)] = ""
    requests_per_second: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] = 100.0
    webhook_allow: Annotated[str, AfterValidator(_listed)] = ""
    requests_in_flight: Annotated[int, Field(ge=4, le=100_000)] = 256
    org_requests_in_flight: Annotated[int, Field(ge=1, le=100_000)] | None = None
    org_streams: Annotated[int, Field(ge=1, le=100_000)] = 1000
    heavy_reads: Annotated[int, Field(ge=1, le=100)] = 4
    pool_size: Annotated[int, Field(ge=2, le=500)] = 20
    org_connections: Annotated[int, Field(ge=2, le=500)] | None = None
    prepared_statements: bool = True
    postgres_binaries: Path | None = None
    master_key: str | None = None
    roots_file: str | None = None
    roots_url: Annotated[str, AfterValidator(_roots_url)] | None = None
    public_url: Annotated[str, AfterValidator(_public_url)] | None = None
    smtp_url: Annotated[str, AfterValidator(_smtp_url)] | None = None
    mail_from: Annotated[str, AfterValidator(_mail_from)] | None = None
    listen_url: str | None = None
    notifications: bool = True
    concurrency: Annotated[int, Field(ge=1, le=1000)] = 16
    processes: Annotated[int, Field(ge=0, le=256)] = 0
    reserved_slots: Annotated[int, Field(ge=0, le=999)] | None = None
    org_slots: Annotated[int, Field(ge=1, le=1000)] | None = None
    org_jobs: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    poll_seconds: Annotated[float, Field(ge=0.01, le=60)] = 1.0
    adoption_seconds: Annotated[float, Field(ge=0.5, le=3600)] = 10.0
    defer_seconds: Annotated[float, Field(ge=0, le=0.1)] = 0.005
    dispatch_seconds: Annotated[float, Field(ge=0.1, le=60)] = 2.0
    grace_seconds: Annotated[float, Field(ge=0, le=3600)] = 65.0
    poison_deaths: Annotated[int, Field(ge=1, le=100)] = 3
    inline_result_bytes: Annotated[int, Field(ge=1024, le=64 * 1024)] = 16 * 1024
    max_result_bytes: Annotated[int, Field(ge=1024, le=256 * 1024 * 1024)] = 8 * 1024 * 1024
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "text"] = "json"

    def configure_logs(self) -> None:
        configure_logs(self.log_level, as_json=self.log_format == "json")


def variable(setting: str) -> str:
    """The environment variable of a setting. Other programs know the database's, so they have no prefix."""
    return setting.upper() if setting.startswith("database_") else f"CORTEX_{setting.upper()}"


def load(environment: Mapping[str, str] = os.environ) -> Settings:
    """From the environment; names in any case, and an empty variable counts as not set."""
    variables = {name.upper(): text for name, text in environment.items()}
    values = {name: variables.get(variable(name)) for name in Settings.model_fields}
    try:
        return Settings.model_validate({name: text for name, text in values.items() if text})
    except ValidationError as error:
        first = error.errors()[0]
        raise SetupError(
            f"The setting {variable(str(first['loc'][0]))} is not valid: {first['msg']}.",
            code="invalid_setting",
            hint="Correct the environment variable; docs/reference/settings.md describes it.",
        ) from None


def configure_logs(level: str, *, as_json: bool) -> None:
    """One JSON object per line on stderr, or plain text for a terminal: through structlog, the server's own log lines too."""
    import structlog

    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        lambda _, __, event: redact(dict(event)),
    ]
    renderer: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers[:] = []
        logging.getLogger(name).propagate = name != "uvicorn.access"

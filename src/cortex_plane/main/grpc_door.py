"""The gRPC door of an API process: whether there is one, on which port, and what it shares with HTTP."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from cortex_plane.db.database import Database
from cortex_plane.http.app import Api
from cortex_plane.kernel.addresses import literal
from cortex_plane.kernel.errors import MissingExtra, SetupError, extra
from cortex_plane.main.settings import Settings, variable
from cortex_plane.main.sockets import bind

if TYPE_CHECKING:
    import grpc
    from cortex_plane.grpc.calls import DoorState
    from cortex_plane.grpc.server import GrpcServer

log = structlog.get_logger()

LAST_PORT = 65535


def why_closed(settings: Settings) -> str | None:
    """Why there is no door; None where there is one. Raises where there must be one and cannot be."""
    if settings.grpc == "off":
        return "CORTEX_GRPC is off"
    try:
        with extra("grpc"):
            importlib.import_module("cortex_plane.grpc.server")
    except MissingExtra as error:
        if settings.grpc == "on":
            raise
        return error.message
    if settings.grpc == "auto" and settings.grpc_tls_cert is None and not _is_loopback(settings.host):
        return "others can reach CORTEX_HOST, and there is no TLS: set CORTEX_GRPC_TLS_CERT, or CORTEX_GRPC=on behind a proxy"
    return None


def _is_loopback(host: str) -> bool:
    address = literal(host)
    return host == "localhost" if address is None else address.is_loopback


def server_credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """What TLS needs, from the files of the settings; None without TLS."""
    import grpc

    certificate, key, authority = settings.grpc_tls_cert, settings.grpc_tls_key, settings.grpc_client_ca
    if (certificate is None) != (key is None):
        raise SetupError(
            "A certificate needs its key, and a key its certificate.",
            code="invalid_setting",
            hint="Set both CORTEX_GRPC_TLS_CERT and CORTEX_GRPC_TLS_KEY, or neither.",
        )
    if certificate is None or key is None:
        if authority is not None:
            raise SetupError(
                "Without TLS no client can show a certificate.",
                code="invalid_setting",
                hint="Set CORTEX_GRPC_TLS_CERT and CORTEX_GRPC_TLS_KEY besides CORTEX_GRPC_CLIENT_CA.",
            )
        return None
    pair = _read(key, "grpc_tls_key"), _read(certificate, "grpc_tls_cert")
    clients = _read(authority, "grpc_client_ca") if authority is not None else None
    return grpc.ssl_server_credentials([pair], clients, require_client_auth=clients is not None)


def _read(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SetupError(
            f"Cannot read {path}: {error.strerror}.", code="unreadable_file", hint=f"Correct {variable(setting)}."
        ) from None


@contextlib.asynccontextmanager
async def grpc_door(
    settings: Settings, app: Api, db: Database, *, shared: bool = False, or_any_port: bool = False
) -> AsyncIterator[GrpcServer | None]:
    """Serves until the end of the block, or until `GrpcServer.begin_stop`. ``shared``: see `GrpcServer.start`. ``or_any_port``: on a free
    one where the port is taken that no setting names."""
    if (reason := why_closed(settings)) is not None:
        log.info("no gRPC", reason=reason)
        yield None
        return
    from cortex_plane.grpc.server import GrpcServer

    server = GrpcServer(_state(app, db))
    await _start(server, settings, shared=shared, or_any_port=or_any_port)
    log.info("serving gRPC", address=server.address, tls=settings.grpc_tls_cert is not None)
    try:
        yield server
    finally:
        await server.stop()


def _state(app: Api, db: Database) -> DoorState:
    from cortex_plane.grpc.calls import DoorState
    from cortex_plane.tenancy.verbs.frame import StreamReads

    state, reads = app.state, StreamReads(app.state.in_flight)

    def count_call(method: str, status: str, seconds: float) -> None:
        state.metrics.calls.add(1, {"method": method, "status": status})
        state.metrics.call_seconds.record(seconds, {"method": method})

    def count_rejected_key(reason: str) -> None:
        state.metrics.rejected_keys.add(1, {"reason": reason})

    return DoorState(
        db, state.feed, state.rates, state.in_flight, state.streams, state.callers, reads, count_call,
        count_rejected_key,
    )  # fmt: skip


def port_of(settings: Settings) -> int:
    """The setting's, else the one after HTTP's. 0 is a free one, as it is for HTTP."""
    if settings.grpc_port is not None:
        return settings.grpc_port
    return settings.port + 1 if 0 < settings.port < LAST_PORT else 0


def free_port(settings: Settings) -> int:
    """The same, where nobody listens yet; 0 where there is no door."""
    if why_closed(settings) is not None:
        return 0
    try:
        with bind(settings.host, port_of(settings)) as listener:
            listener.listen()
            return int(listener.getsockname()[1])
    except OSError as error:
        raise cannot_listen(settings) from error


async def _start(server: GrpcServer, settings: Settings, *, shared: bool, or_any_port: bool) -> None:
    credentials, port = server_credentials(settings), port_of(settings)
    try:
        try:
            await server.start(settings.host, port, credentials, shared=shared)
        except RuntimeError:
            if settings.grpc_port is not None or not or_any_port:
                raise
            await server.start(settings.host, 0, credentials)
    except RuntimeError as error:
        raise cannot_listen(settings) from error


def cannot_listen(settings: Settings) -> SetupError:
    return SetupError(
        f"Cannot serve gRPC on {settings.host}:{port_of(settings)}.",
        code="cannot_listen",
        hint="Set CORTEX_GRPC_PORT to a free port (0 chooses one), or CORTEX_GRPC=off. With TLS, check that the certificate fits its key.",
    )

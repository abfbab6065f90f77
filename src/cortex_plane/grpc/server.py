"""The gRPC server of a process: its port, its transport security, and its life from an open port to a clean end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import SERVICE_NAME as HEALTH
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

import grpc
from cortex_plane.grpc.approvals import ApprovalDoor
from cortex_plane.grpc.calls import CallFrame, DoorState
from cortex_plane.grpc.governance import GovernanceDoor
from cortex_plane.grpc.lifecycle import LifecycleDoor
from cortex_plane.grpc.upsquad.governance.v1 import approval_pb2, approval_pb2_grpc, governance_pb2, governance_pb2_grpc
from cortex_plane.grpc.upsquad.runtime.v1 import lifecycle_pb2, lifecycle_pb2_grpc
from cortex_plane.kernel.fields import MAX_BODY_BYTES
from grpc import aio

log = structlog.get_logger()

SERVICES = tuple(
    service.full_name
    for file in (lifecycle_pb2, approval_pb2, governance_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
)
MAX_MESSAGE_BYTES = MAX_BODY_BYTES + 64 * 1024
"""Arguments of the size that HTTP takes, and the fields around them."""
MAX_CALLS = 4000
"""Of a process, streams included. A caller who is not known yet counts too."""
PING_SECONDS = 60
"""So often an idle connection is asked whether its client is there."""

GRACE_SECONDS = 5.0
"""What calls under way get to finish, as requests of HTTP do."""
IDLE_SECONDS = 300
"""So long a connection may be open without a call."""


class GrpcServer:
    def __init__(self, door: DoorState) -> None:
        options: Mapping[str, Any] = {
            "grpc.max_receive_message_length": MAX_MESSAGE_BYTES,
            "grpc.max_send_message_length": -1,
            "grpc.keepalive_time_ms": PING_SECONDS * 1000,
            "grpc.max_connection_idle_ms": IDLE_SECONDS * 1000,
            "grpc.http2.min_recv_ping_interval_without_data_ms": 10_000,
            "grpc.max_metadata_size": 16 * 1024,
        }
        self._options = dict(options)
        self._frame = CallFrame(door)
        self._server: aio.Server | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._health = health.HealthServicer()
        self.address = ""

    async def start(
        self, host: str, port: int, credentials: grpc.ServerCredentials | None = None, *, shared: bool = False
    ) -> None:
        """``credentials``: with TLS. ``shared``: with the other processes of one `cortex api`. Port 0 is a free one. Raises
        ``RuntimeError`` where the port is not to be had, or the certificate does not fit its key."""
        options = [*(self._options | {"grpc.so_reuseport": int(shared)}).items()]
        server = aio.server(interceptors=[self._frame], options=options, maximum_concurrent_rpcs=MAX_CALLS)
        lifecycle_pb2_grpc.add_LifecycleServiceServicer_to_server(LifecycleDoor(), server)
        approval_pb2_grpc.add_ApprovalServiceServicer_to_server(ApprovalDoor(), server)
        governance_pb2_grpc.add_GovernanceServiceServicer_to_server(GovernanceDoor(), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((*SERVICES, HEALTH, reflection.SERVICE_NAME), server)
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        bound = server.add_secure_port(place, credentials) if credentials else server.add_insecure_port(place)
        await server.start()
        self._server = server
        self.address = f"[{host}]:{bound}" if ":" in host else f"{host}:{bound}"
        for name in ("", *SERVICES):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def begin_stop(self) -> None:
        """No new calls; those under way get a moment to finish. The feed ends the streams. Safe to call more than once."""
        if self._stopping is None and self._server is not None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(self._server))

    async def stop(self) -> None:
        self.begin_stop()
        if self._stopping is not None:
            await self._stopping

    async def _stop(self, server: aio.Server) -> None:
        await self._health.enter_graceful_shutdown()
        self._frame.close()
        await server.stop(GRACE_SECONDS)

"""A plane whose gRPC door is open on a port of its own, and clients of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.rpc import error_details_pb2, status_pb2

import grpc
from cortex_plane.db.database import Database
from cortex_plane.grpc.upsquad.governance.v1.approval_pb2_grpc import ApprovalServiceStub
from cortex_plane.grpc.upsquad.governance.v1.governance_pb2_grpc import GovernanceServiceStub
from cortex_plane.grpc.upsquad.runtime.v1.lifecycle_pb2_grpc import LifecycleServiceStub
from cortex_plane.http.app import Api
from cortex_plane.http.metrics import Metrics
from cortex_plane.main.api_process import create_app
from cortex_plane.main.grpc_door import grpc_door
from cortex_plane.main.settings import Settings
from cortex_plane.sessions.verbs.events import EventFeed
from cortex_plane.tenancy.verbs.frame import RequestRates
from grpc import aio
from tests.fixtures.people import Person


@dataclass(frozen=True)
class Door:
    address: str
    app: Api

    @asynccontextmanager
    async def channel(self, credentials: grpc.ChannelCredentials | None = None) -> AsyncIterator[aio.Channel]:
        channel = (
            aio.insecure_channel(self.address) if credentials is None else aio.secure_channel(self.address, credentials)
        )
        async with channel:
            yield channel


@asynccontextmanager
async def open_door(
    db: Database, rates: RequestRates | None = None, metrics: Metrics | None = None, **settings: Any
) -> AsyncIterator[Door]:
    figures, feed = metrics or Metrics(), EventFeed(db, poll_seconds=0.05)
    app = create_app(db, figures, feed, rates=rates)
    try:
        async with grpc_door(Settings(port=0, grpc="on", **settings), app, db) as server:
            assert server is not None
            try:
                yield Door(server.address, app)
            finally:
                feed.close()
    finally:
        if metrics is None:
            figures.close()


@dataclass
class Client:
    """One person's or program's client: their key goes with every call."""

    channel: aio.Channel
    person: Person
    metadata: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lifecycle = LifecycleServiceStub(self.channel)
        self.approvals = ApprovalServiceStub(self.channel)
        self.governance = GovernanceServiceStub(self.channel)

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.person.secret}"), *self.metadata.items())

    async def call(self, method: Any, request: Any, **more: Any) -> Any:
        return await method(request, metadata=self.key, **{"timeout": 20, **more})


@dataclass(frozen=True)
class Refused:
    code: str
    reason: str
    message: str
    fields: list[str]
    retry_seconds: float | None
    hint: str


async def refused(call: Any) -> Refused:
    """How a call fails: its status, and the details that every client library reads."""
    try:
        await call
    except aio.AioRpcError as error:
        return refusal(error)
    raise AssertionError("it was answered")


def refusal(error: aio.AioRpcError) -> Refused:
    trailing = dict(error.trailing_metadata() or ())
    content = trailing.get("grpc-status-details-bin", b"")
    assert isinstance(content, bytes)
    status = status_pb2.Status.FromString(content)
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    seconds = None
    for detail in status.details:
        detail.Unpack(info)
        detail.Unpack(bad)
        if detail.Unpack(retry):
            seconds = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    fields = [violation.field for violation in bad.field_violations]
    return Refused(
        error.code().name, info.reason, error.details() or "", fields, seconds, info.metadata.get("hint", "")
    )


def as_dict(message: Any) -> dict[str, Any]:
    fields: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return fields

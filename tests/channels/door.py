"""The address to which a vendor posts, for tests of one channel alone: what it verifies is kept, once for each event."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cortex_plane.approvals.model.approvals import ApprovalKind, ApprovalStatus
from cortex_plane.kernel.errors import InvalidInput, Unauthenticated
from cortex_plane.notify.model.channels import (
    Button,
    ButtonAction,
    ConnectionRevoked,
    DecidedCall,
    DeliveryReport,
    InboundEvent,
    InboundItem,
    InboundRequest,
)
from cortex_plane.notify.model.notifications import Card, ChatReply, Occasion, Outgoing, Target
from cortex_plane.notify.verbs.channel_port import InteractiveChannel
from cortex_plane.policies.model.policies import Template
from tests.emulators.vendor_server import served_on_loopback
from tests.fixtures.people import World

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
NOTIFICATION = UUID("0190a1b2-0000-7000-8000-000000000001")
URL = "https://plane.example/approvals/7"


@dataclass
class Door:
    channel: InteractiveChannel
    target: Target
    items: dict[str, InboundItem] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: Request) -> Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = await request.body()
        inbound = InboundRequest(
            method=request.method,
            query=dict(request.query_params),
            headers=headers,
            body=body,
            received_at=datetime.now(UTC),
        )
        try:
            received = self.channel.receive(self.target, inbound)
        except (Unauthenticated, InvalidInput) as error:
            self.refusals.append(error.code)
            return Response(error.message, 401 if isinstance(error, Unauthenticated) else 400)
        for item in received.items:
            self.items.setdefault(item.event_id, item)
        reply = received.reply
        return Response(reply.body, reply.status, media_type=reply.content_type)

    def events(self) -> list[InboundEvent | DecidedCall | DeliveryReport | ConnectionRevoked]:
        """What has come in so far, in order."""
        read = (self.channel.read(item.payload) for item in self.items.values())
        return [event for event in read if event is not None]


@asynccontextmanager
async def open_door(channel: InteractiveChannel, target: Target) -> AsyncIterator[Door]:
    door = Door(channel, target)
    async with served_on_loopback(
        Starlette(routes=[Route("/inbound", door.handle, methods=["GET", "POST"])])
    ) as origin:
        door.url = f"{origin}/inbound"
        yield door


def target(address: str, config: dict[str, str], secrets: dict[str, str]) -> Target:
    return Target(
        connection_id=UUID(int=3), connection="chat", config=config, secrets=secrets, address=address, member="Ada"
    )


def card(*actions: ButtonAction, **change: Any) -> Card:
    made = Card(
        approval_id=UUID(int=7), kind=ApprovalKind.CALL, status=ApprovalStatus.PENDING, version=1, input_hash="a" * 64,
        occasion=Occasion.REQUESTED, org="Acme", agent="shipper", tool="refund_order", target="order 7", risk="high",
        template=Template.DEV_REVIEW, action="Refund order 7", details=None, arguments='{\n  "amount": 700\n}', truncated=False,
        original_arguments=None, invocations=1, agent_says="The customer waits.", asked_for="Refund it", question=None,
        rule="refunds@1", if_nobody="If nobody decides by then, it is denied.", policy_version="1", required_clearance=0,
        deciders=("Ada",), votes=(), votes_needed=1, delegations=(), escalation_level=0, requested_at=NOW,
        deadline=NOW + timedelta(hours=2), resolved_at=None, resolved_by=None, resolution_reason=None, url=URL,
        buttons=tuple(Button(action=action, notification_id=NOTIFICATION, version=1) for action in actions),
    )  # fmt: skip
    return replace(made, **change)


def approved(by: str = "Bea") -> Card:
    return card(
        status=ApprovalStatus.APPROVED,
        occasion=Occasion.RESOLVED,
        resolved_at=NOW,
        resolved_by=by,
        resolution_reason="fine",
    )


def outgoing(target: Target, content: Card | ChatReply, **more: Any) -> Outgoing:
    fields: dict[str, Any] = {
        "id": NOTIFICATION,
        "org_id": UUID(int=1),
        "version": 1,
        "earlier": None,
        "timestamp": NOW,
    }
    return Outgoing(target=target, content=content, **{**fields, **more})


def status_in(text: str) -> str:
    """What a message says has become of its request, in the words of its heading."""
    heading = text.strip().split("\n")[0].lower()
    return next((status for status in ("approved", "denied", "expired", "cancelled") if status in heading), "pending")


async def database_time(world: World) -> float:
    """The plane's time, by which requests are judged; tests move it."""
    async with world.db.transaction(world.org_id) as tx:
        return float(await tx.value("select extract(epoch from plane_now())"))

"""Another system that speaks with the plane over one of its webhooks, through the vendor's own library."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx
import orjson
from standardwebhooks import Webhook

from cortex_plane.approvals.model.approvals import Approval, Choice
from cortex_plane.tenancy.model.identities import ConnectionDraft, MappingDraft
from cortex_plane.tenancy.verbs import connections
from tests.people import Person, World

URL = "https://hooks.example/cortex"


@dataclass(frozen=True)
class System:
    """A webhook connection with its secret."""

    world: World
    id: UUID
    secret: str

    @classmethod
    async def connected(cls, world: World, name: str = "hook") -> System:
        draft = ConnectionDraft(channel_type="webhook", name=name, url=URL)
        made = await connections.create_connection(world.db, world.admin.actor, draft)
        assert made.secret is not None
        return cls(world, made.id, made.secret)

    @property
    def path(self) -> str:
        return f"/v1/webhooks/{self.id}"

    async def knows(self, person: Person, name: str) -> None:
        """An admin says that this name is theirs."""
        assert person.actor.user_account_id is not None
        draft = MappingDraft(member_id=person.actor.user_account_id, external_user=name)
        await connections.map_member(self.world.db, self.world.admin.actor, self.id, draft)

    def headers(
        self, body: bytes, *, id: str | None = None, at: datetime | None = None, secret: str | None = None
    ) -> dict[str, str]:
        """Signed by the library."""
        id, at = id or f"evt_{secrets.token_hex(8)}", at or datetime.now(UTC)
        return {
            "webhook-id": id,
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": Webhook(secret or self.secret).sign(id, at, body.decode()),
        }

    async def send(
        self,
        http: httpx.AsyncClient,
        event: dict[str, Any] | bytes,
        *,
        id: str | None = None,
        at: datetime | None = None,
        secret: str | None = None,
    ) -> httpx.Response:
        body = event if isinstance(event, bytes) else orjson.dumps(event)
        return await http.post(
            self.path, content=body, headers=self.headers(body, id=id, at=at, secret=secret)
        )


def ping() -> dict[str, Any]:
    return {"type": "ping", "timestamp": datetime.now(UTC).isoformat(), "data": {}}


def decision(
    approval: Approval, user: str = "ada@corp", choice: Choice = Choice.APPROVED, **change: Any
) -> dict[str, Any]:
    data: dict[str, Any] = {
        "approval_id": str(approval.id),
        "decision": choice.value,
        "version": approval.version,
        "input_hash": approval.input_hash,
        "external_user": user,
    }
    return {
        "type": "approval.decision",
        "timestamp": (datetime.now(UTC) - timedelta(minutes=1)).isoformat(),
        "data": data | change,
    }

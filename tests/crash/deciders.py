"""What a process of its own does to an approval before it dies: each is one verb of the plane."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from cortex_plane.domain.access import scheduler_actor
from cortex_plane.domain.approvals import Channel, Choice, Decision
from cortex_plane.domain.idempotency import Once
from cortex_plane.domain.jobs import Cancellation
from cortex_plane.operations import approvals, keys, steering
from cortex_plane.operations.verbs import new_id
from cortex_plane.storage.database import Database


async def decide(db: Database, given: dict[str, Any]) -> None:
    actor = await keys.authenticate(db, given["secret"])
    decision = Decision(
        decision=Choice(given["choice"]),
        version=given["version"],
        input_hash=given["input_hash"],
        arguments=given.get("arguments"),
        reason="because",
    )
    once = Once(key=given["key"], fingerprint=b"the same") if given.get("key") else None
    await approvals.decide(db, actor, UUID(given["approval"]), decision, Channel.API, once)


async def act_when_due(db: Database, given: dict[str, Any]) -> None:
    actor = scheduler_actor(UUID(given["org"]), new_id(), "doomed")
    await approvals.act_when_due(db, actor, UUID(given["approval"]))


async def cancel(db: Database, given: dict[str, Any]) -> None:
    actor = await keys.authenticate(db, given["secret"])
    await steering.cancel(db, actor, UUID(given["job"]), Cancellation())

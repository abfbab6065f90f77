"""Deployments that a vendor holds: the plane is asked whether they may go on, decides as about any other call, and says so.

The connection asks as an agent that runs elsewhere: its call has a session of its own, and policies say whether people decide. What is done
with the decision is done here: the call begins and ends with the verdict, which goes to the vendor through the outbox. Each step may be
repeated, and each deployment is told one verdict.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.approvals import store as approvals_store
from cortex_plane.calls.model import CallDraft, ExternalCall
from cortex_plane.calls.verbs import held_calls
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.notify.model.channels import HeldDeployment
from cortex_plane.notify.store import queries
from cortex_plane.notify.verbs.channel_events import WAITS, StoredEvent, person_of, unknown_person
from cortex_plane.notify.verbs.channel_port import DeploymentGate
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs.access import forgery_refusal

NO_AGENT = "No agent is set for this connection, so nobody can ask for this deployment. Set one, then run the deployment again."
MAX_REASON = 1000


async def ask(db: Database, event: StoredEvent, deployment: HeldDeployment) -> None:
    """Under the policies of the org. Where they let it through, or forbid it, the verdict follows at once."""
    agent = event.agent_id or event.target.config.get("agent")
    if agent is None:
        raise Conflict(NO_AGENT, code="agent_missing")
    draft = CallDraft(
        tool=deployment.tool, arguments=dict(deployment.arguments), key=deployment.key,
        on_uncertain=OnUncertain.RETRY_WITH_KEY,
    )  # fmt: skip
    once = IdempotencyKey(key=event.key, fingerprint=hashlib.sha256(orjson.dumps(event.payload)).digest())
    actor = await _asker(db, event, deployment)
    connection_id = event.target.connection_id
    call = await held_calls.ask(db, actor, str(agent), draft, once, connection_id=connection_id)
    await _conclude(db, event, call)


async def settle(db: Database, event: StoredEvent, call_id: UUID) -> None:
    """Its request is over."""
    await _conclude(db, event, await held_calls.read(db, event.bridge(), call_id))


async def _asker(db: Database, event: StoredEvent, deployment: HeldDeployment) -> Actor:
    """The connection; where it is known who started the deployment, on their behalf, so that they are a cause of the call."""
    async with forgery_refusal(db, unknown_person), db.transaction(event.org_id) as tx:
        person = await person_of(tx, event, deployment)
    return replace(event.bridge(), user_account_id=person.user_account_id if person else None)


async def _conclude(db: Database, event: StoredEvent, call: ExternalCall) -> None:
    """Once nobody is asked any more the vendor is told. What was allowed and cannot begin is tried again for a while, and then refused."""
    if call.status is CallStatus.AWAITING:
        return
    actor, refusal = event.bridge(), None
    try:
        call = await held_calls.carry_out(db, actor, call)
    except Conflict as error:
        if event.attempts <= len(WAITS):
            raise
        refusal = error.message
    if call.status is CallStatus.AWAITING:
        return  # Policies want to know anew.
    await _tell(db, event, call, refusal)
    await held_calls.finish(db, actor, call, refusal)


async def _tell(db: Database, event: StoredEvent, call: ExternalCall, refusal: str | None) -> None:
    """Written down once for each call; the outbox sends it until the vendor has it."""
    channel = event.channel
    if not isinstance(channel, DeploymentGate):
        raise TypeError(f"{channel.channel_type} holds no deployments")
    environment, is_private = str(call.arguments["environment"]), call.arguments["private"] is True
    address = channel.verdict_address(call.arguments)
    data: dict[str, Any] = {
        "place": f"{address} {environment}", "environment": environment, "is_allowed": call.status is CallStatus.COMPLETED,
        "decided_by": None, "reason": refusal or call.error or call.reason, "page": f"jobs/{call.job_id}",
    }  # fmt: skip
    async with db.transaction(event.org_id) as tx:
        if call.approval_id is not None:
            found = await approvals_store.get_approval(tx, call.approval_id, event.bridge())
            if found is not None:
                approval, _ = found
                reason = approval.resolution_reason or data["reason"]
                data |= {"decided_by": approval.resolved_by_name, "reason": reason, "page": f"approvals/{approval.id}"}
        if not is_private:
            # Everybody reads it there.
            data |= {"decided_by": None, "reason": None}
        elif data["reason"]:
            data["reason"] = data["reason"][:MAX_REASON]
        await tx.rows(queries.add_verdict, new_id(), call.id, event.target.connection_id, address, data)

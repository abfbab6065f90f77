"""Deployments that a vendor holds: the plane is asked whether they may go on, decides as about any other call, and says so.

The connection asks as an agent that runs elsewhere: its call has a session of its own, and policies say whether people decide. What is done
with the decision is done here: the call begins and ends with the verdict, which goes to the vendor through the outbox. Each step may be
repeated, and each deployment is told one verdict.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid5

import orjson

from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.approvals import store as approvals_store
from cortex_plane.calls.model import CallDraft, ExternalCall
from cortex_plane.calls.verbs import held_calls
from cortex_plane.db.database import Database, Transaction
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.kernel.errors import Conflict, CortexError, Unavailable
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.notify.model.channels import EndedDeployment, HeldDeployment
from cortex_plane.notify.model.notifications import Undeliverable
from cortex_plane.notify.store import queries
from cortex_plane.notify.verbs.channel_events import WAITS, StoredEvent, person_of, unknown_person
from cortex_plane.notify.verbs.channel_port import DeploymentGate
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs.access import forgery_refusal

NO_AGENT = "No agent is set for this connection, so nobody can ask for this deployment. Set one, then run it again."
MAX_REASON = 1000


async def ask(db: Database, event: StoredEvent, deployment: HeldDeployment) -> None:
    """Under the policies of the org. Where they let it through, or forbid it, the verdict follows at once. What cannot be asked is tried
    again for a while, and then refused: a vendor that hears nothing would wait for weeks."""
    try:
        confirmed = await _confirm(event, deployment)
        if confirmed is None:
            return
        deployment = confirmed
        await _ask(db, event, deployment)
    except Unavailable:
        raise
    except CortexError as error:
        if event.attempts <= len(WAITS):
            raise
        page = f"channels/{event.target.connection_id}"
        async with db.transaction(event.org_id) as tx:
            await _add_verdict(tx, event, deployment.arguments, None, reason=error.message, page=page)


async def _confirm(event: StoredEvent, deployment: HeldDeployment) -> HeldDeployment | None:
    try:
        return await _gate_of(event).confirm_deployment(event.target, deployment)
    except Undeliverable as error:
        # Somebody may correct the connection while it is tried again.
        raise Conflict(error.message) from None


def _gate_of(event: StoredEvent) -> DeploymentGate:
    if not isinstance(event.channel, DeploymentGate):
        raise TypeError(f"{event.channel.channel_type} holds no deployments")
    return event.channel


async def _ask(db: Database, event: StoredEvent, deployment: HeldDeployment) -> None:
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


async def withdraw(db: Database, event: StoredEvent, ended: EndedDeployment) -> None:
    """Whoever is still asked about it is asked no more, once its vendor confirms that it does not wait."""
    actor, connection_id = event.bridge(), event.target.connection_id
    sessions = await held_calls.list_asking(db, actor, ended.deployment.key, connection_id=connection_id)
    if sessions and await _confirm(event, ended.deployment) is None:
        for session_id in sessions:
            await held_calls.withdraw(db, actor, session_id, ended.reason)


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
    decided_by, reason, page = None, refusal or call.error or call.reason, f"jobs/{call.job_id}"
    async with db.transaction(event.org_id) as tx:
        if call.approval_id is not None:
            found = await approvals_store.get_approval(tx, call.approval_id, event.bridge())
            if found is not None:
                approval, _ = found
                decided_by, page = approval.resolved_by_name, f"approvals/{approval.id}"
                reason = refusal or approval.resolution_reason or reason
        await _add_verdict(tx, event, call.arguments, call, decided_by=decided_by, reason=reason, page=page)


async def _add_verdict(
    tx: Transaction, event: StoredEvent, arguments: Mapping[str, Any], call: ExternalCall | None, *,
    decided_by: str | None = None, reason: str | None, page: str,
) -> None:  # fmt: skip
    """Once for each call; the outbox sends it until the vendor has it."""
    environment, address = str(arguments["environment"]), _gate_of(event).verdict_address(arguments)
    # Where it is not private, everybody reads it.
    is_private = arguments["private"] is True
    data = {
        "place": f"{address} {environment}", "environment": environment, "page": page,
        "is_allowed": call is not None and call.status is CallStatus.COMPLETED,
        "decided_by": decided_by if is_private else None, "reason": reason[:MAX_REASON] if reason and is_private else None,
    }  # fmt: skip
    # The same event makes the same one.
    id, connection_id = uuid5(NAMESPACE_OID, event.key), event.target.connection_id
    await tx.rows(queries.add_verdict, id, call.id if call else None, connection_id, address, data)

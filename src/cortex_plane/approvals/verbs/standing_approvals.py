"""Standing approvals: given with a decision, looked up for each call that needs a person, listed, revoked.

Looking one up promises nothing yet: it is looked at again, and counted, in the transaction that writes the intent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType
from uuid import UUID

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import (
    DEFAULT_SECONDS,
    Approval,
    GrantedUnder,
    Revocation,
    StandingApproval,
    StandingDraft,
)  # fmt: skip
from cortex_plane.approvals.rules import authority
from cortex_plane.approvals.rules.authority import Candidate
from cortex_plane.approvals.store import queries
from cortex_plane.db.database import Database, Row, Transaction, after, page
from cortex_plane.db.vault import Vault
from cortex_plane.gates.rules import authorization as authorization_rules
from cortex_plane.gates.rules.authorization import Authorization, CallJob, StandingUse, UnsentCall
from cortex_plane.kernel.conditions import Condition
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.pages import After, Page
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.rules.receipts import Stamp, why_not_standing
from cortex_plane.proof.verbs import receipts
from cortex_plane.tenancy.model.access import Actor, Fact, Permission
from cortex_plane.tenancy.verbs.frame import require_found, transaction_verb


async def prepare(draft: StandingDraft) -> None:
    """Compile its condition in a thread, so that nothing is compiled on the event loop. What is wrong with it is said later."""
    if draft.condition is not None:
        with contextlib.suppress(InvalidInput):
            await asyncio.to_thread(Condition.of, draft.condition)


async def grant(
    tx: Transaction, actor: Actor, granter: UUID, approval: Approval, draft: StandingDraft, *, reason: str | None, now: datetime
) -> tuple[StandingApproval, Fact]:  # fmt: skip
    """In the transaction that approves ``approval``, after `standing_refusal` found nothing against it. With what the trail says of it.
    ``approval`` is as it is approved, edits included."""
    if approval.tool_digest is None or approval.session_id is None or approval.agent_id is None:
        raise AssertionError("`standing_refusal` refuses what is no call of a tool")
    standing = StandingApproval(
        id=new_id(), session_id=approval.session_id, agent=approval.agent, tool_name=approval.tool_name,
        tool_digest=approval.tool_digest, input_hash=approval.input_hash if draft.same_arguments else None,
        condition=draft.condition, max_calls=draft.calls, used_calls=0,
        expires_at=now + timedelta(seconds=draft.seconds or DEFAULT_SECONDS), granted_by=actor.name, granted_by_id=granter,
        required=GrantedUnder(
            rule=approval.rule, template=approval.template, clearance=approval.required_clearance,
            approvers=approval.approvers, version=approval.version,
        ),
        approval_id=approval.id, reason=reason, revoked_at=None, revoked_by=None, revocation_reason=None, created_at=now,
        last_used_at=None, owner_id=approval.owner_id,
    )  # fmt: skip
    await approvals_store.insert_standing(tx, standing, approval.agent_id)
    fact = Fact.of(
        actor, "standing_granted", standing=str(standing.id), approval=str(approval.id), rule=standing.required.rule,
        template=standing.required.template, clearance=standing.required.clearance, **standing.bounds(),
    )  # fmt: skip
    return standing, fact


async def cover(
    db: Database, job: CallJob, planned: UnsentCall, read_only: bool, authorization: Authorization, vault: Vault,
    reserved: Mapping[UUID, int] = MappingProxyType({}), read_to: int = 0, askers: Sequence[UUID] = (),
) -> tuple[Authorization, list[dict[str, str]]]:  # fmt: skip
    """The authorization of a call that needs approval, wherever it runs, with the standing approval that it may use; and what the audit
    trail says about each that covers the call, and whose receipt is not true. ``reserved``: how many calls of the same response use
    each already. ``vault`` tells whose receipts are the plane's."""
    refusals: list[dict[str, str]] = []
    terms = authorization.decision.terms
    if terms is None or not terms.standing or planned.digest is None:
        return authorization, refusals
    call = authorization_rules.Uncovered(
        call_id=planned.id, tool_name=planned.name, tool_digest=planned.digest, input_hash=planned.input_hash,
        facts=authorization_rules.facts_of(job, planned, read_only=read_only), terms=terms,
    )  # fmt: skip
    async with db.transaction(job.org_id) as tx:
        candidates = await approvals_store.standing_candidates(
            tx, job.session_id, call.tool_name, call.tool_digest, call.input_hash, call.call_id
        )
        if not candidates:
            return authorization, refusals
        granters = await approvals_store.list_granters(
            tx, [standing.id for standing, _ in candidates], job.job_id, read_to, askers, call.terms
        )
    for standing, row in candidates:
        unfit = authority.why_not_covered(
            standing, job.session_id, call, granters[standing.id], row["now"],
            reserved=reserved.get(standing.id, 0), counted=row["counted"],
        )  # fmt: skip
        if unfit is not None:
            continue
        fault = _receipt_fault(vault, job.org_id, standing, row)
        if fault is None:
            use = StandingUse(standing_id=standing.id, granter_revision=row["granter_revision"], counted=row["counted"])
            return authorization_rules.leaning_on(authorization, use), refusals
        refusals.append(
            {"call": str(call.call_id), "tool": call.tool_name, "standing": str(standing.id), "reason": fault}
        )
    return authorization, refusals


def _receipt_fault(vault: Vault, org_id: UUID, standing: StandingApproval, row: Row) -> str | None:
    """Why nobody gave this one: a row could be anybody's, the receipt of its request is the plane's alone."""
    names = ("body", "signature", "key_id", "public_key", "sealed")
    stamp = Stamp(**{name: row[name] for name in names}) if row["body"] is not None else None
    fault = receipts.stamp_fault(vault, org_id, stamp)
    return why_not_standing(stamp, standing, org_id) if stamp is not None and fault is None else fault


@transaction_verb(Permission.APPROVAL_READ)
async def list_page(
    tx: Transaction, actor: Actor, position: After, limit: int, *, session_id: UUID | None = None, active: bool = False
) -> Page[StandingApproval]:
    """Newest first. Whoever is not staff sees those of their own sessions, and those that they gave."""
    rows = await tx.rows(queries.list_standing, *after(position), limit + 1, actor.sees, session_id, active)
    standing = page(StandingApproval, rows, limit)
    return replace(standing, items=[_shown(item, row) for item, row in zip(standing.items, rows, strict=False)])


async def _read(tx: Transaction, actor: Actor, id: UUID) -> StandingApproval:
    row = require_found(await tx.row(queries.get_standing, id, actor.sees), "standing_approval")
    return _shown(parse(StandingApproval, row), row)


get = transaction_verb(Permission.APPROVAL_READ)(_read)


def _shown(standing: StandingApproval, row: Row) -> StandingApproval:
    """With whether it covers anything: ``row`` has whoever gave it, and the database's time."""
    why = authority.why_unusable(standing, parse(Candidate, row["granter"]), row["now"])
    return replace(standing, usable=why is None, why_not=why)


@transaction_verb(Permission.APPROVAL_DECIDE)
async def revoke(tx: Transaction, actor: Actor, id: UUID, revocation: Revocation) -> StandingApproval:
    """From this commit on it covers nothing; what was sent before was sent. Once more changes nothing."""
    standing = await _read(tx, actor, id)
    error = authority.revocation_refusal(standing, actor)
    if error is not None:
        raise error
    if await tx.value(queries.revoke_standing, id, actor.name, revocation.reason) is not None:
        # Locked now, so the count is the last one.
        standing = await _read(tx, actor, id)
        fact = Fact.of(
            actor, "standing_revoked", standing=str(id), approval=str(standing.approval_id),
            tool=standing.tool_name, used_calls=standing.used_calls, reason=revocation.reason,
        )  # fmt: skip
        await proof_store.append_to_session(tx, standing.session_id, [fact])
    return await _read(tx, actor, id)

"""Standing approvals: given with a decision, looked up for each call that needs a person, listed, revoked.

Looking one up promises nothing yet: it is looked at again, and counted, in the transaction that writes the intent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import (
    DEFAULT_SECONDS,
    Revocation,
    StandingApproval,
    StandingDraft,
)
from cortex_plane.approvals.rules import standing_match
from cortex_plane.approvals.rules.deciders import Request
from cortex_plane.approvals.rules.standing_match import CallAsked, check
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.db.vault import Vault
from cortex_plane.gates.rules.authorization import JobRef, StandingUse
from cortex_plane.kernel.conditions import Condition
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.policies.model.policies import CallFacts, Terms
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.proof.rules.receipts import Stamp, why_not_standing
from cortex_plane.proof.verbs import receipts
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs import access
from cortex_plane.tenancy.verbs.frame import require_found, verb

__all__ = ["check", "cover", "get", "grant", "list_page", "revoke"]


async def prepare(draft: StandingDraft | None) -> None:
    """Compile its condition in a thread, so that nothing is compiled on the event loop. What is wrong with it is said later."""
    if draft is not None and draft.condition is not None:
        with contextlib.suppress(InvalidInput):
            await asyncio.to_thread(Condition.of, draft.condition)


async def grant(
    tx: Transaction,
    actor: Actor,
    *,
    request: Request,
    draft: StandingDraft,
    version: int,
    input_hash: str,
    reason: str | None,
    now: datetime,
) -> StandingApproval:
    """In the transaction that approves ``request``, after ``check`` found nothing against it.

    ``version`` and ``input_hash`` are those of what was approved, edits included.
    """
    if actor.user_account_id is None:
        raise AssertionError("only people decide")
    id = new_id()
    await approvals_store.insert_standing(
        tx, id, request.id, input_hash=input_hash if draft.same_arguments else None, condition=draft.condition,
        max_calls=draft.calls, expires_at=now + timedelta(seconds=draft.seconds or DEFAULT_SECONDS),
        granted_by=actor.name, granted_by_id=actor.user_account_id, reason=reason, version=version, now=now,
    )  # fmt: skip
    made, _ = require_found(await approvals_store.get_standing(tx, id, None), "standing_approval")
    fact = Fact.of(
        actor, "standing_granted", standing=str(id), approval=str(request.id), rule=made.required.rule,
        template=made.required.template, clearance=made.required.clearance, **made.bounds(),
    )  # fmt: skip
    await proof_store.append_to_session(tx, request.session_id, [fact], job=request.job_id)
    return made


# Using it ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncovered:
    """A call that needs a person's yes, and under which terms."""

    call_id: UUID
    tool_name: str
    tool_digest: str
    input_hash: str
    facts: CallFacts
    terms: Terms


@dataclass(slots=True)
class Cover:
    """What a call may lean on, and what it must not: those that say yes to it and whose receipts do not, and why."""

    leaning: StandingUse | None = None
    refused: list[tuple[UUID, str]] = field(default_factory=list)


async def cover(
    db: Database, given: JobRef, read_to: int, call: Uncovered, taken: Mapping[UUID, int], vault: Vault,
    askers: Sequence[UUID] = (),
) -> Cover:  # fmt: skip
    """``taken``: how many calls of the same response lean on each already. ``vault`` tells whose receipts are the plane's."""
    found_so_far = Cover()
    async with db.transaction(given.org_id) as tx:
        candidates = await approvals_store.standing_candidates(
            tx, given.session_id, call.tool_name, call.tool_digest, call.input_hash, call.call_id
        )
        if not candidates:
            return found_so_far
        origin = require_found(
            await approvals_store.standing_origin(tx, given.job_id, read_to, askers), "job"
        )
        asked = CallAsked(
            session_id=given.session_id, tool_name=call.tool_name, tool_digest=call.tool_digest,
            input_hash=call.input_hash, facts=call.facts, owner_id=origin["owner_id"], causes=origin["causes"],
            sponsors=origin["sponsors"],
        )  # fmt: skip
        granters: dict[UUID, Actor | None] = {}
        for standing, row in candidates:
            granter = await _granter(tx, standing, granters)
            refused = standing_match.covers(
                standing, asked, call.terms, granter, row["now"], taken=taken.get(standing.id, 0),
                counted=row["counted"], behind=row["behind"],
            )  # fmt: skip
            if refused is not None:
                continue
            false = _false(vault, given.org_id, standing, row)
            if false is None:
                found_so_far.leaning = StandingUse(
                    standing_id=standing.id, granter_revision=row["granter_revision"], counted=row["counted"]
                )
                break
            found_so_far.refused.append((standing.id, false))
    return found_so_far


def _false(vault: Vault, org_id: UUID, standing: StandingApproval, row: Row) -> str | None:
    """Why nobody gave this one: a row could be anybody's, the receipt of its request is the plane's alone."""
    if row["body"] is None:
        return "there is no receipt of its approval"
    stamp = Stamp(**{name: row[name] for name in ("body", "signature", "key_id", "public_key", "sealed")})
    if not receipts.is_ours(vault, org_id, stamp):
        return "the key of its receipt is not one of the org's"
    return why_not_standing(stamp, standing, org_id)


async def _granter(
    tx: Transaction, standing: StandingApproval, known: dict[UUID, Actor | None]
) -> Actor | None:
    """Whoever gave it, as they are now."""
    if standing.granted_by_id not in known:
        known[standing.granted_by_id] = await access.actor_for_member(tx, standing.granted_by_id, standing.id)
    return known[standing.granted_by_id]


# Listing and revoking it ------------------------------------------------------------------------------------------


@verb(Permission.APPROVAL_READ)
async def list_page(
    db: Database,
    actor: Actor,
    position: Position | None,
    limit: int,
    *,
    session_id: UUID | None = None,
    active: bool = False,
) -> Page[StandingApproval]:
    """Newest first. Whoever is not staff sees those of their own sessions, and those that they gave."""
    async with db.transaction(actor.org_id) as tx:
        page, now = await approvals_store.list_standing(tx, position, limit, actor.sees, session_id, active)
        granters: dict[UUID, Actor | None] = {}
        items = [
            _shown(each, await _granter(tx, each, granters), now) for each in page.items if now is not None
        ]
    return Page(items=items, next=page.next)


@verb(Permission.APPROVAL_READ)
async def get(db: Database, actor: Actor, id: UUID) -> StandingApproval:
    async with db.transaction(actor.org_id) as tx:
        return await _read(tx, actor, id)


async def _read(tx: Transaction, actor: Actor, id: UUID) -> StandingApproval:
    standing, now = require_found(await approvals_store.get_standing(tx, id, actor.sees), "standing_approval")
    return _shown(standing, await _granter(tx, standing, {}), now)


def _shown(standing: StandingApproval, granter: Actor | None, now: datetime) -> StandingApproval:
    why = standing_match.unusable(standing, granter, now)
    return replace(standing, usable=why is None, why_not=why)


@verb(Permission.APPROVAL_DECIDE)
async def revoke(db: Database, actor: Actor, id: UUID, revocation: Revocation) -> StandingApproval:
    """From this commit on it covers nothing; what was sent before was sent. Once more changes nothing."""
    async with db.transaction(actor.org_id) as tx:
        standing = await _read(tx, actor, id)
        refused = standing_match.may_revoke(standing, actor)
        if refused is not None:
            raise refused
        if await approvals_store.revoke_standing(tx, id, actor.name, revocation.reason):
            # Locked now, so the count is the last one.
            standing = await _read(tx, actor, id)
            fact = Fact.of(
                actor, "standing_revoked", standing=str(id), approval=str(standing.approval_id),
                tool=standing.tool_name, used_calls=standing.used_calls, reason=revocation.reason,
            )  # fmt: skip
            await proof_store.append_to_session(tx, standing.session_id, [fact])
        return await _read(tx, actor, id)

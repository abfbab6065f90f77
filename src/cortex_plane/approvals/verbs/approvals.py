"""Approvals as people see them: lists, one approval, and handing one's part to somebody else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model import approvals as approval_model
from cortex_plane.approvals.model.approvals import AT_MOST, Approval, ApprovalDetails, Channel, Mark
from cortex_plane.approvals.rules import decisions as approval_rules
from cortex_plane.approvals.rules.authority import Candidate, cannot_delegate, nobody_to_take_it
from cortex_plane.approvals.store import queries
from cortex_plane.approvals.verbs import decisions
from cortex_plane.db.database import Database, Transaction, after, many, one, page
from cortex_plane.db.pool import PoolPurpose
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.meters import meters
from cortex_plane.kernel.pages import After, Page
from cortex_plane.notify import store as notify_store
from cortex_plane.policies.model.policies import Approvers
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, transaction_verb, verb

SHOWN_DECIDERS = 20


@transaction_verb(Permission.APPROVAL_READ)
async def list_approvals(
    tx: Transaction,
    actor: Actor,
    position: After,
    limit: int,
    *,
    status: approval_model.ApprovalStatus | None = None,
    job_id: UUID | None = None,
    session_id: UUID | None = None,
) -> Page[Approval]:
    """Newest first. Whoever is not staff sees those of their own sessions, and those that they may decide."""
    filters = (actor.sees, status, job_id, session_id, approvals_store.person_of(actor))
    approvals = page(Approval, await tx.rows(queries.list_approvals, *after(position), limit + 1, *filters), limit)
    return replace(approvals, items=[approval_rules.shown_to(approval, actor) for approval in approvals.items])


@transaction_verb(Permission.APPROVAL_READ)
async def list_inbox(
    tx: Transaction, actor: Actor, limit: int, *, skip: int = 0, shown_at: datetime | None = None,
    after: UUID | None = None,
) -> approval_model.Waiting:  # fmt: skip
    """What waits, the most urgent first: what the actor could decide, and what else they see, each up to ``limit``. One look is at
    the 500 most urgent requests, or the 500 after request ``after``."""
    waiting = await approvals_store.list_inbox(tx, actor, shown_at, after, skip, limit)
    return replace(
        waiting,
        mine=[approval_rules.shown_to(approval, actor) for approval in waiting.mine],
        others=[approval_rules.shown_to(approval, actor) for approval in waiting.others],
    )


@transaction_verb(Permission.APPROVAL_READ)
async def list_settled(tx: Transaction, actor: Actor, limit: int) -> list[Approval]:
    """What ended lately, the last first."""
    return await approvals_store.list_settled(tx, actor.sees, limit)


@transaction_verb(Permission.APPROVAL_READ)
async def get_approval(tx: Transaction, actor: Actor, id: UUID) -> ApprovalDetails:
    approval, now = require_found(await approvals_store.get_approval(tx, id, actor), "approval")
    able = await approvals_store.deciders_of_approval(tx, id, SHOWN_DECIDERS)
    similar = await tx.rows(queries.list_similar, id, approval.tool_name) if actor.sees is None else []
    deliveries = await notify_store.deliveries_of_approval(tx, id) if actor.sees is None else []
    return ApprovalDetails(
        approval=replace(approval_rules.shown_to(approval, actor), deciders=[decider.name for decider in able]),
        votes=approval_rules.explain_votes(approval, many(approval_model.Vote, await tx.rows(queries.list_votes, id))),
        events=many(approval_model.ApprovalEvent, await tx.rows(queries.list_approval_events, id)),
        delegations=many(approval_model.Delegation, await tx.rows(queries.list_delegations, id)),
        deliveries=deliveries,
        similar=many(Approval, similar),
        now=now,
    )


@transaction_verb(Permission.APPROVAL_READ)
async def approval_for_call(tx: Transaction, actor: Actor, call_id: UUID) -> Approval:
    """The request that a call belongs to."""
    id = require_found(await tx.value(queries.approval_of_call, call_id), "approval")
    approval, _ = require_found(await approvals_store.get_approval(tx, id, actor), "approval")
    return approval_rules.shown_to(approval, actor)


@verb(Permission.APPROVAL_READ)
async def marks_of_approvals(db: Database, actor: Actor, approvals: Sequence[Approval]) -> dict[UUID, Mark]:
    """Of requests that the actor was shown."""
    if not approvals:
        return {}
    async with db.transaction(actor.org_id) as tx:
        ids = [approval.id for approval in approvals]
        rows = await tx.rows(queries.marks_of_approvals, ids, actor.user_account_id, actor.sees is None)
        return {row["approval_id"]: parse(Mark, row) for row in rows}


@transaction_verb(Permission.APPROVAL_READ)
async def next_level(tx: Transaction, actor: Actor, approval_id: UUID) -> Approvers | None:
    """Who is asked besides when a request goes up next; None where it cannot."""
    require_found(await approvals_store.get_approval(tx, approval_id, actor), "approval")
    return one(Approvers, await tx.value(queries.next_level, approval_id))


@verb(Permission.APPROVAL_DECIDE)
async def delegate(
    db: Database, actor: Actor, id: UUID, draft: approval_model.DelegationDraft, *, channel: Channel = Channel.API
) -> Approval:
    """Whoever could approve it hands their part to somebody else with the clearance, and decides no more."""
    db = db.own(PoolPurpose.DECISIONS)
    approval = await decisions.retry_on_conflict(lambda: _delegate(db, actor, id, draft, channel))
    meters().delegated(actor.org_id)
    return approval


async def _delegate(
    db: Database, actor: Actor, id: UUID, draft: approval_model.DelegationDraft, channel: Channel
) -> Approval:
    async with db.transaction(actor.org_id) as tx:
        row = await decisions.open_visible(tx, id, actor, channel)
        approval = row.approval
        taker = one(Candidate, await tx.row(queries.find_taker, id, draft.to))
        if taker is None:
            raise nobody_to_take_it()
        able = await approvals_store.deciders_of_approval(tx, id)
        others = {decider.id: decider.roles for decider in able if decider.id != actor.user_account_id}
        error = cannot_delegate(row, actor, taker, others)
        if error is not None:
            await decisions.note_refused_decision(tx, row, actor, channel, "delegated", approval.version, error)
        else:
            by, to = (actor.user_account_id, actor.name), (taker.id, taker.name, taker.clearance)
            await tx.rows(queries.insert_delegation, tx.org, id, *by, *to, draft.reason)
            data = {
                "automatic": False, "to": str(taker.id), "name": taker.name, "reason": draft.reason,
                "to_clearance": taker.clearance,
            }  # fmt: skip
            event = {"by": actor.name, "to": taker.name}
            await decisions.record_new_deciders(tx, approval, actor, "approval_delegated", data, event)
            approval = await approvals_store.read_again(tx, id, actor)
    if error is not None:
        raise error
    return approval_rules.shown_to(approval, actor)


@transaction_verb(Permission.ABSENCE_WRITE)
async def list_delegates(
    tx: Transaction, actor: Actor, *, approval_id: UUID | None = None, name: str | None = None
) -> list[approval_model.Delegate]:
    """Colleagues by name, at most ``AT_MOST``; with an approval, those who could take the caller's part in it."""
    if approval_id is None:
        rows = await tx.rows(queries.list_delegates, actor.user_account_id, name, AT_MOST)
        return many(approval_model.Delegate, rows)
    require_found(await approvals_store.get_approval(tx, approval_id, actor), "approval")
    besides = actor.user_account_id or actor.key_id
    rows = await tx.rows(queries.delegates_of_approval, approval_id, besides, name, AT_MOST)
    return many(approval_model.Delegate, rows)


@transaction_verb(Permission.ABSENCE_WRITE)
async def delegates_in_words(
    tx: Transaction, actor: Actor, approval_id: UUID, words: str
) -> list[approval_model.Delegate]:
    """Those who could take the caller's part, and with whose name the words begin; more than one where names are the same."""
    require_found(await approvals_store.get_approval(tx, approval_id, actor), "approval")
    besides = actor.user_account_id or actor.key_id
    rows = await tx.rows(queries.delegates_in_words, approval_id, besides, words, AT_MOST)
    delegates = many(approval_model.Delegate, rows)
    longest = len(delegates[0].display_name) if delegates else 0
    return [delegate for delegate in delegates if len(delegate.display_name) == longest]

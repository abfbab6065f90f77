"""Proposing a change of rules: it waits as a request for approval, until somebody decides it or another version holds."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import Cause
from cortex_plane.approvals.rules.decisions import describe_approvers
from cortex_plane.db.database import Transaction
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.meters import meters
from cortex_plane.policies.model.policies import SHOWN_DECIDERS, ChangeAction, ChangeDraft, PendingChange
from cortex_plane.proof import store as proof_store
from cortex_plane.tenancy.model.access import Actor, Fact

REPLACED = "it could not be approved any more, and was proposed again"


async def propose(tx: Transaction, actor: Actor, draft: ChangeDraft) -> PendingChange:
    """Under the lock of what it changes. The same change of the same version is proposed once, unless its request can no longer be
    approved."""
    earlier, is_same = await approvals_store.find_change(tx, draft)
    if earlier is not None and is_same:
        deciders = await approvals_store.deciders_of_approval(tx, earlier.approval_id, SHOWN_DECIDERS)
        if deciders:
            return replace(earlier, deciders=[decider.name for decider in deciders])
    causes = await _causes(tx, actor)
    member_ids = [cause.member_id for cause in causes if cause.member_id is not None]
    members = await approvals_store.list_deciders(tx, draft.terms, None, member_ids)
    if all(member.shaped_it for member in members):
        raise Conflict(
            f"This needs a yes, and nobody is left who can give it: it is for {describe_approvers(draft.approvers)} to decide, and"
            " whoever proposes it may not approve it.",
            code="nobody_to_approve",
            hint="Let somebody else propose it, make somebody else an admin, or, of an atlas, let an admin hand it over:"
            " `cortex atlas hand-over`.",
        )
    ended: list[Fact] = []
    if earlier is not None:
        ended = await cancel_overtaken(tx, actor, draft.action, draft.target, REPLACED, only=earlier.approval_id)
    change = await approvals_store.insert_change(tx, actor, draft, causes)
    id, terms = str(change.approval_id), draft.terms
    request_fact = Fact.of(
        actor, "approval_requested", approval=id, kind="change", tool=draft.action, target=draft.target, digest=draft.digest,
        base=draft.base, input_hash=draft.input_hash, rule=draft.rule, template=terms.template, clearance=0,
        timeout_seconds=terms.timeout_seconds,
    )  # fmt: skip
    dispatch_fact = Fact.of(actor, "approval_dispatched", approval=id, channel="dashboard")
    hops = await approvals_store.record_reach(tx, actor, change.approval_id)
    await proof_store.append_to_org(tx, *ended, request_fact, dispatch_fact, *hops)
    meters().requested(actor.org_id, terms.template)
    names = [member.name for member in members if not member.shaped_it]
    return replace(change, deciders=names[:SHOWN_DECIDERS])


async def _causes(tx: Transaction, actor: Actor) -> list[Cause]:
    """Whoever proposes it, and the person behind a program's key."""
    person = await approvals_store.person_behind(tx, actor.identity)
    if person is None or person == actor.user_account_id:
        return [Cause(member_id=person, name=actor.name, why="proposed it")]
    return [
        Cause(member_id=None, name=actor.name, why="proposed it"),
        Cause(member_id=person, name=actor.name, why="owns the key that proposed it"),
    ]


async def cancel_overtaken(
    tx: Transaction, actor: Actor, action: ChangeAction, target: str, reason: str, *, besides: UUID | None = None,
    only: UUID | None = None,
) -> list[Fact]:  # fmt: skip
    """Another version holds now: what waits was compared with the one before. Returns what the trail says of it."""
    ids = await approvals_store.cancel_changes(tx, action, target, besides, reason, only)
    return [Fact.of(actor, "approval_cancelled", approval=str(id), reason=reason) for id in ids]


def overtaken(what: str) -> Conflict:
    return Conflict(
        f"{what} since this was proposed, so it cannot be put in force any more.",
        code="change_overtaken",
        hint="Deny it, or let somebody propose it again: the new request replaces it.",
    )

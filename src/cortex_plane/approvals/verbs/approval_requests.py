"""Asking people, whoever asks: a worker for its job, or an agent that runs elsewhere for itself.

A request is made in the transaction of the verb that asks, under the lock of its job: request or joined invocation, everybody
who may decide told, and what the audit trail and the session's readers hear of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from cortex_plane.agents.model.agents import ApprovalTimes
from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import ApprovalKind, Cause, NewRequest, causes_in_words
from cortex_plane.approvals.rules.decisions import describe_approvers
from cortex_plane.approvals.store import queries
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.gates.rules.authorization import JobRef
from cortex_plane.jobs.model.jobs import PauseSource
from cortex_plane.kernel.fields import adapter, parse
from cortex_plane.kernel.meters import meters
from cortex_plane.policies.model import policies as policy_model
from cortex_plane.policies.model.policies import Approvers, Terms
from cortex_plane.tenancy.model.access import Actor, Fact
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs.frame import require_found

SETTLERS = replace(policy_model.OWNER_DECIDES, approvers=Approvers(roles=(Role.ADMIN, Role.OPERATOR, Role.APPROVER)))
"""Who is asked about an uncertain effect."""


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """What became of a request."""

    id: UUID
    request: NewRequest
    joined: bool
    """It was there before: one decision is for both."""
    facts: list[Fact]
    event: tuple[str, dict[str, Any]]


async def request(tx: Transaction, asked_by: Actor, job: JobRef, attempt: Row, request: NewRequest) -> RequestOutcome:
    """``attempt`` is the job's row as `lock_attempt` or `lock_asking` shows it, locked."""
    id, is_join = await _made(tx, job, _with_causes(attempt, request.changed_by), request)
    terms = request.terms
    action = "approval_joined" if is_join else "approval_requested"
    fact = Fact.of(
        asked_by, action, approval=str(id), kind=request.kind, call=str(request.call_id),
        tool=request.tool_name, digest=request.tool_digest, input_hash=request.input_hash, rule=request.rule,
        policies=request.policy_version, template=terms.template, clearance=terms.required_clearance,
        timeout_seconds=terms.timeout_seconds,
    )  # fmt: skip
    facts = [fact]
    if not is_join:
        facts.append(Fact.of(asked_by, "approval_dispatched", approval=str(id), channel="dashboard"))
        # Everybody who may decide it is told, on their channels; whoever is out of office hands their part on.
        facts += await approvals_store.record_reach(tx, asked_by, id)
    body = {"approval_id": str(id), "call": str(request.call_id), "tool": request.tool_name}
    event = ("approval_requested", {**body, "kind": request.kind, "joined": is_join})
    return RequestOutcome(id, request, is_join, facts, event)


def _with_causes(attempt: Row, more: Sequence[Cause]) -> Mapping[str, Any]:
    if not more:
        return attempt
    member_ids = {cause.member_id for cause in more if cause.member_id is not None}
    causes = [*attempt["caused"], *(adapter(Cause).dump_python(cause, mode="json") for cause in more)]
    return {**attempt, "causes": sorted(member_ids | {*attempt["causes"]}), "caused": causes}


async def _made(tx: Transaction, job: JobRef, attempt: Mapping[str, Any], request: NewRequest) -> tuple[UUID, bool]:
    """The id of the request that this call belongs to now, and whether it was there before."""
    apart = False
    if request.kind is ApprovalKind.CALL:
        earlier = await approvals_store.find_joinable(tx, attempt["session_id"], request)
        if earlier is not None:
            apart = not await _can_join(tx, attempt, request.terms, earlier["causes"])
            if not apart:
                causes, caused = attempt["causes"], attempt["caused"]
                await tx.rows(queries.join_approval, tx.org, earlier["id"], request.call_id, job.job_id, causes, caused)
                return earlier["id"], True
    await approvals_store.insert_approval(tx, request, job.job_id, job.agent_id, attempt, apart=apart)
    return request.id, False


async def _can_join(tx: Transaction, attempt: Mapping[str, Any], terms: Terms, causes: Sequence[UUID]) -> bool:
    """Whether enough people are left who shaped neither of the two calls."""
    both = {*causes, *attempt["causes"]}
    if terms.self_approval or both == set(causes):
        return True
    able = await approvals_store.list_deciders(tx, terms, attempt["owner_id"], sorted(both))
    return policy_model.is_met(terms.quorum, [decider.roles for decider in able if not decider.shaped_it])


def count(org_id: UUID, requests: Sequence[RequestOutcome], *, is_held: bool = False) -> None:
    """Metrics: each request, and whether it was there before; and the pause, unless the job ``is_held``: that is counted elsewhere."""
    for outcome in requests:
        if outcome.joined:
            meters().joined(org_id)
        else:
            meters().requested(org_id, outcome.request.terms.template)
    if requests and not is_held:
        meters().paused(org_id, PauseSource.APPROVAL)
        meters().suspended(org_id, 0.0)


@dataclass(frozen=True, slots=True)
class Possible:
    """By which terms people can decide a call."""

    terms: Terms | None
    """None where nobody or too few could."""
    excluded: Sequence[Cause] = ()
    """Who could then, had they not shaped the call."""
    changed_by: Sequence[Cause] = ()
    """Who changed the rules since it was asked for before, where its terms are others now: they shaped it too."""


async def feasible_terms(
    db: Database, job: JobRef, decision: policy_model.PolicyDecision, times: ApprovalTimes, read_to: int, askers: Sequence[UUID] = (), *,
    again: UUID | None = None,
) -> Possible:  # fmt: skip
    """The terms as far as people can fulfil them: better said now than when their time is over. Whom a request names must be one
    of those who may decide. ``again``: the call, where it was asked for before."""
    terms = require_terms(decision)
    async with db.transaction(job.org_id) as tx:
        origin = require_found(await tx.row(queries.call_origin, job.job_id, read_to, list(askers)), "job")
        changed_by = await _changed_by(tx, again, terms) if again is not None else []
        causes = origin["causes"]
        if changed_by:
            causes = [*causes, *(cause.member_id for cause in changed_by if cause.member_id)]
        if origin["is_guests"] and decision.rule.startswith("default:") and terms.approvers == Approvers(owner=True):
            # A guest decides nothing: where nobody names approvers, their agent's team has some.
            team = await approvals_store.team_approvers(tx, job.agent_id)
            terms = replace(terms, approvers=Approvers(members=tuple(team))) if team else terms
        members = await approvals_store.list_deciders(tx, terms, origin["owner_id"], causes)
    if terms.named is not None:
        members = [member for member in members if member.id in terms.named]
    able = [member for member in members if not member.shaped_it]
    if not policy_model.is_met(terms.quorum, [member.roles for member in able]):
        cause_ids = {member.id for member in members if member.shaped_it}
        caused = [*(parse(Cause, cause) for cause in origin["caused"]), *changed_by]
        return Possible(None, [cause for cause in caused if cause.member_id in cause_ids])
    if terms.named is not None:
        terms = replace(terms, approvers=Approvers(members=tuple(member.id for member in able)), named=None)
    return Possible(_bounded(terms, decision, times), changed_by=changed_by)


def require_terms(decision: policy_model.PolicyDecision) -> Terms:
    if decision.terms is None:
        raise AssertionError("a decision that requires approval has terms")
    return decision.terms


async def _changed_by(tx: Transaction, call_id: UUID, terms: Terms) -> list[Cause]:
    before = await tx.row(queries.rule_changes, call_id)
    if before is None:
        return []
    now = {
        "approvers": adapter(Approvers).dump_python(terms.approvers, mode="json"),
        "quorum": adapter(policy_model.Quorum).dump_python(terms.quorum, mode="json"),
        "required_clearance": terms.required_clearance,
        "self_approval": terms.self_approval,
    }
    if all(before[name] == value for name, value in now.items()):
        return []
    return [parse(Cause, author) for author in before["authors"]]


def nobody_can(tool: str, decision: policy_model.PolicyDecision, causes: Sequence[Cause] = ()) -> str:
    """Nobody could ever decide it: said at once, not when its time is over. ``causes``: who could, had they not shaped it."""
    terms = require_terms(decision)
    clearance = f" of clearance {terms.required_clearance}" if terms.required_clearance else ""
    others = "" if terms.self_approval else ", and whoever shaped the call may not approve it"
    if causes:
        others += f": {causes_in_words(causes)}"
    chosen = " among those whom the request names" if terms.named is not None else ""
    who = (
        "nobody can give it"
        if terms.quorum == policy_model.ONE_VOTE
        else f"too few can give its {terms.quorum.in_words()}"
    )
    return (
        f"`{tool}` needs approval ({decision.rule}), and {who}: it is for {describe_approvers(terms.approvers)}{chosen}"
        f"{clearance} to decide{others}."
    )


def _bounded(terms: Terms, decision: policy_model.PolicyDecision, times: ApprovalTimes) -> Terms:
    """An agent may have a time of its own where nobody names one, and a cap for every one."""
    seconds = terms.timeout_seconds
    if decision.own_time_limit is not None:
        seconds = min(times.token_ttl_seconds, decision.own_time_limit)
    elif decision.rule.startswith("default:"):
        # Whatever is shorter than the default was asked for by the job's own request.
        seconds = min(times.token_ttl_seconds, seconds)
    return replace(terms, timeout_seconds=min(seconds, times.max_ttl_seconds))

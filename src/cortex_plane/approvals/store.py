"""Approvals, their credentials, delegates and standing approvals in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from cortex_plane.approvals.model import approvals as approval_model
from cortex_plane.approvals.model.approvals import Approval, Channel, StandingApproval, Waiting
from cortex_plane.approvals.model.credentials import Token
from cortex_plane.approvals.rules.authority import Candidate
from cortex_plane.approvals.rules.decisions import ApprovalChange, Edit, LockedApproval
from cortex_plane.db.database import Database, Queries, Row, Transaction, ids, one
from cortex_plane.gates.model.gates import ShownAnswer
from cortex_plane.jobs.model.effects import REPEATS_OF_A_GRANT
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.fields import Risk, adapter, parse
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.policies import (
    ACTION_TYPES,
    Approvers,
    ChangeAction,
    ChangeDraft,
    PendingChange,
    Quorum,
    StoredChange,
    Terms,
    independent,
)
from cortex_plane.proof.model import SessionEvent, SignedReceipt
from cortex_plane.sessions import store as sessions_store
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, ActorKind, Fact, MacKind, Permission
from cortex_plane.tenancy.model.orgs import Role

queries = Queries("approvals")
CHANGE_RISK = Risk.HIGH
"""Of a change of rules: it decides about many calls."""


@dataclass(frozen=True, slots=True)
class Decider:
    id: UUID
    name: str
    roles: frozenset[Role]
    shaped_it: bool = False
    """They could decide had they not shaped the call."""


def person_of(actor: Actor, channel: Channel | None = None) -> dict[str, Any]:
    """The actor as the SQL function `approval_refusal` takes them."""
    person = actor.user_account_id if actor.kind is ActorKind.PERSON else None
    return {
        "id": str(person) if person else None,
        "name": actor.name,
        "roles": sorted(actor.roles),
        "clearance": actor.clearance,
        "settles": actor.may(Permission.JOB_SETTLE),
        "sees": str(actor.sees) if actor.sees else None,
        "channel": channel,
    }


def _terms(terms: Terms, owner_id: UUID | None, causes: Iterable[UUID]) -> dict[str, Any]:
    """Terms that no request has yet, as columns of `approval_request`."""
    return {
        "approvers": adapter(Approvers).dump_python(terms.approvers, mode="json"),
        "required_clearance": terms.required_clearance,
        "self_approval": terms.self_approval,
        "owner_id": str(owner_id) if owner_id else None,
        "causes": list(map(str, causes)),
        "delegated": [],
    }


async def list_inbox(
    tx: Transaction, actor: Actor, shown_at: datetime | None, after: UUID | None, skip: int, limit: int
) -> Waiting:
    person = person_of(actor)
    rows = await tx.rows(
        queries.list_inbox, actor.user_account_id if person["id"] else None, person["roles"], actor.clearance,
        person["settles"], actor.sees, shown_at, skip, limit, person, after,
    )  # fmt: skip
    entries = [(row["mine"], _to_approval(row)) for row in rows if row["id"] is not None]
    return Waiting(
        mine=[approval for mine, approval in entries if mine],
        others=[approval for mine, approval in entries if not mine],
        **{name: rows[0][name] for name in ("mine_total", "others_total", "arrived", "latest", "further")},
    )


async def list_settled(tx: Transaction, sees: UUID | None, limit: int) -> list[Approval]:
    return [_to_approval(row) for row in await tx.rows(queries.list_settled, sees, limit)]


def _to_approval(row: Row) -> Approval:
    """As a list shows it: of large arguments only their beginning."""
    approval = parse(Approval, row)
    return approval if row["excerpt"] is None else replace(approval, arguments=approval_model.Excerpt(row["excerpt"]))


async def get_approval(tx: Transaction, id: UUID, actor: Actor) -> tuple[Approval, datetime] | None:
    """As the actor sees it, with the database's time."""
    row = await tx.row(queries.get_approval, id, actor.sees, person_of(actor))
    return None if row is None else (parse(Approval, row["approval"]), row["now"])


async def approvals_by_id(tx: Transaction, ids: Sequence[UUID], actor: Actor) -> list[Approval]:
    """Those that the actor sees."""
    rows = await tx.rows(queries.approvals_by_id, ids, actor.sees, person_of(actor)) if ids else []
    return [parse(Approval, row["approval"]) for row in rows]


async def read_again(tx: Transaction, id: UUID, actor: Actor) -> Approval:
    """An approval that the actor has just changed, also where they do not see it any more."""
    return parse(Approval, await tx.value(queries.read_again, tx.org, id, person_of(actor)))


async def list_deciders(tx: Transaction, terms: Terms, owner_id: UUID | None, causes: Iterable[UUID]) -> list[Decider]:
    """Those who could decide under these terms, and those who could had they not shaped the call; by name."""
    return [
        Decider(row["id"], row["display_name"], frozenset(map(Role, row["roles"])), row["refusal"] is not None)
        for row in await tx.rows(queries.list_deciders, _terms(terms, owner_id, causes))
    ]


async def team_approvers(tx: Transaction, agent_id: UUID) -> list[UUID]:
    """The approvers in the agent's team, or in its parent where the team has none."""
    return [row["id"] for row in await tx.rows(queries.team_approvers, agent_id)]


async def deciders_of_approval(tx: Transaction, id: UUID, limit: int | None = None) -> list[Decider]:
    """Those who could decide it now, by name."""
    rows = await tx.rows(queries.deciders_of_approval, tx.org, id, limit)
    return [Decider(row["id"], row["display_name"], frozenset(map(Role, row["roles"]))) for row in rows]


async def refusal_under_terms(
    tx: Transaction, terms: Terms, owner_id: UUID | None, causes: Iterable[UUID], actor: Actor
) -> str | None:
    """Why the actor could not approve a call under these terms, as a code."""
    person = actor.user_account_id if actor.kind is ActorKind.PERSON else None
    code: str | None = await tx.value(
        queries.refusal_under_terms, _terms(terms, owner_id, causes), person, sorted(actor.roles), actor.clearance
    )  # fmt: skip
    return code


async def find_joinable(tx: Transaction, session_id: UUID, request: approval_model.NewRequest) -> Row | None:
    """Id and causes of the same call that somebody is being asked about already."""
    return await tx.row(
        queries.find_joinable, session_id, request.tool_name, bytes.fromhex(request.input_hash), request.terms_hash()
    )


async def lock_attempt(
    tx: Transaction, job_id: UUID, worker_id: UUID, epoch: int, number: int, read_to: int
) -> Row | None:
    return await tx.row(queries.lock_attempt, job_id, worker_id, epoch, number, read_to)


async def insert_approval(
    tx: Transaction,
    request: approval_model.NewRequest,
    job_id: UUID,
    agent_id: UUID,
    attempt: Mapping[str, Any],
    *,
    apart: bool = False,
) -> None:
    terms: Terms = request.terms
    asks = request.kind is approval_model.ApprovalKind.CALL
    now: datetime = attempt["now"]
    deadline = now + timedelta(seconds=terms.timeout_seconds) if asks else None
    remind = (
        deadline - timedelta(seconds=terms.reminder_seconds)
        if deadline is not None and terms.reminder_seconds and terms.reminder_seconds < terms.timeout_seconds
        else None
    )
    escalations = _escalations(terms, deadline)
    await tx.rows(
        queries.insert_approval, tx.org, request.id, request.kind, attempt["session_id"], job_id, agent_id,
        request.step_index, "tool_call", request.tool_name, request.tool_digest, request.tool_name,
        request.arguments.decode(), bytes.fromhex(request.input_hash), request.risk, request.summary,
        request.agent_says, request.asked_for, request.question, request.rule, request.policy_version,
        terms.template, terms.required_clearance, terms.timeout_seconds,
        adapter(Approvers).dump_python(terms.approvers, mode="json"), terms.on_deny, terms.self_approval,
        attempt["owner_id"], attempt["caused_by"], attempt["causes"],
        request.terms_hash(apart=apart), now, deadline, remind,
        request.call_id, adapter(Quorum).dump_python(terms.quorum, mode="json"),
        [adapter(Approvers).dump_python(approvers, mode="json") for _, approvers in escalations],
        [at for at, _ in escalations], list(terms.channels) if terms.channels is not None else None, terms.standing,
        terms.action, terms.details, attempt["caused"], request.rule_reason,
        adapter(list[ShownAnswer]).dump_python(list(request.gate_answers), mode="json"),
    )  # fmt: skip


async def person_behind(tx: Transaction, identity: UUID) -> UUID | None:
    """The member whom an identity stands for; None where that is not known."""
    person: UUID | None = await tx.value(queries.person_behind, tx.org, identity)
    return person


async def find_change(tx: Transaction, draft: ChangeDraft) -> tuple[PendingChange | None, bool]:
    """The same change if it waits already, without who may decide it; and whether approving it would have the same effect."""
    row = await tx.row(
        queries.find_change, draft.action, draft.target, draft.digest, draft.base,
        adapter(Approvers).dump_python(draft.approvers, mode="json"), draft.arguments.get("rows_digest"),
    )  # fmt: skip
    if row is None:
        return None, False
    change = PendingChange(approval_id=row["approval_id"], deadline=row["deadline"], deciders=[], created=False)
    return change, row["is_same"]


async def insert_change(
    tx: Transaction, actor: Actor, draft: ChangeDraft, causes: Sequence[approval_model.Cause]
) -> PendingChange:
    """A request about a change, with its file; who may decide it is left out."""
    terms, id = draft.terms, new_id()
    deadline = await tx.value(
        queries.insert_change, tx.org, id, ACTION_TYPES[draft.action], draft.action, draft.target,
        canonical(draft.arguments).decode(), bytes.fromhex(draft.input_hash), CHANGE_RISK, draft.summary, draft.question, draft.rule,
        terms.template, terms.required_clearance, terms.timeout_seconds,
        adapter(Approvers).dump_python(terms.approvers, mode="json"), actor.identity,
        [cause.member_id for cause in causes if cause.member_id is not None],
        [adapter(approval_model.Cause).dump_python(cause, mode="json") for cause in causes], terms.reminder_seconds,
        draft.source, draft.name, draft.digest, draft.base, draft.note, actor.name, actor.identity,
    )  # fmt: skip
    return PendingChange(approval_id=id, deciders=[], deadline=deadline, created=True)


async def get_change(tx: Transaction, approval_id: UUID) -> StoredChange | None:
    return one(StoredChange, await tx.row(queries.get_change, approval_id))


async def cancel_changes(
    tx: Transaction, action: ChangeAction, target: str, besides: UUID | None, reason: str, only: UUID | None = None
) -> list[UUID]:
    """Ends the open requests about changes of this target, or one of them ``only``, but never ``besides``; their ids."""
    return ids(await tx.rows(queries.cancel_changes, tx.org, action, target, besides, reason, only))


def _escalations(terms: Terms, deadline: datetime | None) -> list[tuple[datetime, Approvers]]:
    """The first so long before the deadline as the terms say, the others spread evenly over what is left."""
    before = terms.escalation_seconds
    if deadline is None or not before:
        return []
    window = before if before < terms.timeout_seconds else terms.timeout_seconds / 2
    step = window / len(terms.escalations) if terms.escalations else 0.0
    return [
        (deadline - timedelta(seconds=window - place * step), approvers)
        for place, approvers in enumerate(terms.escalations)
    ]


async def open_approval(
    tx: Transaction, id: UUID, actor: Actor | None = None, channel: Channel | None = None, key: str | None = None
) -> LockedApproval | None:
    """Locked, with the jobs that wait for it and their other open approvals."""
    row = await tx.row(queries.open_approval, tx.org, id, person_of(actor, channel) if actor else None, key)
    if row is None:
        return None
    record, cast_votes = row["approval"], row["cast_votes"]
    record["votes_for"] = sum(vote["decision"] == approval_model.Choice.APPROVED for vote in cast_votes)
    locked: LockedApproval = adapter(LockedApproval).validate_python({**record, **row})
    if cast_votes and locked.approval.status is approval_model.ApprovalStatus.PENDING:
        approval = replace(locked.approval, votes_for=len(independent(locked.votes)))
        return replace(locked, approval=approval)
    return locked


async def change_approval(
    tx: Transaction, current: LockedApproval, change: ApprovalChange, *, edit: Edit | None, person: dict[str, Any] | None, choice: approval_model.Choice | None, reason: str | None, key: str | None,
    entries: Sequence[dict[str, Any]], events: Sequence[SessionEvent], facts: Sequence[Fact],
    receipt: SignedReceipt | None = None,
) -> dict[str, Any] | None:  # fmt: skip
    """Write what a decision or a deadline does. ``choice``: the vote of ``person``, where it counts. Returns what an edit makes of the
    causes of the approval, and of who may decide it."""
    approval = current.approval
    tx.has_events = tx.has_events or bool(events)
    change_row: dict[str, Any] | None = await tx.value(
        queries.change_approval, tx.org, approval.id, approval.version, approval.version + (edit is not None), change.status,
        edit.arguments.decode() if edit else None, bytes.fromhex(edit.input_hash) if edit else None,
        person, reason, choice, key,
        [{"id": str(id), "status": status, "error": error, "result": change.answer} for id, status, error in change.calls],
        float(current.grant_seconds),
        [{"id": str(j.id), "open": j.open, "status": j.status, "error": j.error} for j in change.jobs],
        [sibling.id for sibling in change.cancelled], list(entries),
        [kind for kind, _, _ in events], [job for _, job, _ in events], [data for _, _, data in events],
        [fact.action for fact in facts], [fact.body for fact in facts],
        [fact.job or approval.job_id for fact in facts], current.now,
        *((receipt.key_id, receipt.body, receipt.signature) if receipt else (None, None, None)),
    )  # fmt: skip
    return change_row


async def add_words(
    tx: Transaction, job_ids: Sequence[UUID], approval: Approval, actor: Actor, row: LockedApproval
) -> None:
    """What the models of these jobs are told of a yes with a reason."""
    hops = row.receipt.delegations if row.receipt is not None else []
    delegated = bool(hops) and hops[-1].to_member_id == actor.user_account_id
    words = {
        "approval_id": str(approval.id), "decision": approval.status, "tool": approval.tool_name,
        "operator": actor.name, "operator_id": str(actor.user_account_id), "reason": approval.resolution_reason,
        **({"delegated_from": hops[-1].from_member} if delegated else {}),
    }  # fmt: skip
    for id in job_ids:
        await sessions_store.add_operator_words(tx, id, canonical(words).decode(), actor)


async def escalate_approval(tx: Transaction, id: UUID, approvers: Approvers) -> int:
    """The level that it is at now."""
    level: int = await tx.value(
        queries.escalate_approval, tx.org, id, adapter(Approvers).dump_python(approvers, mode="json")
    )
    return level


async def record_reach(tx: Transaction, actor: Actor, id: UUID) -> list[Fact]:
    """Whoever may decide it now, and can be reached, hears of it. Returns what the trail says of those who were out of office: their
    part went on by itself."""
    return [
        Fact.of(
            actor, "approval_delegated", approval=str(id), automatic=True, reason=hop["reason"],
            **{"from": str(hop["from_member_id"]), "from_name": hop["from_member"], "to": str(hop["to_member_id"])},
            name=hop["to_member"], to_clearance=hop["to_clearance"],
        )
        for hop in await tx.rows(queries.record_reach, tx.org, id)
    ]  # fmt: skip


async def cancel_approvals(tx: Transaction, job_ids: Sequence[UUID], reason: str) -> Sequence[Row]:
    """Ends the open approvals of these jobs; those that others wait for stay open."""
    return await tx.rows(queries.cancel_approvals, tx.org, list(job_ids), reason)


async def is_unasked(tx: Transaction, job_id: UUID, call_id: UUID) -> bool:
    """Whether people let an uncertain call be sent, and nobody is asked whether it happened."""
    return bool(await tx.value(queries.is_unasked, job_id, call_id))


async def count_repeats(tx: Transaction, call_id: UUID) -> int:
    """How often somebody answered that a call did not happen."""
    return int(await tx.value(queries.count_repeats, tx.org, call_id))


CALLBACK = "callback"
"""The purpose of the secrets that sign links."""


async def open_token(db: Database, token_hash: bytes) -> tuple[Token, Actor | None] | None:
    """What a token decides, and who it was sent to; None where there is no such person any more. Raises ``Forged`` where its
    row is not the plane's."""
    key = db.credential_key
    lookup = key.lookup(token_hash)
    rows = await db.call("open_approval_token", None, lookup)
    if not rows:
        return None
    (row,) = rows
    key.require(MacKind.APPROVAL_TOKEN, {**row, "user_account_id": row["member_id"], "token_hash": lookup}, row["mac"])
    return parse(Token, row), credential_person(row, row["id"])


def credential_person(row: Row, credential_id: UUID) -> Actor | None:
    """The person that a token or a link names, where there still is one."""
    if not row["active"]:
        return None
    return tenancy_store.session_person(row["org_id"], credential_id, row["member_id"], row["name"], row)


TokenRow = tuple[UUID, UUID, UUID, UUID | None, bytes, int, str, datetime, bytes]


async def insert_tokens(tx: Transaction, rows: Sequence[TokenRow]) -> None:
    if rows:
        await tx.rows(queries.insert_tokens, tx.org, *map(list, zip(*rows, strict=True)))


async def insert_standing(tx: Transaction, standing: StandingApproval, agent_id: UUID) -> None:
    required = adapter(approval_model.GrantedUnder).dump_python(standing.required, mode="json")
    await tx.rows(
        queries.insert_standing, tx.org, standing.id, standing.session_id, agent_id, standing.tool_name,
        standing.tool_digest, bytes.fromhex(standing.input_hash) if standing.input_hash else None, standing.condition,
        standing.max_calls, standing.expires_at, standing.granted_by, standing.granted_by_id, standing.approval_id, required,
        standing.reason, standing.created_at,
    )  # fmt: skip


async def standing_candidates(
    tx: Transaction, session_id: UUID, tool_name: str, tool_digest: str, input_hash: str, call_id: UUID
) -> Sequence[tuple[StandingApproval, Row]]:
    """Those of the session that may cover this call, with whether it was counted before and how new its giver's row is."""
    rows = await tx.rows(
        queries.standing_candidates, session_id, tool_name, tool_digest, input_hash, call_id, REPEATS_OF_A_GRANT
    )
    return [(parse(StandingApproval, row), row) for row in rows]


async def list_granters(
    tx: Transaction, ids: Sequence[UUID], job_id: UUID, read_to: int, askers: Sequence[UUID], terms: Terms
) -> dict[UUID, Candidate]:
    """By standing approval, whoever gave it, with why they could not approve a call of this job under these terms."""
    rows = await tx.rows(queries.list_granters, list(ids), job_id, read_to, list(askers), _terms(terms, None, ()))
    return {row["id"]: parse(Candidate, row["granter"]) for row in rows}

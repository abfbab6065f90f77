"""Approvals in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from cortex_plane.approvals.model.approvals import (
    Approval,
    ApprovalEvent,
    ApprovalKind,
    ApprovalStatus,
    Channel,
    Choice,
    Delegation,
    Excerpt,
    NewRequest,
    Vote,
    Waiting,
)
from cortex_plane.approvals.rules.deciders import ApprovalEnd, LockedApproval, may_decide_at_all
from cortex_plane.db.database import Database, Queries, Row, Transaction, after, page
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.kernel.values import adapter, parse
from cortex_plane.policies.model.policies import Approvers, Quorum, Terms
from cortex_plane.proof.model import Fact
from cortex_plane.proof.rules.receipts import Decided
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.orgs import Role

queries = Queries(__file__)

SHORTEST_GRANT_SECONDS = 3600
"""A grant lives as long as people had to give it, but long enough for a busy worker to use it."""

SessionEvent = tuple[str, UUID | None, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Decider:
    id: UUID
    name: str
    roles: frozenset[Role]


# Reading ---------------------------------------------------------------------------------------------------------


async def list_page(
    tx: Transaction,
    position: Position | None,
    limit: int,
    sees: UUID | None,
    status: ApprovalStatus | None,
    job_id: UUID | None,
    session_id: UUID | None,
) -> Page[Approval]:
    rows = await tx.rows(queries.list_page, *after(position), limit + 1, sees, status, job_id, session_id)
    return page(Approval, rows, limit)


async def inbox(
    tx: Transaction, actor: Actor, sees: UUID | None, shown_at: datetime | None, skip: int, limit: int
) -> Waiting:
    person = actor.user_account_id if may_decide_at_all(actor) else None
    rows = await tx.rows(
        queries.inbox, person, sorted(actor.roles), actor.clearance, actor.may(Permission.JOB_SETTLE), sees,
        shown_at, skip, limit,
    )  # fmt: skip
    listed = [(row["mine"], _listed(row)) for row in rows if row["id"] is not None]
    return Waiting(
        mine=[each for mine, each in listed if mine],
        others=[each for mine, each in listed if not mine],
        **{name: rows[0][name] for name in ("mine_total", "others_total", "arrived", "latest")},
    )


async def settled(tx: Transaction, sees: UUID | None, limit: int) -> list[Approval]:
    return [_listed(row) for row in await tx.rows(queries.settled, sees, limit)]


def _listed(row: Row) -> Approval:
    """As a list shows it: of large arguments only their beginning."""
    listed = parse(Approval, row)
    return listed if row["excerpt"] is None else replace(listed, arguments=Excerpt(row["excerpt"]))


async def get(tx: Transaction, id: UUID, sees: UUID | None) -> tuple[Approval, datetime] | None:
    """With the database's time."""
    row = await tx.row(queries.get, id, sees)
    return None if row is None else (parse(Approval, row), row["now"])


async def of_call(tx: Transaction, call_id: UUID) -> UUID | None:
    id: UUID | None = await tx.value(queries.of_call, call_id)
    return id


async def votes(tx: Transaction, id: UUID) -> list[Vote]:
    return [parse(Vote, row) for row in await tx.rows(queries.votes, id)]


async def events(tx: Transaction, id: UUID) -> list[ApprovalEvent]:
    return [parse(ApprovalEvent, row) for row in await tx.rows(queries.events, id)]


async def similar(tx: Transaction, id: UUID, tool_name: str) -> list[Approval]:
    return [parse(Approval, row) for row in await tx.rows(queries.similar, id, tool_name)]


async def deciders(
    tx: Transaction,
    approvers: Approvers,
    clearance: int,
    owner_id: UUID | None,
    not_these: Sequence[UUID],
    limit: int | None = None,
) -> list[Decider]:
    """Those who could decide now, by name."""
    rows = await tx.rows(
        queries.deciders, owner_id, approvers.owner, list(approvers.roles), list(approvers.members),
        clearance, list(not_these), limit,
    )  # fmt: skip
    return [Decider(row["id"], row["display_name"], frozenset(map(Role, row["roles"]))) for row in rows]


async def tied_causes(tx: Transaction, ids: Sequence[UUID], member_id: UUID) -> dict[UUID, str]:
    """Of these requests those that a member cannot approve because a cause could be the same human, with its name."""
    return {r["id"]: r["name"] for r in await tx.rows(queries.tied_causes, tx.org, list(ids), member_id)}


async def delegations(tx: Transaction, id: UUID) -> list[Delegation]:
    return [parse(Delegation, row) for row in await tx.rows(queries.delegations, id)]


async def context(tx: Transaction, id: UUID) -> Row | None:
    """What a policy looks at besides the call itself, and the schema of the call's tool."""
    return await tx.row(queries.context, id)


# Asking ----------------------------------------------------------------------------------------------------------


async def lock_attempt(
    tx: Transaction, job_id: UUID, worker_id: UUID, epoch: int, number: int, read_to: int
) -> Row | None:
    return await tx.row(queries.lock_attempt, job_id, worker_id, epoch, number, read_to)


async def origin(tx: Transaction, job_id: UUID, read_to: int, askers: Sequence[UUID]) -> Row | None:
    return await tx.row(queries.origin, job_id, read_to, list(askers))


async def rule_changes(tx: Transaction, call_id: UUID) -> Row | None:
    """By which terms a call was asked for first, and who changed since what may change them."""
    return await tx.row(queries.rule_changes, call_id)


async def joinable(tx: Transaction, session_id: UUID, request: NewRequest) -> Row | None:
    """Id and causes of the same call that somebody is being asked about already."""
    return await tx.row(
        queries.joinable,
        session_id,
        request.tool_name,
        bytes.fromhex(request.input_hash),
        request.terms_hash(),
    )


async def join(
    tx: Transaction, id: UUID, request: NewRequest, job_id: UUID, attempt: Mapping[str, Any]
) -> None:
    await tx.rows(queries.join, tx.org, id, request.call_id, job_id, attempt["causes"], attempt["caused"])


async def insert(
    tx: Transaction,
    request: NewRequest,
    job_id: UUID,
    agent_id: UUID,
    attempt: Mapping[str, Any],
    *,
    apart: bool = False,
) -> None:
    terms: Terms = request.terms
    asks = request.kind is ApprovalKind.CALL
    now: datetime = attempt["now"]
    deadline = now + timedelta(seconds=terms.timeout_seconds) if asks else None
    remind = (
        deadline - timedelta(seconds=terms.reminder_seconds)
        if deadline is not None and terms.reminder_seconds and terms.reminder_seconds < terms.timeout_seconds
        else None
    )
    escalations = _escalations(terms, deadline)
    await tx.rows(
        queries.insert, tx.org, request.id, request.kind, attempt["session_id"], job_id, agent_id,
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
        terms.action, terms.details, attempt["caused"],
    )  # fmt: skip


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


# Deciding --------------------------------------------------------------------------------------------------------


async def open_one(
    tx: Transaction, id: UUID, actor: Actor | None = None, channel: Channel | None = None
) -> LockedApproval | None:
    """Locked, with the jobs that wait for it and their other open approvals; and who else the one who decides could be."""
    row = await tx.row(queries.open_one, tx.org, id, actor.user_account_id if actor else None, channel)
    return None if row is None else parse(LockedApproval, row)


async def close_one(
    tx: Transaction,
    opened: LockedApproval,
    closing: ApprovalEnd,
    *,
    version: int,
    arguments: bytes | None,
    input_hash: str | None,
    actor: Actor | None,
    choice: Choice | None,
    reason: str | None,
    channel: Channel | None,
    key: str | None,
    happened: Sequence[dict[str, Any]],
    events: Sequence[SessionEvent],
    facts: Sequence[Fact],
) -> Decided | None:
    """Returns what a receipt says of it, where somebody decided: read here, it costs no way of its own."""
    request = opened.approval
    tx.told = tx.told or bool(events)
    decided = await tx.value(
        queries.close_one, tx.org, request.id, request.version, version, closing.status,
        arguments.decode() if arguments is not None else None,
        bytes.fromhex(input_hash) if input_hash is not None else None,
        actor.user_account_id if actor else None, actor.name if actor else None, reason, channel, choice, key,
        [{"id": str(id), "status": status, "error": error} for id, status, error in closing.calls],
        float(max(request.timeout_seconds, SHORTEST_GRANT_SECONDS)),
        [{"id": str(j.id), "open": j.open, "status": j.status, "error": j.error} for j in closing.jobs],
        [sibling.id for sibling in closing.cancelled], list(happened),
        [kind for kind, _, _ in events], [job for _, job, _ in events], [data for _, _, data in events],
        [fact.action for fact in facts], [fact.body for fact in facts],
        [fact.job or request.job_id for fact in facts],
    )  # fmt: skip
    return None if decided is None else parse(Decided, decided)


async def vote_one(
    tx: Transaction,
    opened: LockedApproval,
    *,
    version: int,
    arguments: bytes | None,
    input_hash: str | None,
    actor: Actor,
    reason: str | None,
    channel: Channel,
    key: str | None,
    happened: Sequence[dict[str, Any]],
    events: Sequence[SessionEvent],
    facts: Sequence[Fact],
    counts: bool,
) -> None:
    """``counts``: whether it is a vote, or only an edit."""
    request = opened.approval
    tx.told = tx.told or bool(events)
    await tx.rows(
        queries.vote_one, tx.org, request.id, request.version, version,
        arguments.decode() if arguments is not None else None,
        bytes.fromhex(input_hash) if input_hash is not None else None,
        actor.user_account_id, actor.name, reason, channel, key, list(happened), [kind for kind, _, _ in events], [job for _, job, _ in events],
        [data for _, _, data in events], [fact.action for fact in facts], [fact.body for fact in facts], counts,
    )  # fmt: skip


async def delegate(
    tx: Transaction, id: UUID, actor: Actor, to: UUID, name: str, clearance: int, reason: str | None
) -> None:
    await tx.rows(
        queries.delegate, tx.org, id, actor.user_account_id, actor.name, to, name, clearance, reason
    )


async def escalate(tx: Transaction, id: UUID, approvers: Approvers) -> int:
    """The level that it is at now."""
    level: int = await tx.value(
        queries.escalate, tx.org, id, adapter(Approvers).dump_python(approvers, mode="json")
    )
    return level


async def reach(tx: Transaction, id: UUID) -> Sequence[Row]:
    """Tell everybody who may decide it now; returns the hops of those who are out of office."""
    return await tx.rows(queries.reach, tx.org, id)


async def twin(tx: Transaction, id: UUID, input_hash: str) -> UUID | None:
    other: UUID | None = await tx.value(queries.twin, id, bytes.fromhex(input_hash))
    return other


async def with_key(tx: Transaction, id: UUID, key: str) -> Row | None:
    """What was recorded under this idempotency key."""
    return await tx.row(queries.with_key, id, key)


async def record_event(
    tx: Transaction,
    id: UUID,
    event_type: str,
    channel: Channel | None,
    actor: Actor,
    payload: dict[str, Any],
) -> None:
    await tx.rows(
        queries.record_event,
        tx.org,
        id,
        event_type,
        channel,
        actor.user_account_id,
        actor.name,
        None,
        payload,
    )


async def record_vain(
    tx: Transaction,
    id: UUID,
    event_type: str,
    channel: Channel,
    actor: Actor,
    payload: dict[str, Any],
    most: int,
) -> int:
    """A decision that decided nothing: ``most`` rows of a kind for each person, and one that counts the rest. Returns how
    many there were before."""
    rows: int = await tx.value(
        queries.record_vain, tx.org, id, event_type, channel, actor.user_account_id, actor.name, payload, most
    )
    return rows


async def cancel(tx: Transaction, job_ids: Sequence[UUID], reason: str) -> Sequence[Row]:
    """Ends the open approvals of these jobs; those that others wait for stay open."""
    return await tx.rows(queries.cancel, tx.org, list(job_ids), reason)


async def remind(tx: Transaction, id: UUID) -> bool:
    return await tx.value(queries.remind, id) is not None


async def of_uncertain(tx: Transaction, job_id: UUID, call_id: UUID) -> UUID | None:
    id: UUID | None = await tx.value(queries.of_uncertain, job_id, call_id)
    return id


async def is_unasked(tx: Transaction, job_id: UUID, call_id: UUID) -> bool:
    """Whether people let an uncertain call be sent, and nobody is asked whether it happened."""
    return bool(await tx.value(queries.is_unasked, job_id, call_id))


async def answer(
    tx: Transaction,
    id: UUID,
    status: ApprovalStatus,
    actor: Actor,
    note: str | None,
    channel: Channel,
    verdict: str,
) -> bool:
    return (
        await tx.value(queries.answer, id, status, actor.user_account_id, actor.name, note, channel, verdict)
        is not None
    )


async def vote_answer(
    tx: Transaction,
    opened: LockedApproval,
    actor: Actor,
    note: str | None,
    channel: Channel,
    answer: str,
    verdict: str,
) -> None:
    request = opened.approval
    await tx.rows(
        queries.vote_answer, tx.org, request.id, request.version, actor.user_account_id, actor.name, note, channel, answer,
        verdict,
    )  # fmt: skip


async def repeats(tx: Transaction, call_id: UUID) -> int:
    """How often somebody answered that a call did not happen."""
    return int(await tx.value(queries.repeats, tx.org, call_id))


# Deadlines -------------------------------------------------------------------------------------------------------


async def due(db: Database, limit: int) -> list[tuple[UUID, UUID, datetime]]:
    """What a scheduler must look at, in the order of its deadlines, across orgs."""
    return [(r["org_id"], r["id"], r["due"]) for r in await db.call("find_due_approvals", None, limit)]


async def take(tx: Transaction, id: UUID) -> bool:
    """False: another scheduler acts on it at this moment."""
    return bool(await tx.value(queries.take, id))

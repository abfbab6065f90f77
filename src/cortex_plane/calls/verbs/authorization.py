"""The verdict about one call: gates, policies and standing approvals."""

from __future__ import annotations

from collections.abc import Sequence

from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import RequestedCall
from cortex_plane.calls.rules.pipeline import CallVerdict, facts_by, gate_call, judge_call
from cortex_plane.calls.store import CallContext
from cortex_plane.calls.verbs.earlier_approvals import cover_call
from cortex_plane.db.database import Database, at_hand
from cortex_plane.gates.model.atlases import AtlasPolicyType
from cortex_plane.gates.model.gates import GatedCall, Ruling
from cortex_plane.gates.rules.authorization import Authorization
from cortex_plane.gates.rules.session import GateSession, record_of
from cortex_plane.gates.verbs import session_gates
from cortex_plane.kernel.errors import Conflict, CortexError
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.policies.verbs.policy_cache import book, request_rows
from cortex_plane.tenancy.model.access import Actor


async def policy_verdict(
    db: Database, context: CallContext, call: RequestedCall, ruling: Ruling | None = None, asks: Sequence[str] = ()
) -> Authorization:
    """The stricter one of policies and gates (``ruling``), of a call that runs elsewhere."""
    org_id, version, skills = context.org_id, context.policies, context.skills
    policies = await at_hand(db, book.known(org_id, version), lambda db: book.at(db, org_id, version))
    reads = call.read_only and call.name not in skills.side_effect_tools
    return judge_call(
        policies, context, call, request_rows(context.request_policies), read_only=reads, is_claim=True, ruling=ruling,
        refused_before=context.turned_down, asks=asks, only=skills.tools,
    )  # fmt: skip


async def cover_external(
    db: Database, actor: Actor, context: CallContext, call: RequestedCall, verdict: CallVerdict
) -> CallVerdict:
    """With the standing approval that covers it, if there is one."""
    verdict.answer, verdict.notes = await cover_call(
        db, context, call, verdict.answer, facts_by(actor), read_only=call.read_only, askers=context.askers
    )
    return verdict


async def decide_call(
    db: Database, actor: Actor, context: CallContext, call: RequestedCall, *, approved: bool = False, again: bool = False,
    covering: bool = False, seen_before: bool = False,
) -> CallVerdict:  # fmt: skip
    """``again``: it was sent before. ``covering``: a standing approval may speak for a person. ``seen_before``: it was
    authorised before, and what gates had to tell of it they told then. Raises `GateClosed` where the agent must answer
    first; what gates remember of that is written."""
    gates = await session_gates.of_agent(db, context.org_id, context.bound, context.at)
    if gates is None:
        answer = await policy_verdict(db, context, call)
        verdict = CallVerdict(answer=answer, again=again)
    else:
        gated_call = gate_call(call, approved=approved, seen_before=seen_before)
        ruling = gates.judge_sent(gated_call, records=True) if again else gates.judge(gated_call)
        await _require_open(db, actor, context, gates, gated_call, ruling)
        answer = await policy_verdict(db, context, call, ruling)
        verdict = CallVerdict(answer=answer, gates=gates, ruling=ruling, again=again)
    return await cover_external(db, actor, context, call, verdict) if covering else verdict


async def preview_verdict(db: Database, actor: Actor, context: CallContext, call: RequestedCall) -> CallVerdict:
    """The same without a record. Raises `GateClosed` where the agent must answer first."""
    gates = await session_gates.of_agent(db, context.org_id, context.bound, context.at)
    ruling = None
    if gates is not None:
        gated_call = gate_call(call, approved=False, seen_before=False)
        ruling = gates.judge(gated_call)
        if (asks := gates.open_questions(ruling)) and gates.state.ended is None:
            raise gates.closed(gated_call.action, asks)
    answer = await policy_verdict(db, context, call, ruling)
    return await cover_external(db, actor, context, call, CallVerdict(answer=answer, ruling=ruling))


async def _require_open(
    db: Database, actor: Actor, context: CallContext, gates: GateSession, gated_call: GatedCall, ruling: Ruling
) -> None:
    """Nothing waits for the agent's answer, and no limit holds it up for now."""
    error: CortexError | None = None
    asks = gates.open_questions(ruling)
    if asks and gates.state.ended is None:
        error = gates.closed(gated_call.action, asks)
    elif ruling.verdict is PolicyVerdict.DENY and _passes_by(gates, gated_call.action, ruling):
        error = Conflict(
            f"`{gated_call.action}` was not let through: {ruling.reason}.",
            code="action_rate_limited",
            hint="Nothing is kept of it: send the same call again when the limit has room.",
        )
    if error is None:
        return
    async with db.transaction(actor.org_id) as tx:
        await calls_store.lock_asking(tx, context.job_id, is_open=True)
        await session_gates.write(tx, context.session_id, context.job_id, record_of(actor, gates.changes()))
    raise error


def _passes_by(gates: GateSession, action: str, ruling: Ruling) -> bool:
    """Whether a limit refused it that has room again by itself."""
    policies = gates.atlases.of_action(action).policies
    return any(f"atlas:{key}" == ruling.rule for key, own in policies if own.type is AtlasPolicyType.RATE_LIMIT)

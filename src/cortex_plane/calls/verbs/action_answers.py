"""What a resolution says about one action, and about all that an agent knows."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

from cortex_plane.agents import store as agents_store
from cortex_plane.calls.model import MAX_ACTIONS, ActionAnswer, RequestedCall, ResolutionRequest
from cortex_plane.calls.rules import answered, asked_first, limits_of, limits_of_all
from cortex_plane.calls.store import CallContext
from cortex_plane.calls.verbs.authorization import cover_external, gate_call, policy_verdict
from cortex_plane.calls.verbs.permissions import SLICE, denied_anyway, unasked
from cortex_plane.db.database import Database
from cortex_plane.gates.model.gates import GatedCall, Limit, Ruling
from cortex_plane.gates.rules.session import GateSession
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.policies import PolicyDecision
from cortex_plane.tenancy.model.access import Actor

_ASKED = "0" * 64
"""Stands for the digest of something that was only asked about."""


def requested_call(request: ResolutionRequest) -> RequestedCall:
    arguments = canonical(request.arguments)
    return RequestedCall(
        id=new_id(), name=request.action or "", digest=_ASKED, arguments=arguments,
        input_hash=hashlib.sha256(arguments).hexdigest(), read_only=False, risk=request.risk,
    )  # fmt: skip


async def answer_action(
    db: Database, actor: Actor, context: CallContext, gates: GateSession | None, call: RequestedCall
) -> tuple[list[ActionAnswer], list[Limit]]:
    """One call, as it would be made."""
    if gates is None:
        answer, _ = await cover_external(db, actor, context, call, await policy_verdict(db, context, call))
        return [answered(call.name, answer.decision, None, call.risk)], []
    gated_call = gate_call(call)
    ruling = gates.judge(gated_call)
    answer = await policy_verdict(db, context, call, ruling)
    answer, _ = await cover_external(db, actor, context, call, answer)
    action_answer = await _action_answer(db, context, gates, call, gated_call, ruling, answer.decision)
    return [action_answer], limits_of(gates.atlases, [(action_answer, ruling)])


async def _action_answer(
    db: Database, context: CallContext, gates: GateSession, call: RequestedCall, gated_call: GatedCall, ruling: Ruling, decision: PolicyDecision
) -> ActionAnswer:  # fmt: skip
    asks = asked_first(gates.atlases, gates.state, gated_call, ruling, context.at)
    if asks:
        decision = denied_anyway((await policy_verdict(db, context, call, unasked(ruling))).decision, decision)
    return answered(call.name, decision, ruling, ruling.risk, asks)


async def answer_every_action(
    db: Database, context: CallContext, gates: GateSession | None, request: ResolutionRequest
) -> tuple[list[ActionAnswer], list[Limit]]:
    """Every action that an atlas or the agent's own settings name, whatever its arguments."""
    skills = context.skills
    names = dict.fromkeys(gates.atlases.known_actions if gates is not None else ())
    names.update(dict.fromkeys(sorted({*(skills.tools or ()), *skills.side_effect_tools})))
    if not names:
        raise InvalidInput(
            "Neither an atlas nor the agent's settings name any action.",
            field="action",
            hint="Name the one that you want to know about in `action`.",
        )
    rulings, answers = [], []
    actions = list(names)[:MAX_ACTIONS]
    async with db.transaction(context.org_id) as tx:
        risks = await agents_store.known_risks(tx, actions)
    for number, action in enumerate(actions):
        if number % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        call = replace(requested_call(ResolutionRequest(risk=request.risk)), name=action)
        call = call.with_risk(risks.get(action))
        if gates is None:
            answers.append(answered(action, (await policy_verdict(db, context, call)).decision, None, call.risk))
            continue
        gated_call = GatedCall(action=action, arguments={}, input_hash="", risk=call.risk)
        ruling = gates.look(gated_call)
        decision = (await policy_verdict(db, context, call, ruling)).decision
        answers.append(await _action_answer(db, context, gates, call, gated_call, ruling, decision))
        rulings.append((answers[-1], ruling))
    if gates is None:
        return answers, []
    return answers, limits_of_all(gates.atlases, gates.state, rulings, context.at)

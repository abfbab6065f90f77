"""What a resolution says about one action, and about all that an agent knows."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

from cortex_plane.agents import store as agents_store
from cortex_plane.calls.model import (
    MAX_ACTIONS,
    ActionAnswer,
    ResolutionRequest,
)
from cortex_plane.calls.rules import (
    answered,
    asked_first,
    limits_of,
    limits_of_all,
)
from cortex_plane.calls.store import CallContext
from cortex_plane.calls.verbs.authorization import covering_approval, gate_call, policy_verdict
from cortex_plane.calls.verbs.context import RequestedCall, skills_of
from cortex_plane.calls.verbs.permissions import SLICE, denied_anyway, unasked
from cortex_plane.db.database import Database
from cortex_plane.gates.model.gates import (
    GatedCall,
    Limit,
    Ruling,
)
from cortex_plane.gates.rules.evaluation import judge
from cortex_plane.gates.rules.external import ExternalGates
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
        id=new_id(), tool=request.action or "", digest=_ASKED, arguments=arguments,
        input_hash=hashlib.sha256(arguments).hexdigest(), read_only=False, risk=request.risk,
    )  # fmt: skip


async def answer_action(
    db: Database, actor: Actor, given: CallContext, looked: ExternalGates | None, wanted: RequestedCall
) -> tuple[list[ActionAnswer], list[Limit]]:
    """One call, as it would be made."""
    if looked is None:
        answer, _ = await covering_approval(db, actor, given, wanted, await policy_verdict(db, given, wanted))
        return [answered(wanted.tool, answer.decision, None, wanted.risk)], []
    call = gate_call(wanted)
    ruling = looked.judged(call)
    answer = await policy_verdict(db, given, wanted, ruling)
    answer, _ = await covering_approval(db, actor, given, wanted, answer)
    told = await _told(db, given, looked, wanted, call, ruling, answer.decision)
    return [told], limits_of(looked.atlases, [(told, ruling)])


async def _told(
    db: Database, given: CallContext, looked: ExternalGates, wanted: RequestedCall, call: GatedCall, ruling: Ruling, decision: PolicyDecision
) -> ActionAnswer:  # fmt: skip
    asks = asked_first(looked.atlases, looked.state, call, ruling, given.at)
    if asks:
        decision = denied_anyway(
            (await policy_verdict(db, given, wanted, unasked(ruling))).decision, decision
        )
    return answered(wanted.tool, decision, ruling, ruling.risk, asks)


async def answer_every_action(
    db: Database, given: CallContext, looked: ExternalGates | None, request: ResolutionRequest
) -> tuple[list[ActionAnswer], list[Limit]]:
    """Every action that an atlas or the agent's own settings name, whatever its arguments."""
    skills = skills_of(given)
    named = dict.fromkeys(looked.atlases.known_actions if looked is not None else ())
    named.update(dict.fromkeys(sorted({*(skills.tools or ()), *skills.side_effect_tools})))
    if not named:
        raise InvalidInput(
            "Neither an atlas nor the agent's settings name any action.",
            field="action",
            hint="Name the one that you want to know about in `action`.",
        )
    ruled, answers = [], []
    actions = list(named)[:MAX_ACTIONS]
    async with db.transaction(given.org_id) as tx:
        known = await agents_store.known_risks(tx, actions)
    for number, action in enumerate(actions):
        if number % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        wanted = replace(requested_call(ResolutionRequest(risk=request.risk)), tool=action)
        wanted = wanted.known(replace(given, known_risk=known.get(action)))
        if looked is None:
            answers.append(
                answered(action, (await policy_verdict(db, given, wanted)).decision, None, wanted.risk)
            )
            continue
        call = GatedCall(action=action, arguments={}, input_hash="", risk=wanted.risk)
        ruling = looked.unloaded(call) or judge(looked.atlases, looked.state, call, given.at, looking=True)
        decision = (await policy_verdict(db, given, wanted, ruling)).decision
        answers.append(await _told(db, given, looked, wanted, call, ruling, decision))
        ruled.append((answers[-1], ruling))
    if looked is None:
        return answers, []
    return answers, limits_of_all(looked.atlases, looked.state, ruled, given.at)

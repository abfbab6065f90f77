"""The verdict about one call: gates, policies and standing approvals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from cortex_plane.approvals.verbs import standing_approvals
from cortex_plane.calls import store as calls_store
from cortex_plane.calls.store import CallContext
from cortex_plane.calls.verbs.context import RequestedCall, skills_of
from cortex_plane.db.database import Database, at_hand
from cortex_plane.gates.model.atlases import AtlasPolicyType, Gate
from cortex_plane.gates.model.gates import GatedCall, Ruling
from cortex_plane.gates.rules.authorization import Authorization, leaning_on
from cortex_plane.gates.rules.authorization import authorize as judge
from cortex_plane.gates.rules.external import ExternalGates
from cortex_plane.gates.rules.prompts import card
from cortex_plane.gates.verbs import session_gates
from cortex_plane.kernel.errors import Conflict, CortexError
from cortex_plane.policies.model.policies import PolicyDecision, PolicyVerdict
from cortex_plane.policies.verbs.policy_cache import book, request_rows
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor


async def policy_verdict(
    db: Database, context: CallContext, call: RequestedCall, ruling: Ruling | None = None
) -> Authorization:
    """What the policies say, and what gates said before them (``ruling``): the stricter of the two. That it only reads is its agent's claim: it counts where a row looks at it, and not by itself."""
    org_id, version = context.org_id, context.policies
    policies = await at_hand(db, book.known(org_id, version), lambda db: book.at(db, org_id, version))
    rows, facts = request_rows(context.request_policies), call.facts(context)
    skills = skills_of(context)
    if skills.tools is not None and call.tool not in skills.tools:
        return Authorization(PolicyDecision(verdict=PolicyVerdict.DENY, rule="not one of its agent's tools"))
    if call.tool in skills.side_effect_tools:
        facts = replace(facts, read_only=False)
    decision = judge(policies, facts, rows, turned_down=context.turned_down, ruling=ruling)
    if facts.read_only and decision.rule.startswith("default:"):
        facts = replace(facts, read_only=False)
        decision = judge(policies, facts, rows, turned_down=context.turned_down, ruling=ruling)
    return Authorization(decision)


async def covering_approval(
    db: Database, actor: Actor, context: CallContext, call: RequestedCall, answer: Authorization
) -> tuple[Authorization, list[Fact]]:
    """With a standing approval, where one covers it; and what to say of those whose receipts are not true."""
    terms = answer.decision.terms
    if answer.verdict is not PolicyVerdict.REQUIRES_APPROVAL or terms is None or not terms.standing:
        return answer, []
    uncovered = standing_approvals.Uncovered(
        call_id=call.id, tool_name=call.tool, tool_digest=call.digest, input_hash=call.input_hash,
        facts=call.facts(context), terms=terms,
    )  # fmt: skip
    cover = await standing_approvals.cover(db, context, 0, uncovered, {}, db.vault, context.askers)
    notes = [
        Fact.of(actor, "receipt_refused", call=str(call.id), tool=call.tool, standing=str(standing), reason=why)
        for standing, why in cover.refused
    ]
    return (answer if cover.leaning is None else leaning_on(answer, cover.leaning)), notes


@dataclass(kw_only=True, slots=True)
class CallVerdict:
    """The answer to one call, with what must be written when it is acted on."""

    answer: Authorization
    gates: ExternalGates | None = None
    ruling: Ruling | None = None
    notes: list[Fact] = field(default_factory=list)
    again: bool = False

    @property
    def verdict(self) -> PolicyVerdict:
        return self.answer.verdict

    @property
    def reason(self) -> str:
        """Why gates refuse it; empty where policies do."""
        is_gates = self.ruling is not None and self.ruling.rule == self.answer.decision.rule
        return f": {self.ruling.reason}" if is_gates and self.ruling is not None and self.ruling.reason else ""

    @property
    def needed_a_person(self) -> bool:
        """Its gates, or a policy of its atlases, let it through because a person did."""
        return self.ruling is not None and (self.ruling.overrides or bool(self.ruling.people))

    @property
    def people(self) -> str | None:
        """What the card says about gates that a person passes by approving."""
        return asked_of_people(self.ruling.people) if self.ruling is not None else None

    def as_seen(self, call: RequestedCall) -> RequestedCall:
        """With the risk that its atlases give it."""
        return call if self.ruling is None else replace(call, risk=self.ruling.risk)

    def shown(self, call: RequestedCall) -> None:
        """People are asked with what is written now."""
        if self.gates is not None and self.ruling is not None:
            self.gates.shown(gate_call(call), self.ruling.people)

    def sent(self, call: RequestedCall, *, approved: bool = False) -> None:
        """It is sent with what is written now."""
        if self.gates is not None and not self.again:
            self.gates.sent(gate_call(call, approved=approved), call.id)

    def more(self, **others: Any) -> dict[str, Any] | None:
        if self.gates is None:
            return others or None
        seen = {"revision": self.gates.revision, "atlases": len(self.gates.atlases.atlases)}
        return others | {"gates": seen | self.gates.written}

    def facts(self, actor: Actor) -> list[Fact]:
        return [*(self.gates.facts(actor) if self.gates is not None else ()), *self.notes]

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        return self.gates.events if self.gates is not None else []


def asked_of_people(gates: Sequence[Gate]) -> str | None:
    """Whoever approves confirms all of it. What does not fit on a card was refused before."""
    return card(gates) or None


def gate_call(call: RequestedCall, *, approved: bool = False, seen_before: bool = False) -> GatedCall:
    return GatedCall(
        action=call.tool,
        arguments=orjson.loads(call.arguments),
        input_hash=call.input_hash,
        risk=call.risk,
        approved=approved,
        call_id=str(call.id),
        told=seen_before,
    )


async def decide_call(
    db: Database, actor: Actor, context: CallContext, call: RequestedCall, *, approved: bool = False, again: bool = False,
    covering: bool = False, seen_before: bool = False,
) -> CallVerdict:  # fmt: skip
    """``again``: it was sent before. ``covering``: a standing approval may speak for a person. ``seen_before``: it was authorised
    before, and what gates had to tell of it they told then.

    Raises `GateClosed` where the agent must answer first; what gates remember of that is written.
    """
    gates = await session_gates.of_agent(db, context)
    if gates is None:
        answer = await policy_verdict(db, context, call)
        verdict = CallVerdict(answer=answer, again=again)
    else:
        gated_call = gate_call(call, approved=approved, seen_before=seen_before)
        ruling = gates.judged_again(gated_call) if again else gates.judged(gated_call)
        await _require_open(db, actor, context, gates, gated_call, ruling)
        answer = await policy_verdict(db, context, call, ruling)
        verdict = CallVerdict(answer=answer, gates=gates, ruling=ruling, again=again)
    if covering:
        verdict.answer, verdict.notes = await covering_approval(db, actor, context, call, verdict.answer)
    return verdict


async def _require_open(
    db: Database, actor: Actor, context: CallContext, gates: ExternalGates, gated_call: GatedCall, ruling: Ruling
) -> None:
    """Nothing waits for the agent's answer, and no limit holds it up for now."""
    error: CortexError | None = None
    asks = ruling.asks or (gates.state.asks if ruling.verdict is PolicyVerdict.DENY else ())
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
        await session_gates.write(tx, actor, context.session_id, context.job_id, gates)
    raise error


def _passes_by(gates: ExternalGates, action: str, ruling: Ruling) -> bool:
    """Whether a limit refused it that has room again by itself."""
    return any(
        f"atlas:{key}" == ruling.rule
        for key, policy in gates.atlases.policies_of(action)
        if policy.type is AtlasPolicyType.RATE_LIMIT
    )

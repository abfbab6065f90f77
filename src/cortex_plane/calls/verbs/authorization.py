"""The verdict about one call: gates, policies and standing approvals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from cortex_plane.approvals.verbs import standing_approvals
from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import RequestedCall
from cortex_plane.calls.store import CallContext
from cortex_plane.db.database import Database, at_hand
from cortex_plane.gates.model.atlases import AtlasPolicyType
from cortex_plane.gates.model.gates import GatedCall, GateRecord, Ruling
from cortex_plane.gates.rules.authorization import Authorization, authorize, facts_of, is_unseen
from cortex_plane.gates.rules.prompts import card
from cortex_plane.gates.rules.session import GateSession, record_of
from cortex_plane.gates.verbs import session_gates
from cortex_plane.kernel.errors import Conflict, CortexError
from cortex_plane.policies.model.policies import PolicyDecision, PolicyVerdict
from cortex_plane.policies.verbs.policy_cache import book, request_rows
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor


async def policy_verdict(
    db: Database, context: CallContext, call: RequestedCall, ruling: Ruling | None = None, asks: Sequence[str] = ()
) -> Authorization:
    """The stricter one of policies and gates (``ruling``). That a call only reads is its agent's claim: it counts where a row
    looks at it, and not by itself."""
    org_id, version = context.org_id, context.policies
    policies = await at_hand(db, book.known(org_id, version), lambda db: book.at(db, org_id, version))
    rows, facts = request_rows(context.request_policies), facts_of(context, call, read_only=call.read_only)
    skills = context.skills
    if skills.tools is not None and call.name not in skills.tools:
        return Authorization(PolicyDecision(verdict=PolicyVerdict.DENY, rule="not one of its agent's tools"))
    if call.name in skills.side_effect_tools:
        facts = replace(facts, read_only=False)
    decision = authorize(policies, facts, rows, turned_down=context.turned_down, ruling=ruling, asks=asks)
    if facts.read_only and decision.rule.startswith("default:"):
        facts = replace(facts, read_only=False)
        decision = authorize(policies, facts, rows, turned_down=context.turned_down, ruling=ruling, asks=asks)
    return Authorization(decision)


async def cover_external(
    db: Database, actor: Actor, context: CallContext, call: RequestedCall, answer: Authorization
) -> tuple[Authorization, list[Fact]]:
    """With a standing approval where one covers the call, and the facts about those whose receipts are not true."""
    cover = await standing_approvals.cover(db, context, call, call.read_only, answer, db.vault, askers=context.askers)
    return cover.authorization, [Fact.of(actor, "receipt_refused", **refusal) for refusal in cover.refusals]


@dataclass(kw_only=True, slots=True)
class CallVerdict:
    """The answer to one call, with what must be written when it is acted on."""

    answer: Authorization
    gates: GateSession | None = None
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
    def is_unseen(self) -> bool:
        """A person must pass a gate that was not on the card when they approved it."""
        return is_unseen(self.ruling)

    @property
    def needed_a_person(self) -> bool:
        """Its gates, or a policy of its atlases, let it through because a person did."""
        return self.ruling is not None and (self.ruling.overrides or bool(self.ruling.people))

    def with_risk(self, call: RequestedCall) -> RequestedCall:
        """With the risk that its atlases give it."""
        return call if self.ruling is None else replace(call, risk=self.ruling.risk)

    def record(
        self, actor: Actor, call: RequestedCall | None = None, granted: bool = False, shown: RequestedCall | None = None
    ) -> GateRecord:
        """What a write holds of it. ``call``: the write sends it. ``shown``: it asks people about this one."""
        if self.gates is None:
            return GateRecord(facts=self.notes)
        changes = self.gates.changes(
            cards=[(gate_call(shown), self.ruling.people)] if shown is not None and self.ruling is not None else (),
            calls=[(call.id, gate_call(call, approved=granted))] if call is not None and not self.again else (),
        )
        record = record_of(actor, changes)
        return replace(record, facts=[*record.facts, *self.notes])

    def more(self, record: GateRecord, **others: Any) -> dict[str, Any] | None:
        if self.gates is None:
            return others or None
        seen = {"revision": self.gates.revision, "atlases": len(self.gates.atlases.atlases)}
        return others | {"gates": seen | record.written}


def people_card(ruling: Ruling | None) -> str | None:
    """What the card says about gates that the approver confirms. What does not fit on a card was refused before."""
    return (card(ruling.people) or None) if ruling is not None else None


def gate_call(call: RequestedCall, *, approved: bool = False, seen_before: bool = False) -> GatedCall:
    return GatedCall(
        action=call.name,
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
    if covering:
        verdict.answer, verdict.notes = await cover_external(db, actor, context, call, verdict.answer)
    return verdict


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

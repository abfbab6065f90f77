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
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.policies import PolicyDecision, PolicyVerdict
from cortex_plane.policies.verbs.policy_cache import book, request_rows
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor


async def policy_verdict(
    db: Database, given: CallContext, wanted: RequestedCall, ruling: Ruling | None = None
) -> Authorization:
    """What the policies say, and what gates said before them (``ruling``): the stricter of the two. That it only reads is its agent's claim: it counts where a row looks at it, and not by itself."""
    org_id, version = given.org_id, given.policies
    policies = await at_hand(db, book.known(org_id, version), lambda db: book.at(db, org_id, version))
    rows, facts = request_rows(given.request_policies), wanted.facts(given)
    skills = skills_of(given)
    if skills.tools is not None and wanted.tool not in skills.tools:
        return Authorization(
            new_id(), PolicyDecision(verdict=PolicyVerdict.DENY, rule="not one of its agent's tools")
        )
    if wanted.tool in skills.side_effect_tools:
        facts = replace(facts, read_only=False)
    decision = judge(policies, facts, rows, turned_down=given.turned_down, ruling=ruling)
    if facts.read_only and decision.rule.startswith("default:"):
        facts = replace(facts, read_only=False)
        decision = judge(policies, facts, rows, turned_down=given.turned_down, ruling=ruling)
    return Authorization(new_id(), decision)


async def covering_approval(
    db: Database, actor: Actor, given: CallContext, wanted: RequestedCall, answer: Authorization
) -> tuple[Authorization, list[Fact]]:
    """With a standing approval, where one covers it; and what to say of those whose receipts are not true."""
    terms = answer.decision.terms
    if answer.verdict is not PolicyVerdict.REQUIRES_APPROVAL or terms is None or not terms.standing:
        return answer, []
    uncovered = standing_approvals.Uncovered(
        call_id=wanted.id, tool_name=wanted.tool, tool_digest=wanted.digest, input_hash=wanted.input_hash,
        facts=wanted.facts(given), terms=terms,
    )  # fmt: skip
    cover = await standing_approvals.cover(db, given, 0, uncovered, {}, db.vault, given.askers)
    told = [
        Fact.of(
            actor,
            "receipt_refused",
            call=str(wanted.id),
            tool=wanted.tool,
            standing=str(standing),
            reason=why,
        )
        for standing, why in cover.refused
    ]
    return (answer if cover.leaning is None else leaning_on(answer, cover.leaning)), told


@dataclass(kw_only=True, slots=True)
class CallVerdict:
    """The answer to one call, with what must be written when it is acted on."""

    answer: Authorization
    looked: ExternalGates | None = None
    ruling: Ruling | None = None
    told: list[Fact] = field(default_factory=list)
    again: bool = False

    @property
    def verdict(self) -> PolicyVerdict:
        return self.answer.verdict

    @property
    def reason(self) -> str:
        """Why gates refuse it; empty where policies do."""
        is_gates = self.ruling is not None and self.ruling.rule == self.answer.decision.rule
        return (
            f": {self.ruling.reason}" if is_gates and self.ruling is not None and self.ruling.reason else ""
        )

    @property
    def needed_a_person(self) -> bool:
        """Its gates, or a policy of its atlases, let it through because a person did."""
        return self.ruling is not None and (self.ruling.overrides or bool(self.ruling.people))

    @property
    def people(self) -> str | None:
        """What the card says about gates that a person passes by approving."""
        return asked_of_people(self.ruling.people) if self.ruling is not None else None

    def as_seen(self, wanted: RequestedCall) -> RequestedCall:
        """With the risk that its atlases give it."""
        return wanted if self.ruling is None else replace(wanted, risk=self.ruling.risk)

    def shown(self, wanted: RequestedCall) -> None:
        """People are asked with what is written now."""
        if self.looked is not None and self.ruling is not None:
            self.looked.shown(gate_call(wanted), self.ruling.people)

    def sent(self, wanted: RequestedCall, *, approved: bool = False) -> None:
        """It is sent with what is written now."""
        if self.looked is not None and not self.again:
            self.looked.sent(gate_call(wanted, approved=approved), wanted.id)

    def more(self, **others: Any) -> dict[str, Any] | None:
        if self.looked is None:
            return others or None
        seen = {"revision": self.looked.revision, "atlases": len(self.looked.atlases.atlases)}
        return others | {"gates": seen | self.looked.written}

    def facts(self, actor: Actor) -> list[Fact]:
        return [*(self.looked.facts(actor) if self.looked is not None else ()), *self.told]

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        return self.looked.events if self.looked is not None else []


def asked_of_people(found: Sequence[Gate]) -> str | None:
    """Whoever approves confirms all of it. What does not fit on a card was refused before."""
    return card(found) or None


def gate_call(wanted: RequestedCall, *, approved: bool = False, told: bool = False) -> GatedCall:
    return GatedCall(
        action=wanted.tool,
        arguments=orjson.loads(wanted.arguments),
        input_hash=wanted.input_hash,
        risk=wanted.risk,
        approved=approved,
        call_id=str(wanted.id),
        told=told,
    )


async def decide_call(
    db: Database, actor: Actor, given: CallContext, wanted: RequestedCall, *, approved: bool = False, again: bool = False,
    covering: bool = False, told: bool = False,
) -> CallVerdict:  # fmt: skip
    """``again``: it was sent before. ``covering``: a standing approval may speak for a person. ``told``: it was authorised
    before, and what gates had to tell of it they told then.

    Raises `GateClosed` where the agent must answer first; what gates remember of that is written.
    """
    looked = await session_gates.of_agent(db, given)
    if looked is None:
        answer = await policy_verdict(db, given, wanted)
        found = CallVerdict(answer=answer, again=again)
    else:
        call = gate_call(wanted, approved=approved, told=told)
        ruling = looked.judged_again(call) if again else looked.judged(call)
        await _require_open(db, actor, given, looked, call, ruling)
        answer = await policy_verdict(db, given, wanted, ruling)
        found = CallVerdict(answer=answer, looked=looked, ruling=ruling, again=again)
    if covering:
        found.answer, found.told = await covering_approval(db, actor, given, wanted, found.answer)
    return found


async def _require_open(
    db: Database, actor: Actor, given: CallContext, looked: ExternalGates, call: GatedCall, ruling: Ruling
) -> None:
    """Nothing waits for the agent's answer, and no limit holds it up for now."""
    stopped: CortexError | None = None
    asks = ruling.asks or (looked.state.asks if ruling.verdict is PolicyVerdict.DENY else ())
    if asks and looked.state.ended is None:
        stopped = looked.closed(call.action, asks)
    elif ruling.verdict is PolicyVerdict.DENY and _passes_by(looked, call.action, ruling):
        stopped = Conflict(
            f"`{call.action}` was not let through: {ruling.reason}.",
            code="action_rate_limited",
            hint="Nothing is kept of it: send the same call again when the limit has room.",
        )
    if stopped is None:
        return
    async with db.transaction(actor.org_id) as tx:
        await calls_store.lock_asking(tx, given.job_id, is_open=True)
        await session_gates.write(tx, actor, given.session_id, given.job_id, looked)
    raise stopped


def _passes_by(looked: ExternalGates, action: str, ruling: Ruling) -> bool:
    """Whether a limit refused it that has room again by itself."""
    return any(
        f"atlas:{key}" == ruling.rule
        for key, policy in looked.atlases.policies_of(action)
        if policy.type is AtlasPolicyType.RATE_LIMIT
    )

"""Authorizes one call: gates, policies, standing approvals, and the request to people where they ask for it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

import orjson

from cortex_plane.agents.model.agents import SkillSettings
from cortex_plane.agents.model.tools import Risk, highest_risk
from cortex_plane.approvals.model.approvals import ApprovalKind, NewRequest
from cortex_plane.approvals.verbs import approval_requests, standing_approvals
from cortex_plane.approvals.verbs.approval_requests import Possible
from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import CallDraft, ExternalCall, advised
from cortex_plane.calls.store import CallContext, StoredCall
from cortex_plane.calls.verbs.external import not_external
from cortex_plane.db.database import Database, NestedDatabase, NotAtHand, at_hand
from cortex_plane.gates.model.atlases import AtlasPolicyType, Gate
from cortex_plane.gates.model.gates import GatedCall, Ruling
from cortex_plane.gates.rules.authorization import Authorization, leaning_on
from cortex_plane.gates.rules.authorization import authorize as judge
from cortex_plane.gates.rules.external import ExternalGates
from cortex_plane.gates.rules.prompts import card
from cortex_plane.gates.verbs import session_gates
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import AlreadyExists, Conflict, CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.policies import CallFacts, OnDeny, PolicyDecision, PolicyVerdict, Terms
from cortex_plane.policies.verbs.policy_cache import book, request_rows
from cortex_plane.proof.model import Fact
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.sessions import SessionKind
from cortex_plane.tenancy.model.access import Actor, ActorKind
from cortex_plane.tenancy.verbs.frame import require_found

T = TypeVar("T")

OVERTAKEN = frozenset({"policy_changed", "grant_refused", "gates_changed"})
"""What was decided by does not hold any more: it is decided again."""
RETRY = "retry"


TRIES = 5
"""Under the locks of the session: what still changes there, such as policies, changes seldom."""

_turns: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()
"""Of those who wait for the same session in this process one has a connection meanwhile, so that others have some too."""


async def retry_under_session_lock(
    db: Database, actor: Actor, act: Callable[[Database], Awaitable[T]], *, session: UUID | None = None,
    call: UUID | None = None,
) -> T:  # fmt: skip
    """Without a lock at first. Who was overtaken acts under the locks of the session, where nobody overtakes: of any number of
    requests at once each gets its answer. ``session`` or one of its calls says which."""
    try:
        return await _once(act, db)
    except Conflict as error:
        if error.code != RETRY:
            raise
    if session is None:
        session = (await read_call(db, actor, require_found(call, "call"))).call.session_id
    async with _turns.setdefault(session, asyncio.Lock()):
        for tries in range(TRIES):
            try:
                return await _under_locks(db, actor, session, act)
            except NotAtHand as missing:
                await missing.load(db)
            except Conflict as error:
                if error.code != RETRY or tries == TRIES - 1:
                    raise
    raise Conflict("What governs this session does not stay loaded.", code=RETRY, hint="Send it again.")


async def _once(act: Callable[[Database], Awaitable[T]], db: Database) -> T:
    try:
        return await act(db)
    except AlreadyExists as error:
        # The same key, or the same question, at the same moment: with the next try it is there.
        raise Conflict("Another request asks the same.", code=RETRY) from error
    except Conflict as error:
        if error.code in OVERTAKEN:
            raise Conflict(error.message, code=RETRY, hint="Send it again.") from error
        raise


async def _under_locks(
    db: Database, actor: Actor, session: UUID, act: Callable[[Database], Awaitable[T]]
) -> T:
    async with db.transaction(actor.org_id) as tx:
        # Before its job, as everywhere: what is decided here may end it.
        require_found(await sessions_store.lock_session(tx, session, call_sight(actor)), "session")
        job = await calls_store.list_session_calls(tx, session)
        if job is None:
            raise not_external()
        await calls_store.lock_asking(tx, job["id"], is_open=False)
        try:
            return await _once(act, NestedDatabase(db, tx))
        except CortexError as error:
            # What it wrote before it was refused stays, as it does without locks.
            refused = error
    raise refused


def call_sight(actor: Actor) -> UUID | None:
    """The plane's own scheduler sees every call, and asks for no permission."""
    return None if actor.kind is ActorKind.SCHEDULER else actor.sees


async def read_call(db: Database, actor: Actor, id: UUID) -> StoredCall:
    return require_found(await calls_store.read_call(db, actor.org_id, id, call_sight(actor)), "call")


def shown_call(kept: StoredCall, sender: str | None) -> ExternalCall:
    return advised(kept.call, is_sender=sender is not None and kept.sender == sender)


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestedCall:
    """A call, as policies and people look at it."""

    id: UUID
    tool: str
    digest: str
    arguments: bytes
    input_hash: str
    read_only: bool
    risk: Risk
    says: str | None = None

    @classmethod
    def of(cls, call: ExternalCall) -> RequestedCall:
        return cls(
            id=call.id, tool=call.tool, digest=call.tool_digest, arguments=canonical(call.arguments),
            input_hash=call.input_hash, read_only=call.read_only, risk=call.risk,
        )  # fmt: skip

    def known(self, given: CallContext) -> RequestedCall:
        """Of the risk that its agent declares and the one that is known of its tool, the higher counts."""
        if given.known_risk is None:
            return self
        return replace(self, risk=highest_risk(self.risk, given.known_risk))

    def facts(self, given: CallContext) -> CallFacts:
        return CallFacts(
            target=self.tool, arguments=orjson.loads(self.arguments), read_only=self.read_only, risk=self.risk,
            agent=given.agent, teams=tuple(given.teams), session_kind=SessionKind.EXTERNAL,
        )  # fmt: skip


def tool_digest(draft: CallDraft) -> str:
    """Names what was declared: a standing approval, a grant and an edit are for exactly this."""
    declared = {
        "name": draft.tool, "parameters": draft.parameters, "read_only": draft.read_only, "risk": draft.risk,
        "on_uncertain": draft.on_uncertain, "timeout_seconds": draft.timeout_seconds,
    }  # fmt: skip
    return hashlib.sha256(canonical(declared)).hexdigest()


async def call_context(
    db: Database, actor: Actor, session_id: UUID, key: str | None, tool: str, input_hash: str,
    *, asked_by: UUID | None = None, acts: bool = False,
) -> CallContext:  # fmt: skip
    """``asked_by``: the identity that asked for the call before, if that was another one. ``acts``: refused where an atlas of the session
    keeps the actor out."""
    acts_as = (actor.key_id, actor.user_account_id) if acts else None
    try:
        given = require_found(
            await calls_store.call_context(
                db, actor.org_id, session_id, call_sight(actor), key, tool, input_hash, acts_as
            ),
            "session",
        )
    except LookupError as error:
        raise not_external() from error
    asking_now = {actor.identity, asked_by or actor.identity}
    return replace(given, askers=sorted(asking_now))


async def policy_verdict(
    db: Database, given: CallContext, wanted: RequestedCall, ruling: Ruling | None = None
) -> Authorization:
    """What the policies say, and what gates said before them (``ruling``): the stricter of the two. That it only reads is its agent's claim: it counts where a row looks at it, and not by itself."""
    org_id, version = given.org_id, given.policies
    policies = await at_hand(db, book.known(org_id, version), lambda db: book.at(db, org_id, version))
    rows, facts = request_rows(given.request_policies), wanted.facts(given)
    skills = SkillSettings.of(given.skill_config)
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


def new_request(
    given: CallContext, wanted: RequestedCall, step_index: int, rule: str, terms: Terms, *, question: str | None = None,
    gate: str | None = None,
) -> NewRequest:  # fmt: skip
    """The card. ``question``: nobody knows whether it happened. ``gate``: what gates want a person to confirm."""
    wants = f"{given.agent} wants to call {wanted.tool}, elsewhere"
    doubts = f"Nobody knows whether {wanted.tool} of {given.agent} happened"
    return NewRequest(
        id=new_id(),
        kind=ApprovalKind.CALL if question is None else ApprovalKind.UNCERTAIN_EFFECT,
        call_id=wanted.id,
        step_index=step_index,
        tool_name=wanted.tool,
        tool_digest=wanted.digest,
        arguments=wanted.arguments,
        input_hash=wanted.input_hash,
        risk=wanted.risk,
        summary=wants if question is None else doubts,
        agent_says=wanted.says,
        asked_for=None,
        question=question or gate,
        rule=rule,
        policy_version=given.policies,
        terms=terms,
    )


async def terms_of(
    db: Database, given: CallContext, answer: Authorization, again: UUID | None = None
) -> Possible:
    """The terms as far as people can fulfil them. A no ends the call and not the session: its agent hears it and goes on."""
    if answer.decision.terms is None:
        raise AssertionError("who is to decide says the policy")
    possible = await approval_requests.feasible_terms(
        db, given, answer.decision.terms, 0, given.askers, again=again
    )
    if possible.terms is None:
        return possible
    times = SkillSettings.of(given.skill_config).approval
    terms = approval_requests.bounded(possible.terms, answer.decision.rule, times)
    return replace(possible, terms=replace(terms, on_deny=OnDeny.CONTINUE))


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

"""Resolutions of spec 5: an agent elsewhere asks, answers the gates, and executes; and its permissions."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.agents import SkillSettings
from cortex_plane.agents.model.tools import Risk, highest_risk, is_tool_name
from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import (
    APP,
    MAX_ACTIONS,
    ActionAnswer,
    AnswerDraft,
    AnswerReceipt,
    CallDraft,
    ExternalCall,
    OutcomeReceipt,
    Permissions,
    ReportDraft,
    Resolution,
    ResolutionRequest,
)
from cortex_plane.calls.rules import (
    answered,
    asked_first,
    asking,
    block_list,
    by_reference,
    decided,
    in_full,
    limits_of,
    limits_of_all,
    permissions_of,
)
from cortex_plane.calls.store import CallContext, Governed, Published, StoredResolution
from cortex_plane.calls.verbs import calls, external
from cortex_plane.calls.verbs.authorization import (
    RequestedCall,
    call_context,
    call_sight,
    covering_approval,
    gate_call,
    policy_verdict,
    retry_under_session_lock,
)
from cortex_plane.db.database import Database
from cortex_plane.gates.model.gates import (
    OF_THE_PLANE,
    Answered,
    GatedCall,
    Limit,
    Pass,
    Ruling,
    Shut,
    call_name,
)
from cortex_plane.gates.rules.answers import meant
from cortex_plane.gates.rules.authorization import authorize
from cortex_plane.gates.rules.evaluation import judge
from cortex_plane.gates.rules.external import ExternalGates
from cortex_plane.gates.verbs import session_gates
from cortex_plane.gates.verbs.atlas_cache import book as atlas_book
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, InvalidInput, NotFound
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.policies import CallFacts, PolicyDecision, PolicyVerdict
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.policies.verbs.policy_cache import book as policy_book
from cortex_plane.policies.verbs.policy_cache import request_rows
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.sessions import SessionKind
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb

UNUSED_KEPT = timedelta(days=1)
"""How long one is kept after it expired, where nothing was executed under it."""
USED_KEPT = timedelta(days=30)
"""How long it can be read where something was; which calls those were is kept."""
MAX_LIVE = 1000
"""Resolutions of one session that hold at the same time."""
FORGOTTEN_AT_ONCE = 1000
_ASKED = "0" * 64
"""Stands for the digest of something that was only asked about."""


# Asking ----------------------------------------------------------------------------------------------------------


@verb(Permission.JOB_SUBMIT)
async def resolve(db: Database, actor: Actor, session_id: UUID, request: ResolutionRequest) -> Resolution:
    """What may be done now, and what must be known and answered first. Gates and policies, and the stricter of the two."""
    if request.action is not None and not is_tool_name(request.action):
        raise InvalidInput(
            "`action` must be lower-case words with dots between, such as refunds.create.", field="action"
        )
    return await retry_under_session_lock(
        db, actor, lambda db: _resolve(db, actor, session_id, request), session=session_id
    )


async def _resolve(db: Database, actor: Actor, session_id: UUID, request: ResolutionRequest) -> Resolution:
    wanted = _wanted(request)
    given = await agent_context(db, actor, session_id, wanted.tool, wanted.input_hash)
    wanted = wanted.known(given)
    goal = hashlib.sha256(request.goal.encode()).digest() if request.goal else None
    looked = await session_gates.of_agent(db, given, inputs=await _new_goal(db, given, request.goal, goal))
    if looked is not None and request.request is not None:
        looked.requested(request.request)
    if request.action is not None:
        answer, limits = await _about(db, actor, given, looked, wanted)
        answers = [answer]
    else:
        answers, limits = await _about_all(db, given, looked, request.risk)
    ends = given.at + timedelta(seconds=request.ttl_seconds)
    window = Limit(kind="time_window", name="resolution", detail={"until": ends.isoformat()})
    made = Resolution(
        id=new_id(), session_id=session_id, trace_id=new_id(), decision=decided(answers),
        constraints=[window, *limits], expires_at=ends,
        allowed_actions=[each for each in answers if each.verdict is not PolicyVerdict.DENY],
        denied_actions=[each for each in answers if each.verdict is PolicyVerdict.DENY],
        contexts=block_list(looked.atlases, looked.state) if looked is not None else [],
        questions=looked.questions(looked.waiting) if looked is not None else [],
    )  # fmt: skip
    await _write_resolution(db, actor, given, looked, request, made, goal)
    return made


def _wanted(request: ResolutionRequest) -> RequestedCall:
    arguments = canonical(request.arguments)
    return RequestedCall(
        id=new_id(), tool=request.action or "", digest=_ASKED, arguments=arguments,
        input_hash=hashlib.sha256(arguments).hexdigest(), read_only=False, risk=request.risk,
    )  # fmt: skip


async def _new_goal(
    db: Database, given: CallContext, goal: str | None, digest: bytes | None
) -> tuple[str, ...]:
    """A goal is heard once in a session: whoever answered what its keywords asked names it again, and goes on."""
    if goal is None or digest is None or given.bound is None:
        return ()
    async with db.transaction(given.org_id) as tx:
        return () if await calls_store.list_messages_heard(tx, given.session_id, digest) else (goal,)


async def _about(
    db: Database, actor: Actor, given: CallContext, looked: ExternalGates | None, wanted: RequestedCall
) -> tuple[ActionAnswer, list[Limit]]:
    """One call, as it would be made."""
    if looked is None:
        answer, _ = await covering_approval(db, actor, given, wanted, await policy_verdict(db, given, wanted))
        return answered(wanted.tool, answer.decision, None, wanted.risk), []
    call = gate_call(wanted)
    ruling = looked.judged(call)
    answer = await policy_verdict(db, given, wanted, ruling)
    answer, _ = await covering_approval(db, actor, given, wanted, answer)
    told = await _told(db, given, looked, wanted, call, ruling, answer.decision)
    return told, limits_of(looked.atlases, [(told, ruling)])


async def _told(
    db: Database, given: CallContext, looked: ExternalGates, wanted: RequestedCall, call: GatedCall, ruling: Ruling, decision: PolicyDecision
) -> ActionAnswer:  # fmt: skip
    asks = asked_first(looked.atlases, looked.state, call, ruling, given.at)
    if asks:
        decision = denied_anyway(
            (await policy_verdict(db, given, wanted, unasked(ruling))).decision, decision
        )
    return answered(wanted.tool, decision, ruling, ruling.risk, asks)


async def _about_all(
    db: Database, given: CallContext, looked: ExternalGates | None, risk: Risk
) -> tuple[list[ActionAnswer], list[Limit]]:
    """Every action that an atlas or the agent's own settings name, whatever its arguments."""
    skills = SkillSettings.of(given.skill_config)
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
        own = highest_risk(risk, known.get(action))
        wanted = replace(_wanted(ResolutionRequest(risk=own)), tool=action)
        if looked is None:
            answers.append(answered(action, (await policy_verdict(db, given, wanted)).decision, None, own))
            continue
        call = GatedCall(action=action, arguments={}, input_hash="", risk=own)
        ruling = looked.unloaded(call) or judge(looked.atlases, looked.state, call, given.at, looking=True)
        decision = (await policy_verdict(db, given, wanted, ruling)).decision
        answers.append(await _told(db, given, looked, wanted, call, ruling, decision))
        ruled.append((answers[-1], ruling))
    if looked is None:
        return answers, []
    return answers, limits_of_all(looked.atlases, looked.state, ruled, given.at)


async def _write_resolution(
    db: Database, actor: Actor, given: CallContext, looked: ExternalGates | None, request: ResolutionRequest, made: Resolution,
    goal: bytes | None,
) -> None:  # fmt: skip
    pins: list[dict[str, Any]] = given.bound["atlases"] if given.bound is not None else []
    fact = Fact.of(
        actor, "resolution_given", resolution=str(made.id), trace_id=str(made.trace_id), decision=made.decision,
        tool=request.action, allowed=len(made.allowed_actions), denied=len(made.denied_actions),
        atlases=[pin["digest"] for pin in pins], expires_at=made.expires_at.isoformat(),
    )  # fmt: skip
    asked = {"action": request.action, "input_hash": hashlib.sha256(canonical(request.arguments)).hexdigest()}
    async with db.transaction(actor.org_id) as tx:
        await calls_store.lock_asking(tx, given.job_id, is_open=True)
        if await calls_store.count_live(tx, given.session_id, MAX_LIVE) >= MAX_LIVE:
            raise Conflict(
                f"{MAX_LIVE} resolutions of this session hold already.",
                code="too_many_resolutions",
                hint="Execute under one of them, wait until some expire, or resolve with a shorter `ttl_seconds`.",
            )
        await calls_store.insert_resolution(
            tx, by_reference(made), actor.identity, goal, asked, pins, given.at
        )
        if looked is None:
            await proof_store.append_to_session(tx, given.session_id, [fact], job=given.job_id)
        else:
            looked.trace_id = made.trace_id
            await session_gates.write(tx, actor, given.session_id, given.job_id, looked, [fact])


@verb(Permission.JOB_READ)
async def get_resolution(db: Database, actor: Actor, id: UUID) -> Resolution:
    """As it was given: for whoever asked, and for those who see the whole org."""
    kept = await _kept(db, actor, id, None if actor.sees is None else actor.identity)
    answer = require_found(kept.answer, "resolution")
    return in_full(await atlas_book.at(db, actor.org_id, kept.atlases), answer) if kept.atlases else answer


async def _kept(db: Database, actor: Actor, id: UUID, asker: UUID | None) -> StoredResolution:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await calls_store.get_resolution(tx, id, asker), "resolution")


# Acting under it -------------------------------------------------------------------------------------------------


@verb(Permission.JOB_SUBMIT)
async def execute_resolution(db: Database, actor: Actor, id: UUID, draft: CallDraft) -> ExternalCall:
    """Ask for a call that the resolution covers, and begin it where that is allowed: only then is anything used up."""
    kept = await _kept(db, actor, id, actor.identity)

    async def check(db: Database, given: CallContext, wanted: RequestedCall) -> None:
        if given.earlier is not None:
            await _require_own(db, actor, kept, given.earlier)
        else:
            await _require_covered(db, actor, kept, given, wanted)

    under = calls.ResolutionScope(kept.id, kept.expires_at, check)
    return await calls.authorize_in(db, actor, kept.session_id, replace(draft, dispatch=True), under)


async def _require_own(db: Database, actor: Actor, kept: StoredResolution, call_id: UUID) -> None:
    """A key that was used before goes on with its call under the same resolution, and under no other."""
    async with db.transaction(actor.org_id) as tx:
        under = await calls_store.list_resolved_calls(tx, call_id)
    if under != kept.id:
        raise Conflict(
            "This key stands for a call that was not executed under this resolution.",
            code="call_key_reused",
            hint="Send a new key with a new call, or go on with the call that the key stands for.",
        )


async def _require_covered(
    db: Database, actor: Actor, kept: StoredResolution, given: CallContext, wanted: RequestedCall
) -> None:
    if given.at >= kept.expires_at:
        raise calls.expired()
    now = given.bound["atlases"] if given.bound is not None else []
    if {pin["digest"] for pin in now} != {pin["digest"] for pin in kept.atlases}:
        raise Conflict(
            "The session is bound to other atlases than when this was resolved.",
            code="resolution_outdated",
            hint="Resolve again, and execute under the new one.",
        )
    why = _not_covered(kept, wanted)
    if why is None:
        return
    async with db.transaction(actor.org_id) as tx:
        fact = Fact.of(
            actor, "resolution_refused", resolution=str(kept.id), trace_id=str(kept.trace_id), tool=wanted.tool,
            input_hash=wanted.input_hash, reason=why,
        )  # fmt: skip
        await proof_store.append_to_session(tx, kept.session_id, [fact])
    raise Conflict(
        f"The resolution does not allow `{wanted.tool}`: {why}.",
        code="action_not_resolved",
        hint="Resolve again for this action with its arguments, or go another way.",
    )


def _not_covered(kept: StoredResolution, wanted: RequestedCall) -> str | None:
    if kept.answer is None:
        return "it was forgotten"
    if any(each.action == wanted.tool for each in kept.answer.allowed_actions):
        if kept.request["action"] is not None and kept.request["input_hash"] != wanted.input_hash:
            return "it was asked about with other arguments"
        return None
    denied = [each.reason for each in kept.answer.denied_actions if each.action == wanted.tool]
    return denied[0] or "it was denied" if denied else "it was not asked about"


@verb(Permission.JOB_SUBMIT)
async def report_resolution(db: Database, actor: Actor, id: UUID, draft: ReportDraft) -> OutcomeReceipt:
    """What became of a call that was executed under it. That counts also after it expired: it happened."""
    kept = await _kept(db, actor, id, actor.identity)
    async with db.transaction(actor.org_id) as tx:
        under = await calls_store.list_resolved_calls(tx, draft.call)
    if under != kept.id:
        raise NotFound(
            "There is no such call under this resolution.",
            code="call_not_found",
            hint="Report calls that were executed under it; for others there is `POST /v1/calls/{id}/outcome`.",
        )
    return await calls.settle_call(db, actor, draft.call, draft.outcome)


async def forget_resolutions(db: Database) -> None:
    """Those under which nothing was executed; of the others, what they said."""
    while (
        await calls_store.forget_resolutions(db, UNUSED_KEPT, USED_KEPT, FORGOTTEN_AT_ONCE)
        >= FORGOTTEN_AT_ONCE
    ):
        pass


SLICE = 10
"""Actions that are looked at together."""


@verb(Permission.SESSION_READ)
async def get_permissions(
    db: Database, actor: Actor, session_id: UUID, most: int = MAX_ACTIONS
) -> Permissions:
    """Gates and policies, and the stricter of the two; of actions whose arguments are not known yet, and ``most`` of them."""
    async with db.transaction(actor.org_id) as tx:
        given = require_found(await calls_store.list_governed(tx, session_id, actor.sees), "session")
        skills = SkillSettings.of(given.skill_config)
        app = APP if given.kind == SessionKind.EXTERNAL else skills.app
        tools = {tool.name: tool for tool in await calls_store.list_resolution_tools(tx, app)}
    looked = await session_gates.of_session(db, actor.org_id, given.bound, given.now)
    if looked is not None:
        looked.boundary()
    policies = await policy_book.at(db, actor.org_id, given.policies)
    names = _names(skills, looked, tools)
    known: dict[str, Risk] = {}
    if given.kind == SessionKind.EXTERNAL:
        async with db.transaction(actor.org_id) as tx:
            known = await agents_store.known_risks(tx, names[:most])
    ruled = []
    for number, action in enumerate(names[:most]):
        if number % SLICE == SLICE - 1:
            # Whoever lists very many lets others go on meanwhile.
            await asyncio.sleep(0)
        ruled.append(
            _answer(given, skills, app, policies, looked, action, tools.get(action), known.get(action))
        )
    answers, more = [told for told, _ in ruled], len(names) - len(ruled)
    if looked is None:
        return replace(permissions_of(None, None), actions=answers, more_actions=more)
    judged = [(told, ruling) for told, ruling in ruled if ruling is not None]
    told, untold = asking(looked.atlases, answers)
    return replace(
        permissions_of(looked.atlases, looked.state), actions=answers, more_actions=more, asking=told,
        more_asking=untold,
        limits=limits_of_all(looked.atlases, looked.state, judged, given.now),
    )  # fmt: skip


def _names(skills: SkillSettings, looked: ExternalGates | None, tools: dict[str, Published]) -> list[str]:
    """What atlases name, what the agent's settings name, and what workers published for its app."""
    named = dict.fromkeys(looked.atlases.known_actions if looked is not None else ())
    own = set(tools) if skills.tools is None else set(skills.tools)
    named.update(dict.fromkeys(sorted(own | skills.side_effect_tools)))
    return list(named)


def _answer(
    given: Governed, skills: SkillSettings, app: str, policies: CompiledPolicies, looked: ExternalGates | None, action: str,
    tool: Published | None, known: Risk | None,
) -> tuple[ActionAnswer, Ruling | None]:  # fmt: skip
    own = highest_risk(tool.risk if tool is not None else Risk.MEDIUM, known)
    reads = tool is not None and tool.read_only
    if tool is not None and tool.server is not None:
        # What a server says of its tools counts where a steward confirmed it.
        confirmed = policies.confirmed.get((app, tool.name, tool.digest))
        reads = confirmed is not None and confirmed.read_only
        own = (confirmed.risk if confirmed is not None else None) or own
    reads = reads and action not in skills.side_effect_tools
    ruling, asks = _ruled(given, looked, GatedCall(action=action, arguments={}, input_hash="", risk=own))
    facts = CallFacts(
        target=action, arguments={}, read_only=reads, risk=own, agent=given.agent, teams=tuple(given.teams),
        session_kind=given.kind,
    )  # fmt: skip
    rows = request_rows(given.request_policies)
    decision = authorize(policies, facts, rows, ruling=ruling)
    if ruling is not None and asks:
        after = authorize(policies, facts, rows, ruling=unasked(ruling))
        decision = denied_anyway(after, decision)
    if skills.tools is not None and action not in skills.tools:
        decision = PolicyDecision(verdict=PolicyVerdict.DENY, rule="not one of its agent's tools")
    return answered(action, decision, ruling, ruling.risk if ruling is not None else own, asks), ruling


def _ruled(
    given: Governed, looked: ExternalGates | None, call: GatedCall
) -> tuple[Ruling | None, tuple[str, ...]]:
    """What gates say, and which of them ask the agent first."""
    external = given.kind == SessionKind.EXTERNAL
    if looked is None or (call.action in OF_THE_PLANE and not external):
        return None, ()
    ruling = looked.unloaded(call) if external else None
    if ruling is not None:
        return ruling, ()
    ruling = judge(looked.atlases, looked.state, call, given.now, looking=True)
    return ruling, asked_first(looked.atlases, looked.state, call, ruling, given.now)


def unasked(ruling: Ruling) -> Ruling:
    """As if its questions were answered: for what policies say then."""
    return replace(ruling, verdict=PolicyVerdict.ALLOW, asks=())


def denied_anyway(after: PolicyDecision, now: PolicyDecision) -> PolicyDecision:
    """Of what gates ask about first: the policy that denies it whatever is answered, where there is one."""
    return after if after.verdict is PolicyVerdict.DENY else now


@verb(Permission.JOB_SUBMIT)
async def give_answers(db: Database, actor: Actor, session_id: UUID, draft: AnswerDraft) -> AnswerReceipt:
    """What holds counts from the next call on. A wrong answer is one try less; a gate that ran out of them stays shut."""
    return await retry_under_session_lock(
        db, actor, lambda db: _give_answers(db, actor, session_id, draft), session=session_id
    )


async def _give_answers(db: Database, actor: Actor, session_id: UUID, draft: AnswerDraft) -> AnswerReceipt:
    given = await agent_context(db, actor, session_id)
    looked = await session_gates.of_agent(db, given)
    if looked is None:
        raise Conflict(
            "No atlas governs this session, so no gate asks anything.",
            code="not_governed",
            hint="Go on without an answer.",
        )
    which = meant(looked.atlases, looked.state, draft.gate, draft.call)
    if which.gate is None:
        passed = _passed_before(looked, draft)
        if passed is None:
            raise session_gates.not_waiting(which)
        return passed
    ended, waiting = looked.state.ended, len(looked.waiting)
    seen = looked.answered(which, draft.answers)
    await _write_answers(db, actor, given, looked, ended)
    # Whatever waits still takes answers; the same gate for another call does not count.
    shut = not seen.valid and len(looked.waiting) < waiting
    return _answers_receipt(looked, seen, shut=shut)


async def agent_context(
    db: Database, actor: Actor, session_id: UUID, tool: str = "", input_hash: str = ""
) -> CallContext:
    try:
        return await call_context(db, actor, session_id, None, tool, input_hash, acts=True)
    except Conflict as error:
        if error.code != "not_external":
            raise
        raise Conflict(
            "A worker runs the agent of this session: its gates are answered by the agent itself.",
            code="not_external",
            hint="Watch it with `cortex job watch`; for an agent that runs elsewhere open a session with `kind: external`.",
        ) from None


def _passed_before(looked: ExternalGates, draft: AnswerDraft) -> AnswerReceipt | None:
    """Whoever repeats an answer that was accepted hears the same again."""
    for gate in looked.atlases.named(draft.gate):
        own = [each for each in looked.state.passes if each.gate == gate.key]
        named = [each for each in own if draft.call in (None, _gate_name(each))]
        if named or (draft.call is None and gate.key in looked.state.passed and not gate.of_a_call):
            waiting = looked.questions(looked.waiting)
            return AnswerReceipt(
                gate=gate.gate_id, passed=True, next="It is passed already. Go on.", questions=waiting
            )
    return None


def _gate_name(passed: Pass) -> str:
    return call_name(GatedCall(action=passed.action, arguments={}, input_hash=passed.input_hash))


async def _write_answers(
    db: Database, actor: Actor, given: CallContext, looked: ExternalGates, ended_before: Shut | None
) -> None:
    """Where a gate of the session is shut by it, nothing can happen there any more: its job fails, with the reason."""
    ended = looked.state.ended
    over = ended if ended_before is None else None
    async with db.transaction(actor.org_id) as tx:
        if over is not None:
            require_found(
                await sessions_store.lock_session(tx, given.session_id, call_sight(actor)), "session"
            )
        await calls_store.lock_asking(tx, given.job_id, is_open=True)
        if over is not None:
            reason = f"The gate `{over.gate}` is shut: {over.reason}"
            await external.end_failed(tx, actor, given.session_id, given.job_id, reason)
            looked.boundary(ends=True)
        await session_gates.write(tx, actor, given.session_id, given.job_id, looked)


def _answers_receipt(looked: ExternalGates, seen: Answered, *, shut: bool) -> AnswerReceipt:
    told = seen.told
    return AnswerReceipt(
        gate=seen.gate or "",
        passed=seen.valid,
        next=str(told.get("next", "")),
        faults=dict(told.get("faults", {})),
        warnings=list(told.get("warning", ())),
        questions=looked.questions(looked.waiting),
        shut=shut,
    )

"""What an agent may do in a session, and which actions a goal resolves to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID

from cortex_plane.agents.model.agents import SkillSettings
from cortex_plane.agents.model.tools import ToolDeclaration, is_tool_name
from cortex_plane.calls import model
from cortex_plane.calls.rules.pipeline import judge_call
from cortex_plane.gates.model.gates import OF_THE_PLANE, GatedCall, GateState, Limit, Ruling
from cortex_plane.gates.rules.authorization import time_limits
from cortex_plane.gates.rules.evaluation import judge
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.gates.rules.prompts import (
    MAX_REQUESTABLE,
    asked_of_all,
    blocks_of,
    guides_of,
    questions_of,
    requestable,
)
from cortex_plane.gates.rules.session import GateSession
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import UNDECLARED, Risk, highest_risk
from cortex_plane.policies.model.policies import PolicyDecision, PolicyRow, PolicyVerdict
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.sessions.model.sessions import SessionKind

Look = tuple[model.ActionAnswer, Ruling | None]
"""What holds of an action that nobody calls yet, and what gates say of it."""
CAPABILITY = "capability:"
NO_CALL = UUID(int=0)
"""Stands for the id of a call that nobody makes."""
MAX_LIMITS = 1000
"""Limits that are told, and as many gates that come round."""
MAX_SCOPE = 100
"""Actions of a capability that are told with it."""
MAX_REASON = 300
"""Characters of why it is so, with each action."""
MAX_ASKING = 200_000
"""Characters of questions that permissions tell."""
_SAID = {
    PolicyVerdict.DENY: "a policy denies it",
    PolicyVerdict.REQUIRES_APPROVAL: "a person must approve it",
    PolicyVerdict.ALLOW: "",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Governed:
    """What the permissions of a session depend on."""

    kind: str
    agent: str
    teams: list[UUID]
    skill_config: dict[str, Any]
    policies: str
    request_policies: list[dict[str, Any]] | None
    bound: dict[str, Any] | None
    now: datetime

    @property
    def session_kind(self) -> str:
        return self.kind

    @property
    def is_external(self) -> bool:
        return self.kind == SessionKind.EXTERNAL

    @property
    def skills(self) -> SkillSettings:
        return SkillSettings.of(self.skill_config)

    @property
    def app(self) -> str:
        return model.APP if self.is_external else self.skills.app


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolDefinition:
    """A tool of an app, as workers published it last."""

    name: str
    digest: str
    read_only: bool
    risk: Risk
    declares_risk: bool
    server: str | None


def check_action(action: str | None) -> None:
    if action is not None and not is_tool_name(action):
        raise InvalidInput(
            "`action` must be lower-case words with dots between, such as refunds.create.", field="action"
        )


def asked_first(gates: GateSession | None, call: GatedCall, ruling: Ruling | None) -> tuple[str, ...]:
    """The gates whose answer by the agent is what a refused call waits for, by key; none where something else refuses it."""
    if gates is None or ruling is None:
        return ()
    if ruling.asks:
        return tuple(each.gate for each in ruling.asks)
    atlases, state = gates.atlases, gates.state
    waiting = tuple(each.gate for each in state.asks if each.gate in atlases.gates)
    if not waiting or ruling.verdict is not PolicyVerdict.DENY or state.ended is not None:
        return ()
    # The start's question comes after what is denied for good: whatever is refused alike without it is not its doing.
    without = replace(state, open=tuple(each for each in state.open if each.call))
    other = judge(atlases, without, call, gates.now(), looking=True)
    return () if (other.rule, other.reason) == (ruling.rule, ruling.reason) else waiting


def action_names(skills: SkillSettings, gates: GateSession | None, tools: Iterable[str] = ()) -> list[str]:
    """What atlases name, what the agent's settings name, and the ``tools`` that workers published for its app."""
    names = dict.fromkeys(gates.atlases.known_actions if gates is not None else ())
    own = set(tools) if skills.tools is None else set(skills.tools)
    names.update(dict.fromkeys(sorted(own | skills.side_effect_tools)))
    return list(names)


def permitted(
    session: Governed, policies: CompiledPolicies, request: Sequence[PolicyRow], gates: GateSession | None, action: str,
    tool: ToolDefinition | None, known: Risk | None,
) -> Look:  # fmt: skip
    """Whether an action is allowed now, whatever its arguments."""
    skills = session.skills
    declaration = declared_tool(tool, policies, skills, session.app) if tool is not None else ToolDeclaration()
    risk = highest_risk(declaration.risk or UNDECLARED, known)
    call = model.RequestedCall(
        id=NO_CALL, name=action, digest="", arguments=b"{}", input_hash="", read_only=declaration.read_only, risk=risk,
        declares_risk=declaration.risk is not None,
    )  # fmt: skip
    ruling, asks = _rule_on(session, gates, GatedCall(action=action, arguments={}, input_hash="", risk=risk))
    decision = judge_call(
        policies, session, call, request, read_only=call.read_only, ruling=ruling, asks=asks, only=skills.tools
    ).decision
    return answered(action, decision, ruling, risk, asks), ruling


def declared_tool(tool: ToolDefinition, policies: CompiledPolicies, skills: SkillSettings, app: str) -> ToolDeclaration:
    """What counts of a tool as it was published. What a server says of its tools counts where a steward confirmed it."""
    risk, reads = tool.risk if tool.declares_risk else None, tool.read_only
    if tool.server is not None:
        confirmation = policies.confirmed.get((app, tool.name, tool.digest))
        reads = confirmation is not None and confirmation.read_only
        risk = (confirmation.risk if confirmation is not None else None) or risk
    return ToolDeclaration(risk=risk, read_only=reads and tool.name not in skills.side_effect_tools)


def _rule_on(session: Governed, gates: GateSession | None, call: GatedCall) -> tuple[Ruling | None, tuple[str, ...]]:
    """What gates say, and which of them ask the agent first."""
    if gates is None or (call.action in OF_THE_PLANE and not session.is_external):
        return None, ()
    ruling = gates.unloaded(call) if session.is_external else None
    if ruling is not None:
        return ruling, ()
    ruling = judge(gates.atlases, gates.state, call, session.now, looking=True)
    return ruling, asked_first(gates, call, ruling)


def answered(
    action: str, decision: PolicyDecision, ruling: Ruling | None, risk: Risk, asks: Sequence[str] = ()
) -> model.ActionAnswer:
    """What holds of an action. Where gates let it through and policies agree, it is the gates that say why. ``asks``: the gates
    that the agent must answer first; they count where it is gates that refuse it."""
    answer = _base_answer(action, decision, ruling, ruling.risk if ruling is not None else risk)
    if answer.verdict is PolicyVerdict.ALLOW:
        return answer
    by_gates = ruling is not None and answer.rule == ruling.rule
    if answer.verdict is PolicyVerdict.DENY:
        if not (by_gates and asks):
            return answer
        return replace(
            answer, state=model.ActionState.ASKS_FIRST, whom=model.Whom.AGENT, asks=list(asks[: model.MAX_ASKS])
        )
    people = [gate.key for gate in ruling.people] if by_gates and ruling is not None else []
    return replace(answer, whom=model.Whom.PERSON, asks=people[: model.MAX_ASKS])


_STATES = {
    PolicyVerdict.ALLOW: model.ActionState.ALLOWED,
    PolicyVerdict.REQUIRES_APPROVAL: model.ActionState.ASKS_FIRST,
    PolicyVerdict.DENY: model.ActionState.DENIED,
}


def _base_answer(action: str, decision: PolicyDecision, ruling: Ruling | None, risk: Risk) -> model.ActionAnswer:
    verdict, rule, reason = decision.verdict, decision.rule, ""
    if ruling is not None and (ruling.rule == rule or ruling.verdict is verdict is PolicyVerdict.ALLOW):
        verdict, rule, reason = ruling.verdict, ruling.rule, _short(ruling.reason)
    reason = reason or _SAID[verdict]
    return model.ActionAnswer(
        action=action, state=_STATES[verdict], verdict=verdict, rule=rule, reason=reason, risk=risk
    )


def _short(reason: str) -> str:
    return reason if len(reason) <= MAX_REASON else f"{reason[: MAX_REASON - 1]}…"


def split_answers(answers: Iterable[model.ActionAnswer]) -> tuple[list[model.ActionAnswer], list[model.ActionAnswer]]:
    """What is not denied, and what is."""
    groups: tuple[list[model.ActionAnswer], list[model.ActionAnswer]] = [], []
    for answer in answers:
        groups[answer.verdict is PolicyVerdict.DENY].append(answer)
    return groups


def decided(answers: Iterable[model.ActionAnswer]) -> model.ResolutionDecision:
    """What is said of all; where that differs, it is partial."""
    verdicts = {each.verdict for each in answers}
    if not verdicts:
        return model.ResolutionDecision.DENY
    return model.ResolutionDecision.PARTIAL if len(verdicts) > 1 else model.ResolutionDecision(verdicts.pop().value)


def block_list(atlases: CompiledAtlases, state: GateState) -> list[dict[str, Any]]:
    """What the agent must know: contexts, then guidance, the most important first."""
    contexts = [
        {"kind": "context", "id": key, **_fields(block, "name", "content", "priority"), "by": effect.by}
        for key, block, effect in blocks_of(atlases, state)
    ]
    guides = [
        {"kind": "guidance", "id": gate.key, "name": gate.name, **_fields(guidance, "content", "format", "priority")}
        | {"labels": list(guidance.labels), "by": effect.by, "until": effect.until}
        for gate, guidance, effect in guides_of(atlases, state)
    ]
    return [*contexts, *guides]


def _fields(block: object, *names: str) -> dict[str, Any]:
    return {name: getattr(block, name) for name in names}


def by_reference(resolution: model.Resolution) -> model.Resolution:
    """As it is kept: what blocks say and gates ask stands in the atlases, which do not change."""
    return replace(
        resolution,
        contexts=[_without(block, "content") for block in resolution.contexts],
        questions=[_without(question, "questions") for question in resolution.questions],
    )


def in_full(atlases: CompiledAtlases, resolution: model.Resolution) -> model.Resolution:
    return replace(
        resolution,
        contexts=[block | {"content": _content(atlases, block)} for block in resolution.contexts],
        questions=[question | {"questions": _questions(atlases, question)} for question in resolution.questions],
    )


def _questions(atlases: CompiledAtlases, question: Mapping[str, Any]) -> list[dict[str, Any]]:
    """As they were told then."""
    gate = f"{question['atlas']}/{question['gate']}"
    return [] if "more_questions" in question else questions_of(atlases.gates[gate])


def _content(atlases: CompiledAtlases, block: Mapping[str, Any]) -> str:
    if block["kind"] == "context":
        return atlases.contexts[block["id"]].content
    guidance = atlases.gates[block["id"]].guidance
    return guidance.content if guidance is not None else ""


def time_window(ends: datetime) -> Limit:
    return Limit(kind="time_window", name="resolution", detail={"until": ends.isoformat()})


def limits_of(atlases: CompiledAtlases, looks: Sequence[Look]) -> list[Limit]:
    """Under what the allowed actions are allowed: each limit once, and the capability that opens them."""
    limits: dict[tuple[str, str], Limit] = {}
    for answer, ruling in looks:
        if answer.verdict is PolicyVerdict.DENY or ruling is None:
            continue
        for limit in ruling.limits:
            limits.setdefault((limit.kind, limit.name), limit)
        capability = ruling.rule.removeprefix(CAPABILITY)
        if capability != ruling.rule and capability in atlases.capabilities:
            actions = atlases.capabilities[capability].actions
            more = {"more_actions": len(actions) - MAX_SCOPE} if len(actions) > MAX_SCOPE else {}
            scope = Limit(kind="scope", name=capability, detail={"actions": list(actions[:MAX_SCOPE]), **more})
            limits.setdefault(("scope", capability), scope)
        if len(limits) >= MAX_LIMITS:
            break
    return list(limits.values())[:MAX_LIMITS]


def limits_of_all(atlases: CompiledAtlases, state: GateState, looks: Sequence[Look], now: datetime) -> list[Limit]:
    """Of many actions that were only looked at. When gates come round is the same for all of them, so it is told once."""
    limits = limits_of(atlases, looks)
    if any(answer.verdict is not PolicyVerdict.DENY for answer, ruling in looks if ruling is not None):
        limits += islice(time_limits(atlases, state.fired, now), MAX_LIMITS)
    return limits


def asking(atlases: CompiledAtlases, answers: Iterable[model.ActionAnswer]) -> tuple[list[dict[str, Any]], int]:
    """The gates that actions name, each once with what it asks, and how many more there are."""
    names = {key: each.whom for each in answers for key in each.asks if key in atlases.gates}
    gates, room = list[dict[str, Any]](), MAX_ASKING
    for key, whom in names.items():
        gate = atlases.gates[key]
        questions = [question.question for question in gate.questions]
        room -= len(gate.name) + sum(map(len, questions))
        if room < 0:
            break
        gates.append({"gate": key, "name": gate.name, "whom": whom, "questions": questions})
    return gates, len(names) - len(gates)


def permissions_of(atlases: CompiledAtlases | None, state: GateState | None) -> model.Permissions:
    """What gates made of a session, apart from its actions."""
    if atlases is None or state is None:
        return model.Permissions(actions=[], capabilities=[], contexts=[], guidance=[], waiting=[], passed={}, shut=[])
    blocks = block_list(atlases, state)
    return model.Permissions(
        actions=[],
        capabilities=[_capability(atlases, state, key) for key in sorted(atlases.capabilities)[: model.MAX_ACTIONS]],
        more_capabilities=max(0, len(atlases.capabilities) - model.MAX_ACTIONS),
        contexts=[_without(each, "content", "kind") for each in blocks if each["kind"] == "context"],
        guidance=[_without(each, "content", "kind") for each in blocks if each["kind"] == "guidance"],
        waiting=asked_of_all(atlases, state.open),
        passed=dict(state.passed),
        on_demand=dict(islice(requestable(atlases, state).items(), MAX_REQUESTABLE)),
        shut=[{"gate": each.gate, "reason": each.reason, "action": each.action or None} for each in state.shut],
    )


def _capability(atlases: CompiledAtlases, state: GateState, key: str) -> dict[str, Any]:
    grip = state.capabilities.get(key)
    if grip is None:
        return {"id": key, "open": atlases.begins_open(key), "by": None, "at": None}
    return {"id": key, "open": grip.open, "by": grip.by, "at": grip.at}


def _without(block: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name not in names}

"""A call as policies and people look at it, and which actions a goal resolves to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any
from uuid import UUID

from cortex_plane.agents.model.tools import Risk, is_tool_name
from cortex_plane.approvals.model.approvals import ApprovalKind, Cause, NewRequest
from cortex_plane.calls.model import (
    MAX_ACTIONS,
    MAX_ASKS,
    ActionAnswer,
    ActionState,
    Permissions,
    Resolution,
    ResolutionDecision,
    Whom,
)
from cortex_plane.gates.model.gates import GatedCall, GateState, Limit, Ruling
from cortex_plane.gates.rules.authorization import PlannedCall, time_limits
from cortex_plane.gates.rules.evaluation import judge
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.gates.rules.prompts import asked_of_all, blocks_of, guides_of, questions_of
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.policies.model.policies import PolicyDecision, PolicyVerdict, Terms

CAPABILITY = "capability:"
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


def call_request(
    id: UUID, call: PlannedCall, step: int, *, summary: str, rule: str, policies: str, terms: Terms,
    question: str | None = None, is_doubt: bool = False, says: str | None = None, asked_for: str | None = None,
    changed_by: Sequence[Cause] = (),
) -> NewRequest:  # fmt: skip
    """The card by which people are asked whether a call may be sent. ``is_doubt``: whether it happened."""
    return NewRequest(
        id=id,
        kind=ApprovalKind.UNCERTAIN_EFFECT if is_doubt else ApprovalKind.CALL,
        call_id=call.id,
        step_index=step,
        tool_name=call.name,
        tool_digest=call.digest,
        arguments=call.arguments,
        input_hash=call.input_hash,
        risk=call.risk,
        summary=summary,
        agent_says=says,
        asked_for=asked_for,
        question=question,
        rule=rule,
        policy_version=policies,
        terms=terms,
        changed_by=changed_by,
    )


def check_action(action: str | None) -> None:
    if action is not None and not is_tool_name(action):
        raise InvalidInput(
            "`action` must be lower-case words with dots between, such as refunds.create.", field="action"
        )


def asked_first(
    atlases: CompiledAtlases, state: GateState, call: GatedCall, ruling: Ruling, now: datetime
) -> tuple[str, ...]:
    """The gates whose answer by the agent is what a refused call waits for, by key; none where something else refuses it."""
    if ruling.asks:
        return tuple(each.gate for each in ruling.asks)
    waiting = tuple(each.gate for each in state.asks if each.gate in atlases.gates)
    if not waiting or ruling.verdict is not PolicyVerdict.DENY or state.ended is not None:
        return ()
    # The start's question comes after what is denied for good: whatever is refused alike without it is not its doing.
    without = replace(state, open=tuple(each for each in state.open if each.call))
    other = judge(atlases, without, call, now, looking=True)
    return () if (other.rule, other.reason) == (ruling.rule, ruling.reason) else waiting


def answered(
    action: str, decision: PolicyDecision, ruling: Ruling | None, risk: Risk, asks: Sequence[str] = ()
) -> ActionAnswer:
    """What holds of an action. Where gates let it through and policies agree, it is the gates that say why. ``asks``: the gates
    that the agent must answer first; they count where it is gates that refuse it."""
    answer = _base_answer(action, decision, ruling, risk)
    if answer.verdict is PolicyVerdict.ALLOW:
        return answer
    by_gates = ruling is not None and answer.rule == ruling.rule
    if answer.verdict is PolicyVerdict.DENY:
        if not (by_gates and asks):
            return answer
        return replace(answer, state=ActionState.ASKS_FIRST, whom=Whom.AGENT, asks=list(asks[:MAX_ASKS]))
    people = [gate.key for gate in ruling.people] if by_gates and ruling is not None else []
    return replace(answer, whom=Whom.PERSON, asks=people[:MAX_ASKS])


_STATES = {
    PolicyVerdict.ALLOW: ActionState.ALLOWED,
    PolicyVerdict.REQUIRES_APPROVAL: ActionState.ASKS_FIRST,
    PolicyVerdict.DENY: ActionState.DENIED,
}


def _base_answer(action: str, decision: PolicyDecision, ruling: Ruling | None, risk: Risk) -> ActionAnswer:
    by_gates = ruling is not None and (
        ruling.rule == decision.rule or ruling.verdict is decision.verdict is PolicyVerdict.ALLOW
    )
    if by_gates and ruling is not None:
        reason = _short(ruling.reason) or _SAID[ruling.verdict]
        return ActionAnswer(
            action=action, state=_STATES[ruling.verdict], verdict=ruling.verdict, rule=ruling.rule, reason=reason,
            risk=risk,
        )  # fmt: skip
    return ActionAnswer(
        action=action,
        state=_STATES[decision.verdict],
        verdict=decision.verdict,
        rule=decision.rule,
        reason=_SAID[decision.verdict],
        risk=risk,
    )


def _short(reason: str) -> str:
    return reason if len(reason) <= MAX_REASON else f"{reason[: MAX_REASON - 1]}…"


def split_answers(answers: Iterable[ActionAnswer]) -> tuple[list[ActionAnswer], list[ActionAnswer]]:
    """What is not denied, and what is."""
    allowed: list[ActionAnswer] = []
    denied: list[ActionAnswer] = []
    for answer in answers:
        (denied if answer.verdict is PolicyVerdict.DENY else allowed).append(answer)
    return allowed, denied


def decided(answers: Iterable[ActionAnswer]) -> ResolutionDecision:
    """What is said of all; where that differs, it is partial."""
    verdicts = {each.verdict for each in answers}
    if not verdicts:
        return ResolutionDecision.DENY
    if len(verdicts) > 1:
        return ResolutionDecision.PARTIAL
    return ResolutionDecision(verdicts.pop().value)


def block_list(atlases: CompiledAtlases, state: GateState) -> list[dict[str, Any]]:
    """What the agent must know: contexts, then guidance, the most important first."""
    contexts = [
        {
            "kind": "context",
            "id": key,
            "name": block.name,
            "content": block.content,
            "priority": block.priority,
            "by": effect.by,
        }
        for key, block, effect in blocks_of(atlases, state)
    ]
    guides = [
        {
            "kind": "guidance",
            "id": gate.key,
            "name": gate.name,
            "content": guidance.content,
            "format": guidance.format,
            "priority": guidance.priority,
            "labels": list(guidance.labels),
            "by": effect.by,
            "until": effect.until,
        }
        for gate, guidance, effect in guides_of(atlases, state)
    ]
    return [*contexts, *guides]


def by_reference(resolution: Resolution) -> Resolution:
    """As it is kept: what blocks say and gates ask stands in the atlases, which do not change."""
    return replace(
        resolution,
        contexts=[_without(block, "content") for block in resolution.contexts],
        questions=[_without(question, "questions") for question in resolution.questions],
    )


def in_full(atlases: CompiledAtlases, resolution: Resolution) -> Resolution:
    return replace(
        resolution,
        contexts=[block | {"content": _content(atlases, block)} for block in resolution.contexts],
        questions=[question | {"questions": _questions(atlases, question)} for question in resolution.questions],
    )


def _questions(atlases: CompiledAtlases, question: Mapping[str, Any]) -> list[dict[str, Any]]:
    """As they were told then."""
    return (
        [] if "more_questions" in question else questions_of(atlases.gates[f"{question['atlas']}/{question['gate']}"])
    )


def _content(atlases: CompiledAtlases, block: Mapping[str, Any]) -> str:
    if block["kind"] == "context":
        return atlases.contexts[block["id"]].content
    guidance = atlases.gates[block["id"]].guidance
    return guidance.content if guidance is not None else ""


def time_window(ends: datetime) -> Limit:
    return Limit(kind="time_window", name="resolution", detail={"until": ends.isoformat()})


def limits_of(atlases: CompiledAtlases, rulings: Sequence[tuple[ActionAnswer, Ruling]]) -> list[Limit]:
    """Under what the allowed actions are allowed: each limit once, and the capability that opens them."""
    limits: dict[tuple[str, str], Limit] = {}
    for answer, ruling in rulings:
        if answer.verdict is PolicyVerdict.DENY:
            continue
        for limit in ruling.limits:
            limits.setdefault((limit.kind, limit.name), limit)
        capability = ruling.rule.removeprefix(CAPABILITY)
        if capability != ruling.rule and capability in atlases.capabilities:
            limits.setdefault(("scope", capability), _scope(capability, atlases.capabilities[capability].actions))
        if len(limits) >= MAX_LIMITS:
            break
    return list(limits.values())[:MAX_LIMITS]


def _scope(name: str, actions: Sequence[str]) -> Limit:
    more = {"more_actions": len(actions) - MAX_SCOPE} if len(actions) > MAX_SCOPE else {}
    return Limit(kind="scope", name=name, detail={"actions": list(actions[:MAX_SCOPE]), **more})


def limits_of_all(
    atlases: CompiledAtlases, state: GateState, rulings: Sequence[tuple[ActionAnswer, Ruling]], now: datetime
) -> list[Limit]:
    """Of many actions that were only looked at. When gates come round is the same for all of them, so it is told once."""
    limits = limits_of(atlases, rulings)
    if any(answer.verdict is not PolicyVerdict.DENY for answer, _ in rulings):
        limits += islice(time_limits(atlases, state.fired, now), MAX_LIMITS)
    return limits


def asking(atlases: CompiledAtlases, answers: Iterable[ActionAnswer]) -> tuple[list[dict[str, Any]], int]:
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


def permissions_of(atlases: CompiledAtlases | None, state: GateState | None) -> Permissions:
    """What gates made of a session, apart from its actions."""
    if atlases is None or state is None:
        return Permissions(actions=[], capabilities=[], contexts=[], guidance=[], waiting=[], passed={}, shut=[])
    blocks = block_list(atlases, state)
    return Permissions(
        actions=[],
        capabilities=[_capability(atlases, state, key) for key in sorted(atlases.capabilities)[:MAX_ACTIONS]],
        more_capabilities=max(0, len(atlases.capabilities) - MAX_ACTIONS),
        contexts=[_without(each, "content", "kind") for each in blocks if each["kind"] == "context"],
        guidance=[_without(each, "content", "kind") for each in blocks if each["kind"] == "guidance"],
        waiting=asked_of_all(atlases, state.open),
        passed=dict(state.passed),
        shut=[{"gate": each.gate, "reason": each.reason, "action": each.action or None} for each in state.shut],
    )


def _capability(atlases: CompiledAtlases, state: GateState, key: str) -> dict[str, Any]:
    grip = state.capabilities.get(key)
    if grip is None:
        return {"id": key, "open": atlases.begins_open(key), "by": None, "at": None}
    return {"id": key, "open": grip.open, "by": grip.by, "at": grip.at}


def _without(block: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in block.items() if name not in names}

"""Evaluates the gates of a session: which fire, what they ask, and what they change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from cortex_plane.gates.model import gates as gate_model
from cortex_plane.gates.model.atlases import AtlasPolicyType, Gate, Mode, TriggerType
from cortex_plane.gates.model.gates import Evaluation, GateCard, GatedCall, GateInput, GateState, Open, Pass, Ruling
from cortex_plane.gates.rules.authorization import by_policies, charged, last_round, limits
from cortex_plane.gates.rules.effects import AT_ONCE, MAX_FIRED, Elapsed, EvaluationRun, no_time
from cortex_plane.gates.rules.index import CompiledAtlases, OfAction, rank
from cortex_plane.gates.rules.prompts import MAX_CARD, card
from cortex_plane.kernel.fields import Risk
from cortex_plane.kernel.globs import glob
from cortex_plane.kernel.schemas import Unusable, compiled, faults
from cortex_plane.policies.model.policies import PolicyVerdict

TOO_LONG = "more gates ask a person about it than one request can show in full; it waits until fewer of them do"


def at_boundary(
    atlases: CompiledAtlases, state: GateState, moment: GateInput, elapsed: Elapsed = no_time
) -> Evaluation:
    """What fires before the agent goes on: the start, what was said, what came round, what happened. ``elapsed``: the time
    that this took, custom triggers included."""
    moment = _complete(state, moment)
    work = EvaluationRun(atlases, state, moment.now, elapsed=elapsed)
    if work.guidance:
        work.drop_expired()
    if work.open or work.people:
        # Nobody can answer a gate that is in none of the session's atlases.
        work.open = [question for question in work.open if question.gate in atlases.gates]
        work.people = [key for key in work.people if key in atlases.gates]
    if moment.ends:
        due: dict[str, dict[str, Any]] = {gate.key: {} for gate in atlases.of(TriggerType.SESSION_END)}
    else:
        due = _due(work, moment) if state.ended is None else {}
    gates = sorted((atlases.gates[key] for key in due), key=rank)
    # The end of a session is no input: its gates only record and advise, and fire whatever an input may cost.
    for gate in gates[:MAX_FIRED] if moment.ends else within_budget(work, gates):
        work.fire(gate, due[gate.key])
    for key in sorted(moment.unknown & atlases.gates.keys()):
        work.restrict(atlases.gates[key])
    after = work.state(
        started=True, heard=max(state.heard, moment.heard), since=state.since or moment.now, missed=(),
        tasks=(*state.tasks, moment.task)[-gate_model.MAX_TASKS:] if moment.task else state.tasks,
    )  # fmt: skip
    return Evaluation(state=after, traces=tuple(work.traces), fired=tuple(work.fired))


def _complete(state: GateState, moment: GateInput) -> GateInput:
    """Without the input of a task that was evaluated before; with what happened while the gates could not be read."""
    if moment.task in state.tasks:
        moment = replace(moment, inputs=(), task="", custom=frozenset(), unknown=frozenset())
    if state.missed:
        actions = tuple(call.action for call in state.missed)
        errors = tuple(call.error for call in state.missed if call.error is not None)
        moment = replace(moment, finished=(*actions, *moment.finished), errors=(*errors, *moment.errors))
    return moment


def _due(work: EvaluationRun, moment: GateInput) -> dict[str, dict[str, Any]]:
    """By key: with what fired it."""
    atlases, due = work.atlases, dict[str, dict[str, Any]]()
    for atlas_id, gates in atlases.once.items():
        if atlas_id not in work.fired_at:
            work.fired_at[atlas_id] = moment.now
            work.counted[atlas_id] = work.executed
            due.update((gate.key, {}) for gate in gates)
    for text in moment.inputs:
        matches = atlases.keywords.find(text)
        if matches is None:
            _leave_unread(work, due, text)
        for gate, words in (matches or {}).values():
            texts = due.setdefault(gate.key, {"matched": []})["matched"]
            texts += [word for word in words if word not in texts][: 10 - len(texts)]
    for interval in atlases.timed:
        if moment.now - last_round(work.fired_at, interval, moment.now) >= timedelta(seconds=interval.every):
            due.update((gate.key, {"seconds": gate.trigger.seconds}) for gate in interval.gates)
            work.fired_at[interval.name] = moment.now
    for interval in atlases.counting:
        if work.executed - work.counted.get(interval.name, work.counted.get(interval.atlas_id, 0)) >= interval.every:
            due.update((gate.key, {"actions": work.executed}) for gate in interval.gates)
            work.counted[interval.name] = work.executed
    for action in dict.fromkeys(moment.finished):
        due.update((gate.key, {"action_id": action}) for gate in atlases.after(action))
    if moment.errors:
        what = {"error": moment.errors[0][:500]}
        due.update((gate.key, what) for gate in atlases.of(TriggerType.ERROR_OCCURRED))
    for key in sorted(moment.custom):
        custom = atlases.gates.get(key)
        if custom is not None and custom.trigger.type is TriggerType.CUSTOM:
            due[key] = {"trigger_id": custom.trigger.trigger_id}
    return due


def _leave_unread(work: EvaluationRun, due: dict[str, dict[str, Any]], text: str) -> None:
    """A text that cannot be searched fires the keyword gates that block, and what the others forbid is forbidden."""
    why = f"a text of {len(text)} characters, which is too long to be searched"
    for gate in work.atlases.of(TriggerType.KEYWORD):
        if gate.mode is Mode.BLOCKING:
            due.setdefault(gate.key, {"matched": []})["unread"] = why
            continue
        work.traces.append(gate_model.skipped(gate, why))
        if gate.restricts:
            work.restrict(gate)


def requested(atlases: CompiledAtlases, state: GateState, names: Sequence[str], now: datetime) -> Evaluation:
    """The agent asks for what its stewards wrote down: by the ids of contexts, or whatever gates listen for. Nothing
    fires while the session waits for an answer, or is shut: who has not agreed is not told."""
    work = EvaluationRun(atlases, state, now)
    waiting = [gate for question in state.asks if (gate := atlases.gates.get(question.gate)) is not None]
    for gate in waiting:
        work.blocked(gate, gate_model.UNANSWERED)
    if not waiting and state.ended is None:
        gates = {gate.key: (gate, name) for name in reversed(names) for gate in atlases.requested(name)}
        for gate in within_budget(work, sorted((gate for gate, _ in gates.values()), key=rank)):
            work.fire(gate, {"requested": gates[gate.key][1][:200]})
    return Evaluation(state=work.state(), traces=tuple(work.traces), fired=tuple(work.fired))


def judge(
    atlases: CompiledAtlases, state: GateState, call: GatedCall, now: datetime, *, looking: bool = False,
    elapsed: Elapsed = no_time,
) -> Ruling:  # fmt: skip
    """deny → gates → approval → rate limit → budget → allow → deny. Questions are opened, and nothing is used up. What
    people see is not recorded here: `shown` does, in the commit that asks them. ``looking``: somebody wants to know
    about the action, whatever its arguments; nothing is recorded at all."""
    ruling = _judge(EvaluationRun(atlases, state, now, looking=looking, elapsed=elapsed), call, looking)
    return replace(ruling, state=state, traces=()) if looking else ruling


def _judge(work: EvaluationRun, call: GatedCall, looking: bool) -> Ruling:
    atlases = work.atlases
    rules = atlases.of_action(call.action)
    risk = atlases.risk_of(call.action, call.risk)
    gates = _gates_before(work, rules, risk)
    refusal = _refusal(work, call, rules, gates, looking)
    if refusal is not None:
        return _ruling(work, risk, PolicyVerdict.DENY, *refusal)
    gates, asks, strict = _fire_all(work, call, rules, gates, risk)
    people = _people(work, gates)
    # What gates that fired before this call forbid, they forbid to this call too.
    refusal = _denied(work, call, rules) if work.rights_changed and not asks else None
    refusal = refusal or (None if asks else _locked(work, rules, people))
    if refusal is not None:
        return _ruling(work, risk, PolicyVerdict.DENY, *refusal)
    if asks:
        names = ", ".join(f"`{atlases.gates[question.gate].gate_id}`" for question in asks)
        reason = f"the gate {names} must be answered first"
        return _ruling(work, risk, PolicyVerdict.DENY, f"gate:{asks[0].gate}", reason, asks=tuple(asks))
    verdict, rule, reason, policy = by_policies(work, call, rules, people)
    if verdict is not PolicyVerdict.DENY and len(card(people)) > MAX_CARD:
        return _ruling(work, risk, PolicyVerdict.DENY, f"gate:{people[0].key}", TOO_LONG)
    if verdict is not PolicyVerdict.DENY and not _seen(work, call, people):
        for gate in people:
            if gate.of_a_call:
                work.triggered(gate, {"action_id": call.action})
        verdict, rule = PolicyVerdict.REQUIRES_APPROVAL, f"gate:{people[0].key}"
        reason = "a person must pass its gate"
    return _ruling(
        work, risk, verdict, rule, reason, people=tuple(people), strict=strict,
        template=policy.template if policy else None, policy_reason=policy.reason if policy else "",
        answers=tuple(_answers(work, call, rules)) if work.answers else (), overrides=policy is not None,
        limits=tuple(limits(work, rules)),
    )  # fmt: skip


def _answers(work: EvaluationRun, call: GatedCall, rules: OfAction) -> Iterator[gate_model.ShownAnswer]:
    """What the agent answered to the gates that it passed for this call, or before it."""
    gates = work.atlases.gates
    guards = {gate.key for capability in rules.capabilities for gate in work.atlases.guards(capability)}
    for entry in work.answers:
        gate = gates.get(entry.gate)
        is_other = not _is_about(entry, call) if entry.action else entry.gate not in work.passed
        if gate is None or is_other or (gate.of_a_call and not entry.action and entry.gate not in guards):
            continue
        for question in gate.questions:
            if (id := question.question_id) in entry.answers:
                yield gate_model.ShownAnswer(
                    gate=entry.gate, question_id=id, question=question.question, answer=entry.answers[id],
                    cut=entry.cut.get(id),
                )  # fmt: skip


def _ruling(work: EvaluationRun, risk: Risk, verdict: PolicyVerdict, rule: str, reason: str, **more: Any) -> Ruling:
    work.withhold()
    return Ruling(
        verdict=verdict, rule=rule, reason=reason, state=work.state(), risk=risk, fired=tuple(work.fired),
        traces=tuple(work.traces), **more,
    )  # fmt: skip


def _refusal(
    work: EvaluationRun, call: GatedCall, rules: OfAction, gates: Sequence[Gate], looking: bool
) -> tuple[str, str] | None:
    """What no answer to a gate of this call, and no person, turns: the rule, and why."""
    return (
        _shut(work, call, gates)
        or _denied(work, call, rules)
        or _unanswered(work, call)
        or _locked(work, rules, [*gates, *_people(work, ())])
        or (None if looking else _misfit(call, rules))
    )


def _shut(work: EvaluationRun, call: GatedCall, gates: Sequence[Gate]) -> tuple[str, str] | None:
    before = {gate.key for gate in gates} if work.shut else ()
    for shut in work.shut:
        if not shut.action or _is_about(shut, call) or (shut.action == gate_model.EVERY_CALL and shut.gate in before):
            gate = work.atlases.gates.get(shut.gate)
            if gate is not None:
                work.blocked(gate, shut.reason, call.action)
            return f"gate:{shut.gate}", f"its gate is shut: {shut.reason}"
    return None


def _denied(work: EvaluationRun, call: GatedCall, rules: OfAction) -> tuple[str, str] | None:
    for key, policy in rules.policies:
        if policy.type is AtlasPolicyType.DENY:
            return f"atlas:{key}", policy.reason or "its atlas denies it"
    for pattern, rule in sorted(work.actions.items()):
        if not rule.allow and glob(pattern).matches(call.action):
            if (gate := work.atlases.gates.get(rule.by)) is not None:
                work.blocked(gate, f"it denies {pattern}", call.action)
            return f"gate:{rule.by}", f"the gate `{rule.by}` denies {pattern}"
    return None


def _unanswered(work: EvaluationRun, call: GatedCall) -> tuple[str, str] | None:
    for question in work.open:
        gate = work.atlases.gates.get(question.gate)
        if not question.call and gate is not None:
            work.blocked(gate, gate_model.UNANSWERED, call.action)
            return f"gate:{question.gate}", f"the gate `{gate.gate_id}` must be answered before anything else"
    return None


def _locked(work: EvaluationRun, rules: OfAction, openers: Sequence[Gate]) -> tuple[str, str] | None:
    """An atlas that has the action only in capabilities that are locked, and no gate to open them by: none that guards them,
    and none of those that the call meets (``openers``)."""
    by_atlas: dict[str, list[str]] = {}
    for capability in rules.capabilities:
        by_atlas.setdefault(capability.rsplit("/", 1)[0], []).append(capability)
    for capabilities in by_atlas.values():
        if not any(
            work.is_open(capability)
            or work.atlases.guards(capability)
            or any(gate.unlocks(capability) for gate in openers)
            for capability in capabilities
        ):
            grip = work.capabilities.get(capabilities[0])
            by = f", by the gate `{grip.by}`" if grip is not None else ""
            return f"capability:{capabilities[0]}", f"the capability `{capabilities[0]}` is locked{by}"
    return None


def _misfit(call: GatedCall, rules: OfAction) -> tuple[str, str] | None:
    for action in rules.declared:
        if action.parameters_schema is None:
            continue
        try:
            wrong = "; ".join(faults(compiled(dict(action.parameters_schema)), dict(call.arguments))[:3])
        except Unusable as error:
            wrong = str(error)
        if wrong:
            return f"action:{action.action_id}", f"its arguments do not fit its atlas: {wrong}"
    return None


def _gates_before(work: EvaluationRun, rules: OfAction, risk: Risk) -> Sequence[Gate]:
    """What stands before it now: of a capability's gates those that must be passed to open it, and those that look on."""
    atlases = work.atlases
    gates = [*rules.before, *atlases.risky(risk)]
    for capability in rules.capabilities:
        shut = not work.is_open(capability)
        for gate in atlases.gates_of_capability(capability):
            if gate.mode is Mode.OBSERVATIONAL or (shut and gate.key not in work.passed):
                gates.append(gate)
    if len(gates) < 2:
        return gates
    return sorted({gate.key: gate for gate in gates}.values(), key=rank)


def _fire_all(
    work: EvaluationRun, call: GatedCall, rules: OfAction, gates: Sequence[Gate], risk: Risk
) -> tuple[Sequence[Gate], list[Open], bool]:
    """Also what stands before it only since one of them locked a capability."""
    all_gates, asks, strict = list[Gate](), list[Open](), False
    while gates:
        all_gates += gates
        more, stricter = _fire_before(work, call, within_budget(work, gates, silent=call.approved or call.told))
        asks, strict = asks + more, strict or stricter
        if not work.rights_changed:
            break
        keys = {gate.key for gate in all_gates}
        gates = [gate for gate in _gates_before(work, rules, risk) if gate.key not in keys]
    return all_gates, asks, strict


def _fire_before(work: EvaluationRun, call: GatedCall, gates: Sequence[Gate]) -> tuple[list[Open], bool]:
    """Questions that must be answered, and whether policies must look strictly. What only advises or looks on did so
    when people were asked; it does not again once they approved."""
    asks: list[Open] = []
    strict = False
    for gate in gates:
        strict = strict or gate.require_policy_check
        if gate.asks:
            if not any(entry.gate == gate.key and _is_about(entry, call) for entry in work.passes):
                asks.append(_opened(work, gate, call))
        elif gate.asks_people:
            continue
        elif call.approved or call.told:
            if _opens_for_one(gate):
                work.grant(gate)
        else:
            work.triggered(gate, {"action_id": call.action})
            if gate.mode is not Mode.OBSERVATIONAL:
                work.pass_gate(gate)
    return asks, strict


def _opens_for_one(gate: Gate) -> bool:
    """What it grants counts for the call that it stands before, each time that call is judged, and is given when it runs."""
    asks = gate.asks or gate.asks_people
    return gate.trigger.type in gate_model.FOR_ONE_CALL and not asks and gate.mode is not Mode.OBSERVATIONAL


def _is_about(entry: Pass | Open | gate_model.Shut | gate_model.GateAnswers, call: GatedCall) -> bool:
    return entry.action == call.action and entry.input_hash == call.input_hash


def _opened(work: EvaluationRun, gate: Gate, call: GatedCall) -> Open:
    for question in work.open:
        if question.gate == gate.key and _is_about(question, call):
            work.blocked(gate, gate_model.UNANSWERED, call.action)
            return question
    names = {question.validation.equals_argument for question in gate.questions}
    new = work.ask_call(
        Open(
            gate=gate.key, call=gate_model.call_name(call), action=call.action, input_hash=call.input_hash, at=work.now,
            arguments={
                name: gate_model.value_digest(call.arguments[name])
                for name in names
                if name is not None and name in call.arguments
            },
        )
    )  # fmt: skip
    work.triggered(gate, {"action_id": call.action})
    work.guide(gate)
    work.blocked(gate, gate_model.UNANSWERED, call.action)
    return new


def judge_sent(atlases: CompiledAtlases, state: GateState, call: GatedCall, now: datetime) -> Ruling:
    """Of a call that was sent before: it passed its gates and was counted then, and what is forbidden now is forbidden.
    Only the gates of a capability that was locked since ask again."""
    state = replace(state, spent={})
    ruling = judge(atlases, state, call, now)
    if not ruling.asks:
        return ruling
    passes = [
        Pass(gate=question.gate, action=call.action, input_hash=call.input_hash)
        for question in ruling.asks
        if atlases.gates[question.gate].trigger.type in gate_model.FOR_ONE_CALL
    ]
    return judge(atlases, replace(state, passes=(*state.passes, *passes)), call, now)


def _people(work: EvaluationRun, gates: Sequence[Gate]) -> list[Gate]:
    """The gates that a person must pass: those of the session, which are asked with its next call, and those of the call."""
    session = [gate for key in work.people if (gate := work.atlases.gates.get(key)) is not None]
    return [*session, *(gate for gate in gates if gate.asks_people)]


def _on_card(work: EvaluationRun, call: GatedCall) -> set[str]:
    """The gates that whoever was asked about exactly this call saw."""
    return {card.gate for card in work.cards if call.call_id and card.call == call.call_id}


def _seen(work: EvaluationRun, call: GatedCall, people: Sequence[Gate]) -> bool:
    """Whether whoever approved saw all of these gates."""
    if not people:
        return True
    return call.approved and _on_card(work, call).issuperset(gate.key for gate in people)


def shown(
    atlases: CompiledAtlases, state: GateState, call: GatedCall, gates: Sequence[Gate], now: datetime
) -> Evaluation:
    """People are asked about a call, and these gates stand on what they see. Written with the request, and only then."""
    work = EvaluationRun(atlases, state, now)
    if call.call_id:
        cards = [card for card in work.cards if card.call != call.call_id]
        cards += [GateCard(gate=gate.key, call=call.call_id) for gate in gates]
        work.cards = cards[-gate_model.MAX_CARDS :]
    return Evaluation(state=work.state())


def ran(
    atlases: CompiledAtlases, state: GateState, call: GatedCall, now: datetime, *, grants: bool = True
) -> Evaluation:
    """A call is sent: its passes are used up, its limits count it, what people approved is passed, and what stands before it
    and asks nothing gives what it grants. Without ``grants`` only what it uses up is gone."""
    work = EvaluationRun(atlases, state, now)
    rules = atlases.of_action(call.action)
    gates = _gates_before(work, rules, atlases.risk_of(call.action, call.risk))
    if grants:
        granting = [gate for gate in within_budget(work, gates, silent=True) if _opens_for_one(gate)]
        for gate in granting:
            work.grant(gate)
        if work.rights_changed:
            for gate in granting:
                work.restrict(gate)
    if call.approved:
        on_card = _on_card(work, call)
        for gate in _people(work, gates):
            if gate.key in on_card:
                work.pass_gate(gate)
        work.people = [key for key in work.people if key not in on_card]
    work.passes = _without(work.passes, call)
    if work.answers:
        work.answers = [entry for entry in work.answers if not (entry.action and _is_about(entry, call))]
    work.spent.update(charged(rules, work.spent, now))
    # Counted only where somebody looks at it: otherwise most calls leave everything as it was, and nothing is written.
    after = work.state(executed=state.executed + 1) if atlases.counting else work.state()
    return Evaluation(state=after, traces=tuple(work.traces), fired=tuple(work.fired))


def _without(passes: Sequence[Pass], call: GatedCall) -> list[Pass]:
    """One pass of each gate goes with the call."""
    remaining, used_gates = list[Pass](), set[str]()
    for gate_pass in passes:
        if _is_about(gate_pass, call) and gate_pass.gate not in used_gates:
            used_gates.add(gate_pass.gate)
        else:
            remaining.append(gate_pass)
    return remaining


def within_budget(work: EvaluationRun, gates: Sequence[Gate], *, silent: bool = False) -> Sequence[Gate]:
    """The most important first. What blocks or restricts is never left out; what is left out is traced, unless it was
    ``told`` before."""
    budget = work.atlases.budget
    most, time = budget.max_checkpoints_per_input, budget.max_checkpoint_time_ms
    if most is None and time is None and len(gates) <= MAX_FIRED:
        return gates
    late = time is not None and work.elapsed() > time
    reason = "max_checkpoint_time_ms" if late else "max_checkpoints_per_input"
    if most is None or most > MAX_FIRED:
        most, reason = MAX_FIRED, reason if late else AT_ONCE
    room = most - sum(gate.is_due for gate in gates)
    within, left_out = list[Gate](), list[Gate]()
    for gate in gates:
        if gate.is_due:
            within.append(gate)
        elif room > 0 and not late:
            within.append(gate)
            room -= 1
        else:
            left_out.append(gate)
    if silent or work.looking:
        return within
    if reason == AT_ONCE or len(left_out) > MAX_FIRED:  # too many to trace each of them
        work.traces += [gate_model.skipped(gate, reason, others=len(left_out) - 1) for gate in left_out[:1]]
    else:
        work.traces += [gate_model.skipped(gate, reason) for gate in left_out]
    return within

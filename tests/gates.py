"""Atlases made of values, and sessions that live under them: for tests of what gates say."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from cortex_plane.agents.model.tools import Risk
from cortex_plane.gates.model.atlases import (
    PRIORITIES,
    Action,
    Atlas,
    AtlasPolicy,
    AtlasPolicyType,
    Audience,
    Capability,
    ContextBlock,
    Gate,
    GateQuestion,
    Mode,
    ResponseType,
    Steward,
    Trigger,
    TriggerType,
)
from cortex_plane.gates.model.gates import (
    NOTHING_YET,
    Answered,
    Evaluation,
    GatedCall,
    GateInput,
    GateState,
    Ruling,
    Trace,
    kept_state,
    state_of,
)
from cortex_plane.gates.rules.answers import answer, ignored, meant
from cortex_plane.gates.rules.evaluation import at_boundary, judge, ran, requested, shown
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.policies.model.policies import PolicyVerdict

ATLAS = "com.acme"
NOON = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def ask(id: str = "sure", kind: ResponseType = ResponseType.ACKNOWLEDGMENT, **more: Any) -> GateQuestion:
    return GateQuestion(question_id=id, question=f"I understand {id}.", response_type=kind, **more)


def gate(id: str, kind: TriggerType, *, of: str = ATLAS, mode: Mode = Mode.BLOCKING, **more: Any) -> Gate:
    """With a question, where it is blocking and says nothing else. Fields of its trigger begin with `on_`."""
    on = {key.removeprefix("on_"): more.pop(key) for key in list(more) if key.startswith("on_")}
    if mode is Mode.BLOCKING:
        more.setdefault("questions", (ask(),))
    more.setdefault("priority", PRIORITIES[kind])
    return Gate(gate_id=id, atlas_id=of, name=id.title(), trigger=Trigger(type=kind, **on), mode=mode, **more)


def human(id: str, kind: TriggerType, **more: Any) -> Gate:
    return gate(id, kind, audience=Audience.HUMAN, **more)


def policy(kind: AtlasPolicyType, *actions: str, id: str | None = None, **more: Any) -> AtlasPolicy:
    return AtlasPolicy(policy_id=id or kind, type=kind, actions=actions or ("*",), **more)


ALLOW_ALL = policy(AtlasPolicyType.ALLOW)


def atlas(
    *gates: Gate, id: str = ATLAS, policies: tuple[AtlasPolicy, ...] = (ALLOW_ALL,), **more: Any
) -> Atlas:
    """Everything is allowed, where it says nothing else."""
    return Atlas(
        atlas_id=id, version="1", name="Acme", digest="d", steward=Steward(id="s", name="S"), gates=gates,
        policies=policies, **more,
    )  # fmt: skip


def capability(id: str, *actions: str, locked: bool = False) -> Capability:
    return Capability(capability_id=id, name=id, actions=actions, locked=locked)


def context(id: str, content: str = "Known.", **more: Any) -> ContextBlock:
    return ContextBlock(context_id=id, name=id.title(), content=content, **more)


def action(id: str, risk: Risk = Risk.LOW, **more: Any) -> Action:
    return Action(action_id=id, name=id, risk_tier=risk, **more)


def call(name: str, risk: Risk = Risk.LOW, *, approved: bool = False, **arguments: Any) -> GatedCall:
    text = json.dumps(arguments, sort_keys=True).encode()
    input_hash = hashlib.sha256(text).hexdigest()
    return GatedCall(
        action=name, arguments=arguments, input_hash=input_hash, risk=risk, approved=approved,
        call_id=f"{name}:{input_hash}",
    )  # fmt: skip


class Life:
    """A session under atlases. After each step its state goes through the form in which a row keeps it."""

    def __init__(self, *atlases: Atlas, begun: bool = True) -> None:
        self.atlases = CompiledAtlases(atlases)
        self.now = NOON
        self.state: GateState = NOTHING_YET
        self.traces: list[Trace] = []
        self.heard = 0
        if begun:
            self.step()

    def _take(self, done: Evaluation | Ruling | Answered) -> None:
        kept = state_of(json.loads(json.dumps(kept_state(done.state))))
        assert kept == done.state
        self.state = kept
        self.traces += done.traces

    def step(self, *said: str, passing: float = 0, **moment: Any) -> Evaluation:
        self.now += timedelta(seconds=passing)
        done = at_boundary(self.atlases, self.state, GateInput(now=self.now, inputs=said, **moment))
        self._take(done)
        return done

    def judge(self, given: GatedCall | str) -> Ruling:
        """People are asked at once, where they must be."""
        asked = call(given) if isinstance(given, str) else given
        done = judge(self.atlases, self.state, asked, self.now)
        self._take(done)
        if done.verdict is PolicyVerdict.REQUIRES_APPROVAL:
            self._take(shown(self.atlases, self.state, asked, done.people, self.now))
        return done

    def verdict(self, given: GatedCall | str) -> PolicyVerdict:
        return self.judge(given).verdict

    def answer(self, gate_id: str, call_name: str | None = None, /, **answers: Any) -> Answered:
        """`sure` is agreed to, where nothing is said."""
        found = meant(self.atlases, self.state, gate_id, call_name)
        done = answer(self.atlases, self.state, found, answers or {"sure": "understood"}, {}, self.now)
        self._take(done)
        return done

    def ignore(self) -> Evaluation:
        done = ignored(self.atlases, self.state, self.now)
        self._take(done)
        return done

    def request(self, what: str) -> Evaluation:
        done = requested(self.atlases, self.state, what, self.now)
        self._take(done)
        return done

    def run(self, given: GatedCall | str) -> Evaluation:
        done = ran(self.atlases, self.state, call(given) if isinstance(given, str) else given, self.now)
        self._take(done)
        return done

    def traced(self) -> list[tuple[str, str]]:
        """Since the last time."""
        told = [
            (each.type.removeprefix("checkpoint_"), each.payload["checkpoint_id"]) for each in self.traces
        ]
        self.traces.clear()
        return told

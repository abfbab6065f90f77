"""Gates as values: their state in a session, what an evaluation changes, and the trace events they leave."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from cortex_plane.gates.model.atlases import Gate, TriggerType
from cortex_plane.jobs.model.effects import STEP
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.fields import Risk, adapter, parse
from cortex_plane.policies.model.policies import PolicyVerdict, Template
from cortex_plane.sessions.model.events import TraceType
from cortex_plane.tenancy.model.access import Fact

ANSWER = "plane.answer"
"""The tool by which an agent answers a gate."""
REQUEST_CONTEXT = "plane.request_context"
"""The tool by which an agent asks for what its stewards wrote down."""
END_SESSION = "plane.end_session"
"""The tool by which an agent ends its own session, if its settings name it or it is code."""
PLANE_TOOLS = frozenset({ANSWER, REQUEST_CONTEXT})
OF_THE_PLANE = frozenset({*PLANE_TOOLS, "plane.ask", "plane.ask_person", END_SESSION, STEP})
"""What gates do not look at: it is theirs, or sends nothing, or is a step of code. By exact name."""
MAX_PASSES = 200
MAX_OPEN = 50
"""Questions about calls that wait at the same time."""
MAX_CARDS = 100
"""What people were shown of the newest calls; whoever approves an older one is asked again."""
MAX_ANSWERED = 20
"""Gates whose answers are remembered for people, the newest."""
MAX_REQUESTED = 20
"""Names that an agent asks for at once."""
MAX_MISSED = 50
MAX_TASKS = 50
MAX_SHUT = 20
"""Calls that one gate shuts before it shuts every call that it stands before."""
MAX_TRIES = 20
"""Wrong answers to one gate, about whatever calls, before it shuts every call that it stands before; more where its
`max_attempts` is more."""
EVERY_CALL = "*"
UNANSWERED = "Required question not answered"
FOR_ONE_CALL = frozenset({TriggerType.ACTION_PRE, TriggerType.RISK_THRESHOLD})
"""They are passed for one call; all others until they fire again, or their capability is locked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Open:
    """A gate that waits for the agent's answers."""

    gate: str
    """Its key."""
    call: str = ""
    """A short name of the call that it stops; empty where it stops the session."""
    action: str = ""
    input_hash: str = ""
    attempts: int = 0
    """Wrong answers so far, and responses that had none."""
    fault: str = ""
    """What was wrong with the last one."""
    at: datetime | None = None
    arguments: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Digests of the call's arguments that answers must equal, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """A gate was passed for one call, which has not run yet."""

    gate: str
    action: str
    input_hash: str


@dataclass(frozen=True, kw_only=True, slots=True)
class GateCard:
    """A gate that people were shown when they were asked about this call: their yes to it passes this gate, and no other."""

    gate: str
    call: str
    """The call's own id. Another call with the same arguments is another one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shut:
    """A gate that nobody passes any more."""

    gate: str
    reason: str
    action: str = ""
    """Empty: the whole session; `*`: every call that the gate stands before."""
    input_hash: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateAnswers:
    """What the agent answered to a gate that it passed, for people who decide about its calls."""

    gate: str
    """Its key."""
    action: str = ""
    """Of a gate that is passed for one call: that call."""
    input_hash: str = ""
    answers: dict[str, Any]
    """By question."""
    cut: dict[str, int] = field(default_factory=dict)
    """By question: how many characters an answer had of which only the beginning is here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownAnswer:
    """One answer, as people see it."""

    gate: str
    """Its key."""
    question_id: str
    question: str
    answer: Any
    cut: int | None = None
    """How many characters it had, where only its beginning is here; the whole is on the audit trail."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnseenCall:
    """A call that ended while its gates could not be read."""

    action: str
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CapabilityState:
    """Whether a capability is open, and who did it."""

    open: bool
    by: str
    """A gate's key."""
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionRule:
    allow: bool
    by: str
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class ActiveGuidance:
    """A context or a guidance that the agent is told from now on."""

    by: str
    """A gate's key."""
    at: datetime
    until: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """How much of a limit is used up."""

    since: datetime
    calls: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GateState:
    """Everything that the gates of one session remember."""

    started: bool = False
    heard: int = 0
    """The messages up to here were looked at for keywords."""
    executed: int = 0
    passed: dict[str, datetime] = field(default_factory=dict)
    open: tuple[Open, ...] = ()
    people: tuple[str, ...] = ()
    """Gates of the session that a person must pass before the agent acts."""
    cards: tuple[GateCard, ...] = ()
    passes: tuple[Pass, ...] = ()
    answers: tuple[GateAnswers, ...] = ()
    shut: tuple[Shut, ...] = ()
    tried: dict[str, int] = field(default_factory=dict)
    """By gate: wrong answers about calls that no right one followed."""
    capabilities: dict[str, CapabilityState] = field(default_factory=dict)
    """By `atlas/capability`; what is not here is as its atlas begins."""
    actions: dict[str, ActionRule] = field(default_factory=dict)
    """By glob."""
    contexts: dict[str, ActiveGuidance] = field(default_factory=dict)
    """By `atlas/context`."""
    guidance: dict[str, ActiveGuidance] = field(default_factory=dict)
    """By the key of the gate that gives it."""
    fired: dict[str, datetime] = field(default_factory=dict)
    """By atlas: when it was met first; by `atlas@seconds`: when its gates that come round so often fired last."""
    counted: dict[str, int] = field(default_factory=dict)
    """How many calls had run then; by atlas, and by `atlas@calls`."""
    spent: dict[str, Window] = field(default_factory=dict)
    """By `atlas/policy`."""
    since: datetime | None = None
    tasks: tuple[str, ...] = ()
    """The newest jobs whose input was looked at: it is not again where one of them is tried again."""
    missed: tuple[UnseenCall, ...] = ()
    """What comes after these calls fires with the next look."""

    @property
    def asks(self) -> tuple[Open, ...]:
        """What stops the whole session until it is answered."""
        return tuple(question for question in self.open if not question.call)

    @property
    def ended(self) -> Shut | None:
        """The gate that shut the session for good."""
        return next((entry for entry in self.shut if not entry.action), None)


NOTHING_YET = GateState()


def state_of(data: Mapping[str, Any] | None) -> GateState:
    """From the JSON value that `kept_state` made."""
    return parse(GateState, data) if data else NOTHING_YET


def kept_state(state: GateState) -> dict[str, Any]:
    """As a row keeps it: a JSON value, without what is as in the beginning."""
    data: dict[str, Any] = adapter(GateState).dump_python(state, mode="json", exclude_defaults=True)
    return data


@dataclass(frozen=True, kw_only=True, slots=True)
class GatedCall:
    """A call, as gates look at it."""

    action: str
    arguments: Mapping[str, Any]
    input_hash: str
    risk: Risk = Risk.MEDIUM
    """The tool's own. Of it and the atlas's, the higher counts."""
    approved: bool = False
    told: bool = False
    """It was judged before: what only advises or looks on did so then."""
    call_id: str = ""
    """Its own; empty where nobody is asked about it, so that nobody was shown anything."""


def call_name(call: GatedCall) -> str:
    """A short name of exactly this call, by which an answer says which one it is about."""
    return hashlib.sha256(f"{call.action}\n{call.input_hash}".encode()).hexdigest()[:8]


def value_digest(value: Any) -> str:
    """Of a JSON value; 17 and 17.0 are equal."""
    return hashlib.sha256(canonical(value)).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class GateInput:
    """What happened since gates were looked at last."""

    now: datetime
    inputs: tuple[str, ...] = ()
    """What people said, or what a task begins with."""
    heard: int = 0
    """The position of the last of these messages."""
    task: str = ""
    """The job that begins with them, where it is a task."""
    finished: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    custom: frozenset[str] = frozenset()
    """Keys of gates whose custom trigger fired."""
    unknown: frozenset[str] = frozenset()
    """Keys of gates whose custom trigger could not be asked: what they forbid is forbidden."""
    ends: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """What gates say at one moment."""

    state: GateState
    traces: tuple[Trace, ...] = ()
    fired: tuple[Gate, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """A constraint under which a call is allowed."""

    kind: str
    """rate_limit, budget, time_window or scope."""
    name: str
    detail: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ruling:
    """What the atlases say of one call; policies are asked after them, and the stricter of the two counts."""

    verdict: PolicyVerdict
    rule: str
    """What decided, as the trail and the card name it."""
    reason: str
    """For the agent: what to do now."""
    state: GateState
    """After it: with questions opened and advice given. What running uses up is not used up yet."""
    risk: Risk
    fired: tuple[Gate, ...] = ()
    asks: tuple[Open, ...] = ()
    """What the agent must answer first; the verdict is then deny."""
    people: tuple[Gate, ...] = ()
    """Gates that a person passes by approving it."""
    template: Template | None = None
    """Who approves, where a policy of an atlas demands it."""
    policy_reason: str = ""
    """Why that policy demands it, in its steward's words."""
    answers: tuple[ShownAnswer, ...] = ()
    """What the agent answered to the gates before it."""
    strict: bool = False
    """Policies judge it as a call that changes something."""
    overrides: bool = False
    """Running it needs an approval that a policy of an atlas demanded."""
    limits: tuple[Limit, ...] = ()
    traces: tuple[Trace, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """What became of an answer."""

    state: GateState
    valid: bool
    gate: str | None
    told: dict[str, Any]
    """What the agent is told: the result of its call."""
    traces: tuple[Trace, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptParts:
    """What gates add to what the model is told."""

    instructions: str = ""
    """Part of the system prompt: guidance of the format system_instruction."""
    knowledge: str = ""
    """Part of the system prompt, after the agent's own: contexts and other guidance."""
    questions: str = ""
    """The last thing that the model reads: what it must answer first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    type: TraceType
    payload: dict[str, Any]
    sync: bool = False


def trace(kind: TraceType, gate: Gate, **payload: Any) -> Trace:
    fields = {"atlas_id": gate.atlas_id, "checkpoint_id": gate.gate_id, **payload}
    return Trace(type=kind, payload=fields, sync=gate.force_sync_trace)


def triggered(gate: Gate, data: dict[str, Any]) -> Trace:
    return trace(TraceType.TRIGGERED, gate, checkpoint_type=gate.trigger.type, mode=gate.mode, trigger_data=data)


def skipped(gate: Gate, reason: str, others: int = 0) -> Trace:
    """A gate that was not looked at, or could not be asked whether it fires. ``others``: so many more, for the same reason."""
    more = {"others": others} if others else {}
    return trace(TraceType.SKIPPED, gate, checkpoint_type=gate.trigger.type, reason=reason, **more)


def gate_in(payload: Mapping[str, Any]) -> Any:
    """The id of the gate that a trace tells of."""
    return payload.get("checkpoint_id")


def type_in(payload: Mapping[str, Any]) -> Any:
    return payload.get("checkpoint_type")


@dataclass(frozen=True, slots=True)
class GateRecord:
    """What gates did, for the caller to append to its own write."""

    facts: Sequence[Fact] = ()
    events: Sequence[tuple[str, dict[str, Any]]] = ()
    written: dict[str, Any] = field(default_factory=dict)

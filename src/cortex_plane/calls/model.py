"""Calls of tools, resolutions of goals, and what gates are shown of a call."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, Field, StringConstraints, WithJsonSchema
from pydantic.dataclasses import dataclass as draft
from pydantic_core import PydanticCustomError

from cortex_plane.agents.model.tools import OnUncertain, is_tool_name
from cortex_plane.approvals.model.approvals import ApprovalKind, ApprovalStatus
from cortex_plane.gates.model.gates import MAX_REQUESTED, Limit
from cortex_plane.jobs.model.effects import IN_DOUBT, CallStatus
from cortex_plane.jobs.model.jobs import TERMINAL, JobStatus
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import DRAFT, UNDECLARED, JsonObject, JsonValue, Name, Note, Risk, highest_risk
from cortex_plane.kernel.schemas import Unusable, check_strangers
from cortex_plane.policies.model.policies import PolicyVerdict

APP = "external"
"""The app of jobs that no worker runs."""
DISPATCH_SECONDS = 30.0
"""How long after its intent a call may still begin."""
DEFAULT_TIMEOUT = 300.0
MAX_WAIT = 60.0
MAX_HOOK_BYTES = 8 * 1024 * 1024
"""Of an event of a coding agent: images that it read come whole, and that the tool ran is recorded also where its result is not kept."""
MAX_BATCH = 20
"""Calls of one batch."""
_PRINTABLE = r"^[\x21-\x7e]+$"


def _tool_name(value: str) -> str:
    if not is_tool_name(value):
        raise PydanticCustomError(
            "tool_name", "must be lower-case words with dots between, such as refunds.create, of at most 64 characters"
        )
    return value


def _usable(value: dict[str, Any]) -> dict[str, Any]:
    try:
        check_strangers(value)
    except Unusable as error:
        raise PydanticCustomError("schema", "cannot be used: {reason}", {"reason": str(error)}) from None
    return value


ToolName = Annotated[str, StringConstraints(min_length=1, max_length=64), AfterValidator(_tool_name)]
Digest = Annotated[str, StringConstraints(pattern=r"^[a-f0-9]{64}$")]
Sender = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=_PRINTABLE)]
Schema = Annotated[JsonObject, AfterValidator(_usable)]
MAX_KEY = 255
CallKey = Annotated[str, StringConstraints(min_length=1, max_length=MAX_KEY, pattern=_PRINTABLE)]


_HASHED = "sha256"


def call_key(outside_id: str, tool_call_id: str) -> str:
    """The key of a call that a framework names within a thread, a conversation or a run: the same in every process and after every
    pause, and another one for any other pair. What cannot be a key stands there as its SHA-256."""
    for name, value in (("session", outside_id), ("call", tool_call_id)):
        if not isinstance(value, str) or not value:
            raise InvalidInput(
                f"The id of the {name} must be a text that is not empty.",
                field="key",
                hint="Give the id that the framework has: the same after every pause.",
            )
    key = f"{outside_id.replace('%', '%25').replace(':', '%3A')}:{tool_call_id}"
    is_plain = len(key) <= MAX_KEY and outside_id != _HASHED and all("!" <= character <= "~" for character in key)
    return key if is_plain else f"{_HASHED}:{hashlib.sha256(key.encode('utf-8', 'backslashreplace')).hexdigest()}"


@draft(config=DRAFT, frozen=True, kw_only=True)
class CallDraft:
    """What an agent wants to do."""

    tool: ToolName
    arguments: JsonObject = Field(default_factory=dict)
    read_only: bool = False
    """What the agent claims. The plane cannot look at its code: a claim allows nothing unless a policy says so."""
    risk: Risk | None = None
    """Where it is left out medium is assumed, and no atlas speaks for the call."""
    on_uncertain: OnUncertain = OnUncertain.ASK_HUMAN
    timeout_seconds: Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)] = DEFAULT_TIMEOUT
    """How long the call may take once it has begun; after that nobody knows what became of it."""
    key: CallKey | None = None
    """One key is one call of the agent: asked for again, in whatever session, it is answered with the same call."""
    parameters: Schema | None = None
    """The tool's JSON Schema, whole in itself. With it an approver may edit the arguments."""
    dispatch: bool = False
    """Begin at once where that is allowed: the answer is then that of the intent too."""
    sender: Sender | None = None
    """A random name of this one try. Whoever repeats a request with it gets the same answer again."""
    runner: Sender | None = None
    """A random name of the process that runs the tool. Where another process began the same call in this session, or in an earlier one of
    its outside id, and nobody knows what became of it, the answer is that call, whatever the key: a model that is asked again gives its
    call a new id."""
    says: Note | None = None
    """What the agent says about it, for whoever decides."""
    callback: Name | None = None
    """A webhook connection of the org, by name or id: it is told when a person decided, or nobody did in time."""

    @property
    def settlement(self) -> OnUncertain:
        """What only reads may simply be read again, whoever was asked about it."""
        return OnUncertain.RETRY_WITH_KEY if self.read_only else self.on_uncertain

    @property
    def tool_digest(self) -> str:
        """Names what was declared: a standing approval, a grant and an edit are for exactly this."""
        declaration = {
            "name": self.tool, "parameters": self.parameters, "read_only": self.read_only, "risk": self.risk or UNDECLARED,
            "on_uncertain": self.on_uncertain, "timeout_seconds": self.timeout_seconds,
        }  # fmt: skip
        return hashlib.sha256(canonical(declaration)).hexdigest()


def _keyed(value: list[CallDraft]) -> list[CallDraft]:
    if any(call.key is None for call in value):
        raise PydanticCustomError("keys", "need a key each, so that the request can be repeated")
    if len({call.key for call in value}) < len(value):
        raise PydanticCustomError("keys", "need different keys: one key stands for one call")
    return value


@draft(config=DRAFT, frozen=True, kw_only=True)
class CallBatch:
    """Several calls of one response."""

    calls: Annotated[list[CallDraft], Field(min_length=1, max_length=MAX_BATCH), AfterValidator(_keyed)]
    """The calls, in their order."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class IntentDraft:
    """The agent begins now."""

    input_hash: Digest
    """Of the arguments that it is about to run: those that were approved, edits included."""
    sender: Sender | None = None
    runner: Sender | None = None
    """As in the call."""
    did_not_happen: bool = False
    """It looked (`on_uncertain: probe`): the attempt before took no effect and never will."""
    renew: bool = False
    """It began nothing yet, and its time to begin is over. Only for the same sender."""


class OutcomeStatus(StrEnum):
    """What became of a call."""

    COMPLETED = "completed"
    FAILED = "failed"
    """It failed, and nothing happened."""
    UNKNOWN = "unknown"
    """It may have happened."""
    PARKED = "parked"
    """It did nothing that may not be done again: what it called itself waits, such as a subagent for a person. Under its key it may begin
    again, from its start."""
    WITHDRAWN = "withdrawn"
    """Its agent takes it back before it began: nobody is asked about it any more, and it never runs."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class OutcomeDraft:
    status: OutcomeStatus
    result: JsonValue = None
    error: Annotated[str, StringConstraints(max_length=4000)] | None = None
    attempt: Annotated[int, Field(strict=True, ge=1, le=1_000_000)] | None = None
    """Which attempt this is about; the last one where it is not said. `parked` needs it."""
    probed: bool = False
    """The agent did not see it happen; it looked afterwards and found it."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class Ending:
    """How an external session ends: with a result, or with an error."""

    result: JsonObject | None = None
    """The result of the session."""
    error: Note | None = None


Tokens = Annotated[int, Field(strict=True, ge=0, le=1_000_000_000)]


@draft(config=DRAFT, frozen=True, kw_only=True)
class ReportedUsage:
    """What one answer of a model took, as the agent's framework tells it."""

    model: Annotated[
        Name, Field(description="The model, with its provider where that is known: `anthropic:claude-sonnet-4-5`.")
    ]
    prompt_tokens: Tokens
    """Those of the cache included."""
    completion_tokens: Tokens
    cache_read_tokens: Tokens = 0
    cache_write_tokens: Tokens = 0
    cost_micros: Annotated[int, Field(strict=True, ge=0, le=1_000_000_000_000)] | None = None
    """Millionths of a US dollar, where the framework knows the price."""
    seconds: Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)] = 0.0
    """How long the model took."""


class Dialect(StrEnum):
    """The coding agents whose hooks the plane answers, by the slug of their agent in the plane where nothing else is said."""

    CLAUDE = "claude-code"
    CODEX = "codex"
    GEMINI = "gemini"


HookPayload = Annotated[
    dict[str, Any],
    WithJsonSchema({
        "type": "object",
        "description": "What the coding agent gives to its hooks, unchanged.",
        "properties": {"hook_event_name": {"type": "string", "description": "Such as `PreToolUse`.", "pattern": "^[A-Za-z]{1,100}$"}},
        "required": ["hook_event_name"],
        "additionalProperties": True,
    }),
]  # fmt: skip
HookAnswer = Annotated[dict[str, Any], Field(description="What it reads from them.")]


class Next(StrEnum):
    """What the agent does now."""

    RUN = "run"
    """It has begun: run it with these arguments before `dispatch_before`, then report the outcome."""
    BEGIN = "begin"
    """It may begin: report the intent with the digest of these arguments."""
    WAIT = "wait"
    """A person decides, a hold stands, or an attempt may still be under way: ask again later, or wait for it."""
    PROBE = "probe"
    """Nobody knows whether it happened: look, then report what you found or begin again with `did_not_happen`."""
    USE = "use"
    """It is done, and this is its result."""
    STOP = "stop"
    """It was denied, it failed, or its session is over. Do not do it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExternalCall:
    id: UUID
    """Also the key to send to whoever acts twice on what they get twice."""
    session_id: UUID
    job_id: UUID
    agent: str
    step_index: int
    tool: str
    tool_digest: str
    arguments: Any
    """Those to run: an approver may have edited them."""
    input_hash: str
    edited: bool
    """Whether an approver edited the arguments."""
    read_only: bool
    risk: Risk
    declares_risk: bool = False
    """Whether its agent said how risky it is."""
    on_uncertain: OnUncertain
    timeout_seconds: float
    """How long the call may take once it has begun."""
    key: str | None
    """The key that its agent gave it."""
    status: CallStatus
    verdict: PolicyVerdict
    rule: str
    next: Next = Next.WAIT
    reason: str | None = None
    """Why there is nothing to do but wait or stop."""
    held: bool
    """Whether its session is held: nothing may begin."""
    approval_id: UUID | None
    approval_status: ApprovalStatus | None
    """Where its request for approval stands."""
    approval_kind: ApprovalKind | None
    """What its request for approval asks."""
    deadline: datetime | None
    """Until when somebody may decide."""
    attempt: int
    dispatch_before: datetime | None
    """Until when it may begin."""
    settle_after: datetime | None
    """From then on nobody runs the last attempt any more."""
    result: Any
    error: str | None
    settled_by: str | None
    newly_answered: bool = False
    """Whether people answered if it happened, and nobody had that answer before this response."""
    job_status: JobStatus
    """Where its job stands."""
    now: datetime
    """The database's clock, for countdowns."""
    created_at: datetime
    finished_at: datetime | None

    @property
    def is_asked(self) -> bool:
        """Whether a person is being asked whether it happened."""
        return self.approval_kind is ApprovalKind.UNCERTAIN_EFFECT and self.approval_status is ApprovalStatus.PENDING

    @property
    def is_withdrawn(self) -> bool:
        """Whether its agent took it back. `settled_by` alone does not say so: names of people stand there, too."""
        return self.status is CallStatus.REJECTED and self.settled_by == OutcomeStatus.WITHDRAWN


@dataclass(frozen=True, kw_only=True, slots=True)
class CallPreview:
    """What would be decided about a call now."""

    verdict: PolicyVerdict
    rule: str
    reason: str | None
    """Why it is denied."""
    arguments: dict[str, Any]
    input_hash: str


@dataclass(frozen=True, kw_only=True, slots=True)
class CallProblem:
    """Why a call of a batch was not written: as the same call alone would be answered."""

    status: int
    """The HTTP status."""
    code: str
    """The stable name of the error, for programs."""
    detail: str
    """What went wrong, in words."""
    hint: str | None
    questions: list[dict[str, Any]] = field(default_factory=list)
    """Of gates that the agent must answer first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallAnswer:
    """Either the call, or why there is none."""

    call: ExternalCall | None = None
    """The call, where it was written."""
    error: CallProblem | None = None
    """Why it was not written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchAnswer:
    answers: list[CallAnswer]
    """In the order of the calls."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestedCall:
    """A call that an agent elsewhere asks for."""

    id: UUID
    name: str
    digest: str
    arguments: bytes
    input_hash: str
    read_only: bool
    risk: Risk
    declares_risk: bool = False
    says: str | None = None

    @classmethod
    def of(cls, call: ExternalCall) -> RequestedCall:
        return cls(
            id=call.id, name=call.tool, digest=call.tool_digest, arguments=canonical(call.arguments),
            input_hash=call.input_hash, read_only=call.read_only, risk=call.risk, declares_risk=call.declares_risk,
        )  # fmt: skip

    def with_risk(self, known: Risk | None) -> RequestedCall:
        """Of the risk that its agent declares and the one that is known of its tool, the higher counts."""
        return replace(self, risk=highest_risk(self.risk, known))


PARKED = "What it called waits: ask again with the same key once that is decided."
_BEFORE_IT_BEGAN = frozenset({CallStatus.ALLOWED, CallStatus.APPROVED, CallStatus.CLEARED})


def advised(call: ExternalCall, *, is_sender: bool) -> ExternalCall:
    """With what to do next. ``is_sender``: whoever asks is the one that has the intent, in the same try."""
    what, why = _advice(call, is_sender)
    return replace(call, next=what, reason=why)


def _advice(call: ExternalCall, is_sender: bool) -> tuple[Next, str | None]:
    status = call.status
    if status is CallStatus.COMPLETED:
        return Next.USE, None
    if status in (CallStatus.FAILED, CallStatus.REJECTED, CallStatus.ANSWERED):
        return Next.STOP, call.error
    if call.job_status in TERMINAL and call.is_asked:
        return Next.WAIT, "Nobody knows whether it happened in a session that is over; a person is asked."
    if call.job_status in TERMINAL and status in IN_DOUBT:
        return Next.STOP, f"Nobody knows whether it happened, and its session is over: its job is {call.job_status}."
    if call.job_status in TERMINAL:
        return Next.STOP, f"The session is over: its job is {call.job_status}."
    if status is CallStatus.AWAITING:
        return Next.WAIT, "A person must approve it."
    if call.held:
        return Next.WAIT, "The session is held."
    if status is CallStatus.INTENDED and is_sender:
        if call.dispatch_before is None or call.now >= call.dispatch_before:
            return Next.BEGIN, "Its time to begin is over: if you began nothing, begin again with `renew`."
        return Next.RUN, None
    if status is CallStatus.PARKED:
        return Next.BEGIN, PARKED
    if status in _BEFORE_IT_BEGAN:
        return Next.BEGIN, None
    if status is CallStatus.INTENDED and call.settle_after is not None and call.now < call.settle_after:
        return Next.WAIT, f"It may be under way until {call.settle_after.isoformat()}."
    if call.is_asked:
        return Next.WAIT, "Nobody knows whether it happened; a person is asked."
    if call.on_uncertain is OnUncertain.RETRY_WITH_KEY:
        return Next.BEGIN, "Nobody knows whether it happened: send it again with the same key."
    if call.on_uncertain is OnUncertain.PROBE and call.settle_after is not None and call.now < call.settle_after:
        return Next.WAIT, f"Nobody knows whether it happened: look after {call.settle_after.isoformat()}."
    if call.on_uncertain is OnUncertain.PROBE:
        return Next.PROBE, "Nobody knows whether it happened: look."
    return Next.WAIT, "Nobody knows whether it happened; it is being settled."


@dataclass(frozen=True, kw_only=True, slots=True)
class OutcomeReceipt:
    """What was written of an outcome."""

    id: UUID
    status: CallStatus
    approval_id: UUID | None = None
    """Where a person is asked whether it happened."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallShown:
    """A call in a list."""

    id: UUID
    session_id: UUID
    agent: str
    tool: str
    status: CallStatus
    verdict: PolicyVerdict
    rule: str
    attempt: int
    key: str | None
    """The key that its agent gave it."""
    error: str | None
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CallDecision:
    """A call about which people are not asked any more. It permits nothing: its agent asks the plane again."""

    id: UUID
    session_id: UUID
    outside_id: str | None
    """What the world of its agent calls its session."""
    agent: str
    tool: str
    key: str | None
    """The key that its agent gave it."""
    status: CallStatus
    """Where the call stands now."""
    approval_id: UUID
    kind: ApprovalKind
    """`call`: whether it may run; `uncertain_effect`: whether it happened."""
    decision: ApprovalStatus
    """How the request ended."""
    decided_at: datetime
    """When it ended."""
    on_behalf_of: UUID | None = None
    """The member for whom a service opened the session. Members who share an outside id have a session each."""


CallName = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[a-f0-9]+$")]


@draft(config=DRAFT, frozen=True, kw_only=True)
class AnswerDraft:
    """Answers to the questions of one gate."""

    gate: Annotated[Name, Field(description="Its id, or `atlas/id` where two atlases have the same.")]
    answers: JsonObject
    """By the ids of the questions."""
    call: CallName | None = None
    """Which call it is about, where the gate stops several: as its questions name it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerReceipt:
    """What became of answers."""

    gate: str
    """The id of the gate."""
    passed: bool
    """Whether the gate is passed now."""
    next: str
    """What to do next, in words."""
    faults: dict[str, str] = field(default_factory=dict)
    """By question: what is wrong."""
    warnings: list[str] = field(default_factory=list)
    opened_capabilities: list[str] = field(default_factory=list)
    """What is open from now on, as `atlas/capability`; the first fifty."""
    opened_actions: list[str] = field(default_factory=list)
    """What may be called from now on, with * for anything; the first fifty."""
    questions: list[dict[str, Any]] = field(default_factory=list)
    """What still waits for an answer."""
    shut: bool = False
    """The gate takes no more answers."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class ReportDraft:
    """What became of a call that was executed under a resolution."""

    call: UUID
    """The id of the call."""
    outcome: OutcomeDraft
    """What became of it."""


DEFAULT_TTL_SECONDS = 300
MAX_TTL_SECONDS = 3600
MAX_ACTIONS = 1000
"""That a resolution lists."""
MAX_ASKS = 20
"""Gates that are named with one action."""


class ActionState(StrEnum):
    """What becomes of an action that is called now."""

    ALLOWED = "allowed"
    ASKS_FIRST = "asks_first"
    """It runs once somebody said what they are asked."""
    DENIED = "denied"


class Whom(StrEnum):
    """Who is asked first."""

    AGENT = "agent"
    PERSON = "person"


class ResolutionDecision(StrEnum):
    """Whether an agent may do what it asked about."""

    ALLOW = "allow"
    DENY = "deny"
    PARTIAL = "partial"
    REQUIRES_APPROVAL = "requires_approval"


@draft(config=DRAFT, frozen=True, kw_only=True)
class ResolutionRequest:
    """What an agent wants. With an action: about that one; without: about all that its atlases know."""

    goal: Note | None = None
    """In words; keyword gates read it."""
    request: (
        Annotated[
            Name | Annotated[list[Name], Field(min_length=1, max_length=MAX_REQUESTED)],
            Field(description="What the agent asks its stewards for: a context's id or a word, or a list of them."),
        ]
        | None
    ) = None
    """Contexts that are told on demand, by id; gates that fire on request, by whatever they listen for."""
    action: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """The name of the tool that it wants to call."""
    arguments: JsonObject = Field(default_factory=dict)
    risk: Risk | None = None
    """Of the call that will be made: what it does not declare either is asked of its owner."""
    ttl_seconds: Annotated[int, Field(strict=True, ge=1, le=MAX_TTL_SECONDS)] = DEFAULT_TTL_SECONDS
    """How long the answer holds."""

    @property
    def assumed_risk(self) -> Risk:
        return self.risk or UNDECLARED


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionAnswer:
    action: str
    """The name of the tool."""
    state: ActionState
    verdict: PolicyVerdict
    """Of a call that is made now; where the agent is asked first, it is refused until then."""
    rule: str
    """Which gate, policy or capability did it."""
    reason: str
    """Why it is answered so."""
    risk: Risk
    whom: Whom | None = None
    asks: list[str] = field(default_factory=list)
    """The gates that ask first, by key, at most twenty. None of them where a policy wants a person."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Permissions:
    """What is allowed in a session now, and what did it."""

    actions: list[ActionAnswer]
    """What becomes of each action that is called now."""
    capabilities: list[dict[str, Any]]
    """Each with `id`, `open`, `by` and `at`."""
    contexts: list[dict[str, Any]]
    """Texts that atlases show the agent."""
    guidance: list[dict[str, Any]]
    """Advice that gates show the agent."""
    waiting: list[dict[str, Any]]
    """Gates that wait for an answer."""
    passed: dict[str, datetime]
    """When each gate was passed, by key."""
    shut: list[dict[str, Any]]
    """Gates that take no more answers."""
    asking: list[dict[str, Any]] = field(default_factory=list)
    """The gates that actions name in `asks`, each once: `gate`, `name`, `whom` and `questions`."""
    more_asking: int = 0
    """Gates whose questions are not listed: there is too much of them."""
    limits: list[Limit] = field(default_factory=list)
    on_demand: dict[str, str] = field(default_factory=dict)
    """Names that the agent may ask for (`request` of a resolution), with what stands behind each; the first hundred."""
    more_capabilities: int = 0
    """Capabilities that are not listed: there are too many."""
    more_actions: int = 0
    """Actions that are not listed: there are too many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolution:
    id: UUID
    session_id: UUID
    trace_id: UUID
    """Its id on the audit trail."""
    decision: ResolutionDecision
    contexts: list[dict[str, Any]]
    """What the agent must know."""
    allowed_actions: list[ActionAnswer]
    """The actions that it may call now."""
    denied_actions: list[ActionAnswer]
    """The actions that it may not call now, and why."""
    questions: list[dict[str, Any]]
    """The questions that the agent must answer first."""
    constraints: list[Limit]
    """The limits under which it may act."""
    expires_at: datetime

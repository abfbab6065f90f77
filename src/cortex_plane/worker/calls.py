"""The calls of one response: what each of them is before anything is sent, and its rows, outcomes and events.

Planning is pure: it takes the response, the tools and the rules, and decides for every call whether it is refused, only
reads, or has side effects.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.agents.model.agents import SkillSettings
from cortex_plane.agents.model.completions import CallRequest, CallResult, Response, StopReason, ToolSpec
from cortex_plane.agents.model.tools import InvalidArguments, OnUncertain
from cortex_plane.approvals.model.questions import ASK_PERSON
from cortex_plane.calls.rules import pipeline
from cortex_plane.calls.rules.pipeline import MAX_ERROR
from cortex_plane.gates.model.gates import END_SESSION, Ruling
from cortex_plane.gates.rules.authorization import Authorization, StandingUse
from cortex_plane.jobs.model.checkpoints import SHOWN_BYTES, ActiveTool, ToolStatus
from cortex_plane.jobs.model.effects import SETTLED, CallStatus, ToolCall
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.model.state import Changes
from cortex_plane.jobs.rules import NO_ROWS, StepWrite
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import Risk
from cortex_plane.policies.model.policies import PolicyDecision, PolicyVerdict
from cortex_plane.sessions.model.events import EventType
from cortex_plane.worker.questions import ASK_PERSON_DIGEST, ASK_PERSON_TOOL
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import Tool, ToolContext

INTENT_FACTS = ("session_suspended", "call_sent_again", "standing_used")
"""Audit facts of sending and asking."""
ASK = "plane.ask"
"""The plane's own tool: a call of it is a question to people, and does nothing else."""
TRUNCATED = (
    "Your answer was cut off at `max_tokens`, so none of its calls were run. Say less, or make one call at a time."
)

_SPOKEN = (EventType.MESSAGE, EventType.TOOL_CALL, EventType.COMPLETION)
Events = list[tuple[str, dict[str, Any]]]


class CallKind(StrEnum):
    REFUSED = "refused"
    READ = "read"
    EFFECT = "effect"


@dataclass(slots=True)
class WriteBlobs:
    """Arguments and results of one write: they go beside the rows, so that nothing large is parsed twice."""

    arguments: list[str] = field(default_factory=list)
    results: list[str] = field(default_factory=list)

    def argument(self, value: bytes) -> int:
        self.arguments.append(value.decode())
        return len(self.arguments)

    def result(self, value: bytes | None) -> int | None:
        if value is None:
            return None
        self.results.append(value.decode())
        return len(self.results)


@dataclass(slots=True)
class Call:
    """One call while its step is under way."""

    step: int
    position: int
    request: CallRequest
    id: UUID
    kind: CallKind
    tool: Tool | None
    name: str
    digest: str | None
    values: Mapping[str, Any]
    arguments: bytes
    input_hash: str
    authorization: Authorization | None = None
    policies: str | None = None
    """The version of the policies by which it was judged last."""
    status: CallStatus | None = None
    has_row: bool = False
    asked_before: bool = False
    """People were asked about it, and must be asked again."""
    timed_out: bool = False
    attempt: int = 1
    settle_after: datetime | None = None
    result: bytes | None = None
    result_id: UUID | None = None
    error: str | None = None
    settled_by: str | None = None
    has_grant: bool = False
    """A person approved exactly this, and it was sent with that."""
    sent_digest: str | None = None
    """The version of the tool that it was sent to, by an earlier attempt."""
    state: Changes | None = None
    """What its tool changed of the agent's state: written with its outcome, if it completes."""
    end_reason: str | None = None
    """Why its tool ends the session: written with its outcome, if it completes."""
    ruling: Ruling | None = None
    """The last ruling of its session's gates."""
    judged_before: bool = False
    """An earlier attempt judged it, and its gate events are written."""
    declaration: OnUncertain | None = None
    """`on_uncertain` of the tool when the call was sent; today's code may declare another."""

    @property
    def rule(self) -> str:
        return self.authorization.decision.rule if self.authorization else ""

    @property
    def decision(self) -> PolicyDecision:
        if self.authorization is None:
            raise RuntimeError(f"The call {self.id} was not authorised.")
        return self.authorization.decision

    @property
    def code(self) -> Tool:
        if self.tool is None:
            raise RuntimeError(f"The call {self.id} was refused: it is never sent.")
        return self.tool

    @property
    def risk(self) -> Risk:
        """The higher one of the tool's own risk and that of the atlases."""
        return self.ruling.risk if self.ruling is not None else self.code.risk

    @property
    def declares_risk(self) -> bool:
        return self.code.declares_risk

    @property
    def settled(self) -> bool:
        return self.status in SETTLED

    @property
    def on_uncertain(self) -> OnUncertain | None:
        """`ask_human` for a tool that declares itself read-only and is not trusted."""
        if self.kind is not CallKind.EFFECT:
            return None
        return self.declaration or self.code.on_uncertain or OnUncertain.ASK_HUMAN

    @property
    def may_be_repeated(self) -> bool:
        """Whether it may be sent again with its key if its outcome is lost, because a policy alone allowed it and it was sent once."""
        return (
            self.on_uncertain is OnUncertain.RETRY_WITH_KEY
            and self.attempt == 1
            and not self.has_grant
            and self.authorization is not None
            and self.authorization.leaning is None
            and self.authorization.verdict is PolicyVerdict.ALLOW
        )

    def fail(self, error: str) -> None:
        self.status, self.error, self.result = CallStatus.FAILED, error[:MAX_ERROR], None

    def row(self, blobs: WriteBlobs) -> dict[str, Any]:
        """Its row in the ledger. A read has no intent, so its authorization is on the audit trail alone."""
        is_read = self.kind is CallKind.READ
        return pipeline.call_row(
            self, None if is_read else self.authorization, status=self.status, step=self.step, position=self.position,
            read_only=is_read, on_uncertain=self.on_uncertain,
            timeout_seconds=self.tool.timeout_seconds if self.tool else None, arguments=blobs.argument(self.arguments),
            result=blobs.result(self.result), result_id=self.result_id, error=self.error,
        )  # fmt: skip

    def intent(self, *, grant: bool = False, use: StandingUse | None = None) -> dict[str, Any]:
        """It has a row, and is sent with the grant of its approval, or again."""
        return pipeline.intent_row(
            self, self.attempt, self.on_uncertain, self.code.timeout_seconds, grant=grant, use=use
        )

    def outcome(self, blobs: WriteBlobs) -> dict[str, Any]:
        return pipeline.outcome_row(
            self.id, self.status, result=blobs.result(self.result), result_id=self.result_id, error=self.error,
            settled_by=self.settled_by,
        )  # fmt: skip

    def active_tool(self, *, with_result: bool = True) -> ActiveTool:
        """Its entry in the checkpoint: with its result while the step is under way, if it is small. The row has it."""
        status = ToolStatus.PENDING
        if self.settled:
            status = ToolStatus.COMPLETED if self.status is CallStatus.COMPLETED else ToolStatus.FAILED
        result = self.result if with_result and len(self.result or b"") <= SHOWN_BYTES else None
        return ActiveTool(
            tool_name=self.name, invocation_id=self.id, status=status, input_hash=self.input_hash, result=result
        )

    def call_result(self) -> CallResult:
        """What the model is sent."""
        is_error, request = self.error is not None and self.status is not CallStatus.ANSWERED, self.request
        content = canonical({"error": self.error}) if is_error else self.result or b"null"
        return CallResult(call_id=request.id, name=request.name, content=content.decode(), is_error=is_error)


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools that one agent may call, by the name that the model knows."""

    tools: Mapping[str, Tool]
    specs: Sequence[ToolSpec]
    digests: Mapping[str, str]
    side_effect_tools: frozenset[str]

    def has_side_effects(self, tool: Tool) -> bool:
        return not tool.read_only or tool.name in self.side_effect_tools


def plan_call(position: int, request: CallRequest, id: UUID, toolbox: Toolbox, step: int = 0) -> Call:
    """Plan one call. Any fault of it becomes an answer for the model, never an exception."""
    tool = toolbox.tools.get(request.name)
    if tool is None:
        error = f"There is no tool `{request.name[:100]}`. There are: {', '.join(sorted(toolbox.tools)) or 'none'}."
        return _refused_call(step, position, request, id, error)
    if request.truncated:
        return _refused_call(step, position, request, id, TRUNCATED, tool)
    try:
        arguments = tool.parse(request.arguments)
    except InvalidArguments as error:
        return _refused_call(step, position, request, id, str(error), tool)
    return Call(
        step=step,
        position=position,
        request=request,
        id=id,
        kind=CallKind.EFFECT if toolbox.has_side_effects(tool) else CallKind.READ,
        tool=tool,
        name=tool.name,
        digest=toolbox.digests[tool.name],
        values=arguments.values,
        arguments=arguments.canonical,
        input_hash=arguments.digest,
    )


def _refused_call(step: int, index: int, request: CallRequest, id: UUID, error: str, tool: Tool | None = None) -> Call:
    arguments = _storable_arguments(request.arguments)
    return Call(
        step=step,
        position=index,
        request=request,
        id=id,
        kind=CallKind.REFUSED,
        tool=None,
        name=tool.name if tool else request.name[:200] or "(no name)",
        digest=None,
        values={},
        arguments=arguments,
        input_hash=hashlib.sha256(arguments).hexdigest(),
        status=CallStatus.REJECTED,
        error=error[:MAX_ERROR],
    )


def storable(text: str) -> str:
    """Text from outside, without what the database cannot store."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "�")


def _storable_arguments(arguments: dict[str, Any] | str) -> bytes:
    """What the model sent, or as much of it as can be stored."""
    try:
        text = canonical(arguments)
    except InvalidInput:
        text = canonical(repr(arguments).encode("ascii", "backslashreplace").decode())
    return text if len(text) <= 20_000 else canonical(text[:20_000].decode(errors="ignore"))


def apply_authorization(call: Call, authorization: Authorization) -> None:
    """A call that is denied is refused, and the model is told why; one that needs a person waits for them."""
    call.authorization = authorization
    if call.kind is CallKind.REFUSED:
        return
    asks = authorization.verdict is PolicyVerdict.REQUIRES_APPROVAL
    if call.kind is CallKind.READ and (asks or authorization.leaning is not None):
        # What people are asked about leaves a row before it is sent. Reading twice harms nobody.
        call.kind, call.declaration = CallKind.EFFECT, OnUncertain.RETRY_WITH_KEY
    if authorization.verdict is not PolicyVerdict.ALLOW:
        call.status, call.error = pipeline.status_of(call.name, authorization)


def apply_row(call: Call, row: ToolCall) -> None:
    """What the ledger has about a call of an earlier attempt."""
    call.has_row = True
    call.status, call.attempt = row.status, row.attempt
    # Approved anew, it was not sent with this approval: whatever it was sent with before is over.
    call.settle_after = row.settle_after if row.status is not CallStatus.APPROVED else None
    call.error, call.result_id, call.settled_by = row.error, row.result_id, row.settled_by
    call.sent_digest, call.has_grant = row.tool_digest, row.granted and row.tool_digest == call.digest
    call.result = canonical(row.result) if row.status in (CallStatus.COMPLETED, CallStatus.ANSWERED) else None
    if call.settled or call.kind is CallKind.REFUSED:
        return
    # It was sent, or is to be sent, as an effect, whatever the tool is called today.
    call.kind, call.declaration = CallKind.EFFECT, row.on_uncertain


def with_exact_rows(calls: Sequence[Call]) -> frozenset[int]:
    """The positions of the calls that get a row with the response, with the arguments exactly as the model sent them."""
    return frozenset([c.position for c in calls if c.kind is CallKind.EFFECT and isinstance(c.request.arguments, dict)])


def group_calls(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """In order: neighbouring reads go together, each effect goes alone, and settled calls are left out."""
    reads: list[Call] = []
    for call in calls:
        if call.settled:
            continue
        if call.kind is CallKind.READ:
            reads.append(call)
            continue
        if reads:
            yield reads
            reads = []
        yield [call]
    if reads:
        yield reads


def outcome_write(call: Call) -> StepWrite:
    blobs = WriteBlobs()
    return StepWrite(outcomes=orjson.dumps([call.outcome(blobs)]), results=tuple(blobs.results))


def without_intents(write: StepWrite) -> StepWrite:
    """Everything that a write holds, except for what it would send or ask for."""
    intents = (CallStatus.INTENDED, CallStatus.AWAITING)
    rows = [row for row in orjson.loads(write.calls or b"[]") if row["status"] not in intents]
    return replace(
        write,
        calls=orjson.dumps(rows) if rows else None,
        in_rows=NO_ROWS,
        intents=None,
        dispatches=False,
        reads=False,
        requests=(),
        policies=None,
        status=None,
        events=[event for event in write.events if event[0] not in ("status", "session_paused")],
        facts=[fact for fact in write.facts if fact.action not in INTENT_FACTS],
    )


def merge_writes(first: StepWrite, then: StepWrite) -> StepWrite:
    """One write in the place of two; ``then`` decides where the job goes."""
    if first.step is not None and then.step is not None:
        raise AssertionError("one write records one response")
    calls, outcomes = _rows(first.calls), _rows(first.outcomes)
    for row in (later := _rows(then.calls)):
        row["arguments"] += len(first.arguments)
    ends = _rows(then.outcomes)
    for row in (*later, *ends):
        if row["result"] is not None:
            row["result"] += len(first.results)
    more = {**then.more, **first.more}  # of two reasons to end the session, the first
    for key in (first.more.keys() & then.more.keys()) - {"end_session"}:
        more[key] = [*first.more[key], *then.more[key]]
    return replace(
        then,
        step=then.step or first.step,
        done_step=max((s for s in (first.done_step, then.done_step) if s is not None), default=None),
        calls=orjson.dumps([*calls, *later]) if calls or later else None,
        in_rows=then.in_rows or first.in_rows,
        outcomes=orjson.dumps([*outcomes, *ends]) if outcomes or ends else None,
        arguments=(*first.arguments, *then.arguments),
        results=(*first.results, *then.results),
        stored=(*first.stored, *then.stored),
        state={**(first.state or {}), **(then.state or {})} or None,
        requests=(*first.requests, *then.requests),
        more=more,
        events=[*first.events, *then.events],
        facts=[*first.facts, *then.facts],
    )


def _rows(content: bytes | None) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = orjson.loads(content) if content else []
    return rows


def call_summary(call: Call) -> dict[str, Any]:
    decision = call.authorization.decision if call.authorization else None
    return {
        "id": str(call.id),
        "tool": call.name,
        "digest": call.digest,
        "input_hash": call.input_hash,
        "verdict": decision.verdict if decision else "rejected",
        "rule": decision.rule if decision else call.error,
    }


class PendingWrite:
    def __init__(self, due: StepWrite) -> None:
        self.due = due
        self.unwritten: list[Call] = []
        self.granted: list[Call] = []
        self.settled: list[Call] = []
        self.stored: list[tuple[UUID, bytes]] = []

    def new(self, *calls: Call) -> None:
        self.unwritten += calls

    def take(self) -> StepWrite:
        blobs = WriteBlobs()
        rows = [call.row(blobs) for call in self.unwritten]
        outcomes = [call.outcome(blobs) for call in self.settled]
        write = self.due
        write.calls = orjson.dumps(rows) if rows else None
        if write.step is not None:
            write.in_rows = write.step.in_rows.intersection([call.position for call in self.unwritten])
        write.outcomes = orjson.dumps(outcomes) if outcomes else None
        write.arguments, write.results = tuple(blobs.arguments), tuple(blobs.results)
        write.stored = tuple(self.stored)
        for call in (*self.unwritten, *self.settled):
            if call.state is not None and call.status is CallStatus.COMPLETED:
                # Of two that ran at once the later one in the response holds.
                write.state = {**(write.state or {}), **call.state}
            if call.end_reason is not None and call.status is CallStatus.COMPLETED:
                write.more = {"end_session": storable(call.end_reason)[:2000], **write.more}
        write.intents = orjson.dumps([call.intent(grant=True) for call in self.granted]) if self.granted else None
        for call in self.unwritten:
            call.has_row = True
        self.due, self.unwritten, self.granted, self.settled, self.stored = StepWrite(), [], [], [], []
        return write


async def _end_session(reason: str, context: ToolContext) -> str:
    """End this conversation for good, when everything is done. Say goodbye afterwards; nobody can write here then."""
    context.end_session(reason)
    return "The session ends when you have answered."


# Nothing outside of the plane changes, and it may be said twice.
END_TOOL = Tool(_end_session, name=END_SESSION, read_only=True, risk=Risk.LOW)
END_DIGEST = END_TOOL.version("plane").digest


def toolbox_of(app: App, skills: SkillSettings) -> Toolbox:
    return _toolbox(app, app.revision, skills)


@functools.lru_cache(maxsize=256)
def _toolbox(app: App, _revision: int, skills: SkillSettings) -> Toolbox:
    """The same for every job of an agent version, and not cheap: schemas and digests of all its tools."""
    tools = {t.provider_name: t for t in app.tools.values() if skills.tools is None or t.name in skills.tools}
    digests = {version.name: version.digest for version in app.versions}
    if skills.ask_people:
        tools[ASK_PERSON_TOOL.provider_name], digests[ASK_PERSON] = ASK_PERSON_TOOL, ASK_PERSON_DIGEST
    if END_SESSION in (skills.tools or ()):
        tools[END_TOOL.provider_name] = END_TOOL
    return Toolbox(
        tools=tools,
        specs=[tool.spec for tool in tools.values()],
        digests={END_SESSION: END_DIGEST, **digests},
        side_effect_tools=skills.side_effect_tools,
    )


# Each event of a step only names the step; readers get its text with it.
def text_events(step: int, text: str | None) -> Events:
    return [(EventType.MESSAGE, {"role": "assistant", "step": step})] if (text or "").strip() else []


def call_events(step: int, text: str | None, calls: Sequence[Call]) -> Events:
    """The response is recorded, and none of its calls was sent yet."""
    return text_events(step, text) + [_call_event(step, call) for call in calls]


def _call_event(step: int, call: Call) -> tuple[str, dict[str, Any]]:
    """With its place in the response, where that is not the first: readers find its input there before it has a row."""
    kind, data = pipeline.call_event(step, call)
    return kind, {**data, "position": call.position} if call.position else data


def result_events(step: int, calls: Sequence[Call]) -> Events:
    return [pipeline.result_event(step, call.id, call.name, call.status, call.error) for call in calls]


def completion_events(step: int, text: str) -> Events:
    """The status comes last: a reader that watches the job stops there."""
    status = (EventType.STATUS, {"status": JobStatus.COMPLETED})
    return [*text_events(step, text), (EventType.COMPLETION, {"step": step}), status]


def with_model(response: Response, events: Events) -> Events:
    """The same, with the model that answered, and its stop reason where the answer is cut off or refused."""
    extra: dict[str, Any] = {} if response.model is None else {"model": response.model}
    if response.stop_reason in (StopReason.MAX_TOKENS, StopReason.REFUSAL):
        extra["stop_reason"] = response.stop_reason
    return [(kind, data | extra if kind in _SPOKEN else data) for kind, data in events]


def call_outcome(call: Call) -> dict[str, Any]:
    """How a call ended, for the audit trail: with the digest of its result, so that its row can be compared."""
    outcome = {"id": str(call.id), "tool": call.name, "status": str(call.status)}
    if call.status not in (CallStatus.COMPLETED, CallStatus.ANSWERED) or call.result is None:
        return outcome
    return {**outcome, "result_hash": hashlib.sha256(call.result).hexdigest()}


def reply_digest(text: str | None) -> dict[str, Any]:
    return {} if text is None else {"reply_sha256": hashlib.sha256(text.encode()).hexdigest()}

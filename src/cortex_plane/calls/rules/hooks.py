"""What coding agents give to their hooks, and what they read from them: Claude Code, Codex and Gemini CLI."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from cortex_plane.agents.model.tool_names import plane_name
from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.calls.model import Dialect, ExternalCall, Next, call_key
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.kernel.canonical import canonical, check_json
from cortex_plane.kernel.errors import CortexError, GateClosed, InvalidInput
from cortex_plane.kernel.fields import MAX_OBJECT_BYTES

MAX_NAME = 200
MAX_ID = 255
MAX_DIRECTORY = 4096
PROCESS_HEADER = "Cortex-Process"
"""Names the process of the coding agent, as `cortex hook` sees it."""
_MCP = "mcp"
_NAMESPACES = re.compile(r"[./:]")
ANSWER_HEADER = "Cortex-Hook"
"""Marks the plane's own answers with the dialect: a proxy or another server answers with JSON too."""
TIMEOUT_SECONDS = 86_400.0
"""A tool of a coding agent, such as a subagent, may run for long, and a result that comes later still counts."""


class HookPhase(StrEnum):
    BEFORE = "before"
    AFTER = "after"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class DialectForm:
    """How the hooks of one coding agent differ from those of others."""

    phases: Mapping[str, HookPhase]
    prefix: str
    """Before the names of its own tools."""
    on_uncertain: OnUncertain = OnUncertain.ASK_HUMAN
    """Of a call whose end nobody reported."""
    can_defer: bool = False
    turn_field: str | None = None
    """Names the turn of the model; a call that an earlier turn left without a report is not running any more."""
    has_call_ids: bool = True
    may_edit: bool = True
    merges: bool = False
    """Arguments that a hook gives are merged into those of the model."""


FORMS: Mapping[Dialect, DialectForm] = {
    Dialect.CLAUDE: DialectForm(
        phases={"PreToolUse": HookPhase.BEFORE, "PostToolUse": HookPhase.AFTER, "PostToolUseFailure": HookPhase.FAILED},
        prefix="claude",
        can_defer=True,
        turn_field="prompt_id",
    ),
    # Codex has no event for tools that fail, so a missing outcome says nothing. It rejects changed arguments and runs the original ones.
    Dialect.CODEX: DialectForm(
        phases={"PreToolUse": HookPhase.BEFORE, "PostToolUse": HookPhase.AFTER},
        prefix="codex",
        on_uncertain=OnUncertain.FAIL,
        turn_field="turn_id",
        may_edit=False,
    ),
    Dialect.GEMINI: DialectForm(
        phases={"BeforeTool": HookPhase.BEFORE, "AfterTool": HookPhase.AFTER},
        prefix="gemini",
        has_call_ids=False,
        merges=True,
    ),
}


PREFIXES = frozenset(form.prefix for form in FORMS.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class HookEvent:
    """One call of a hook."""

    name: str
    phase: HookPhase
    session: str = ""
    tool: str = ""
    """As policies name it."""
    foreign: str = ""
    """As the coding agent names it. Several of its names may be one for policies; an approval is for one of them."""
    directory: str = ""
    """Where the coding agent runs its own tools; empty for a tool of an MCP server, which runs elsewhere."""
    arguments: Mapping[str, Any]
    key: str | None = None
    """Of the call in the plane; None after the use of a tool whose agent gives calls no ids."""
    turn: str | None = None
    result: Any = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HookDecision:
    """What a coding agent does with a call."""

    runs: bool = False
    waits: bool = False
    """It does not run now, and the same call may be asked for again."""
    reason: str = ""
    arguments: Mapping[str, Any] | None = None
    """Those to run, where they are not the model's."""


def parse_event(dialect: Dialect, payload: Mapping[str, Any]) -> HookEvent:
    form = FORMS[dialect]
    name = _text(payload, "hook_event_name", MAX_NAME)
    phase = phase_of(dialect, name)
    session = _text(payload, "session_id", MAX_ID)
    foreign = _text(payload, "tool_name", MAX_NAME)
    arguments = payload.get("tool_input")
    if not isinstance(arguments, dict):
        raise InvalidInput("`tool_input` must be an object.", field="tool_input")
    key = None
    if form.has_call_ids:
        key = call_key(session, _text(payload, "tool_use_id", MAX_ID))
    elif phase is HookPhase.BEFORE:
        # Each event has a time of its own, and is one call.
        check_json(arguments, "tool_input", MAX_OBJECT_BYTES)
        at = _text(payload, "timestamp", MAX_NAME)
        digest = hashlib.sha256(canonical([foreign, arguments, at])).hexdigest()
        key = call_key(session, digest)
    turn = payload.get(form.turn_field) if form.turn_field is not None else None
    result = payload.get("tool_response")
    error = _error_of(payload, phase, result)
    return HookEvent(
        name=name,
        phase=HookPhase.FAILED if error is not None else phase,
        session=session,
        tool=_tool_name(foreign, form.prefix),
        foreign=foreign,
        directory=""
        if foreign.startswith(f"{_MCP}__") or "cwd" not in payload
        else _text(payload, "cwd", MAX_DIRECTORY),
        arguments=arguments,
        key=key,
        turn=turn if isinstance(turn, str) else None,
        result=result,
        error=error,
    )


def scope_of(event: HookEvent) -> str:
    """What tells a call apart from others of the same name for policies and the same arguments: `make deploy` elsewhere is another act."""
    return f"{event.foreign}\n{event.directory}"


def runner_of(dialect: Dialect, event: HookEvent, process: str | None, sender: str) -> str:
    """Of calls with the same runner the plane assumes that they still run. Where nothing tells processes apart, every event has its own."""
    source = f"process {process}" if process else f"turn {event.turn}" if event.turn else f"event {sender}"
    digest = hashlib.sha256(source.encode("utf-8", "backslashreplace")).hexdigest()
    return f"hooks:{dialect.value}:{digest[:32]}"


def declare_tool(event: HookEvent) -> dict[str, Any]:
    """The schema, of which approvals are for exactly this one. Hooks are not given those of the tools: the coding agent checks what an
    approver made of the arguments."""
    place = {"description": f"It runs in {event.directory}"} if event.directory else {}
    return {"type": "object", "title": event.foreign, **place}


def describe(event: HookEvent) -> str:
    """For the approver, as the coding agent says it."""
    place = f", in {event.directory}" if event.directory else ""
    return f"{event.foreign}{place}"[:2000]


def _tool_name(foreign: str, prefix: str) -> str:
    """The name for policies. Raises where a tool from elsewhere, such as one of an MCP server `claude`, would have the name of a built-in one."""
    name = plane_name(foreign, prefix)
    is_mcp = foreign.startswith(f"{_MCP}__")
    taken = PREFIXES if is_mcp else {*PREFIXES, _MCP}
    if (is_mcp or _NAMESPACES.search(foreign)) and name.partition(".")[0] in taken:
        raise InvalidInput(
            f"`{foreign}` would be `{name}` for policies, which is a name of another kind of tool.",
            code="tool_name_taken",
            field="tool_name",
            hint="Rename its MCP server: `claude`, `codex` and `gemini` stand for the tools of the coding agents themselves.",
        )
    return name


def phase_of(dialect: Dialect, event_name: str) -> HookPhase:
    """Raises for an event that the plane does not answer: the event of another coding agent must not pass as allowed."""
    phase = FORMS[dialect].phases.get(event_name)
    if phase is None:
        raise InvalidInput(
            f"`{event_name[:100]}` is no event of {dialect.value} that the plane answers.",
            code="hook_event_unknown",
            field="hook_event_name",
            hint=f"Send {', '.join(FORMS[dialect].phases)} alone, to the address of the coding agent that made it.",
        )
    return phase


def _error_of(payload: Mapping[str, Any], phase: HookPhase, result: Any) -> str | None:
    if phase is HookPhase.FAILED:
        error = payload.get("error")
    elif phase is HookPhase.AFTER and isinstance(result, dict):
        error = result.get("error")
        # A result may have a field of this name and still be one: what failed says how.
        if not isinstance(error, str | dict) or not error:
            return None
    else:
        return None
    if error is None:
        return "It failed."
    try:
        text = error if isinstance(error, str) else orjson.dumps(error, default=str).decode()
    except TypeError:  # nested too deep
        text = "It failed, and its error cannot be shown."
    return text.encode("utf-8", "replace").decode().replace("\x00", "�")[:4000]


def _text(payload: Mapping[str, Any], field: str, longest: int) -> str:
    value = payload.get(field)
    if not isinstance(value, str) or not 0 < len(value) <= longest or not value.isprintable():
        raise InvalidInput(
            f"`{field}` must be a text of 1 to {longest} printable characters.",
            field=field,
            hint="Send what the coding agent gives to its hook, unchanged.",
        )
    return value


def can_run(dialect: Dialect, event: HookEvent, call: ExternalCall) -> bool:
    """Whether the coding agent can be made to run exactly the arguments of the call."""
    form = FORMS[dialect]
    if canonical(call.arguments) == canonical(dict(event.arguments)):
        return True
    return form.may_edit and not (form.merges and event.arguments.keys() - call.arguments.keys())


def decision_of(event: HookEvent, call: ExternalCall, link: str | None) -> HookDecision:
    """What follows from the plane's answer about a call."""
    reason = call.reason or "The plane gives no reason."
    match call.next:
        case Next.RUN:
            is_edited = canonical(call.arguments) != canonical(dict(event.arguments))
            words = f"An approver changed the arguments: it runs with {_json(call.arguments)}." if is_edited else ""
            return HookDecision(runs=True, arguments=call.arguments if is_edited else None, reason=words)
        case Next.BEGIN:
            return HookDecision(
                reason="An approver changed the arguments, and this coding agent cannot be given others. Make the call again with "
                f"exactly these arguments: {_json(call.arguments)}"
            )
        case Next.USE:
            return HookDecision(reason=f"It ran already and is not run again. Its result: {_json(call.result)}")
        case Next.STOP:
            by = f" (rule: {call.rule})" if call.rule else ""
            answer = f" They answered: {_json(call.result)}" if call.status is CallStatus.ANSWERED else ""
            return HookDecision(reason=f"{reason}{by}{answer}")
        case Next.WAIT if call.status not in (CallStatus.INTENDED, CallStatus.UNCERTAIN):
            where = f" They decide at {link}." if link else ""
            return HookDecision(
                waits=True,
                reason=f"{reason}{where} Make exactly this call again once that is decided; do nothing else instead.",
            )
        case Next.WAIT if call.is_asked:
            where = f" They answer at {link}." if link else ""
            return HookDecision(
                waits=True,
                reason=f"It was begun before, and does not run twice: a person says first whether it happened.{where} Make exactly this "
                "call again once they answered; do nothing else instead.",
            )
        case _:
            return HookDecision(reason=f"It was begun before, and does not run twice. {reason}")


def behind(first: str) -> HookDecision:
    """A call that waits while another one of its session does: a coding agent can come back to one deferred call alone."""
    return HookDecision(
        waits=True, reason=f"Another call waits for a person first: `{first}`. Make this call again after this one."
    )


def refusal_of(error: CortexError) -> HookDecision:
    text = f"{error.message} {error.hint}".strip()
    if isinstance(error, GateClosed):
        text = f"{text} Its questions: {_json(error.questions)}"
    return HookDecision(reason=text)


def answer_of(dialect: Dialect, event: HookEvent, decision: HookDecision, *, can_defer: bool) -> dict[str, Any]:
    """In the words of the coding agent."""
    reason = decision.reason[:8000]
    match dialect:
        case Dialect.GEMINI:
            if not decision.runs:
                return {"decision": "deny", "reason": reason}
            output = {"hookEventName": event.name, "tool_input": decision.arguments}
            return {"decision": "allow"} | ({"hookSpecificOutput": output} if decision.arguments is not None else {})
        case Dialect.CODEX:
            if decision.runs:
                return {}  # it knows no `allow`: what is not denied runs
            verdict: dict[str, Any] = {"permissionDecision": "deny"}
        case Dialect.CLAUDE:
            waits = "defer" if can_defer else "deny"
            verdict = {"permissionDecision": "allow" if decision.runs else waits if decision.waits else "deny"}
            if decision.arguments is not None:
                verdict |= {"updatedInput": decision.arguments, "additionalContext": reason}
    return {
        "hookSpecificOutput": {"hookEventName": event.name, **verdict}
        | ({"permissionDecisionReason": reason} if reason else {})
    }


def refused_answer(dialect: Dialect, payload: Mapping[str, Any], error: CortexError) -> dict[str, Any]:
    """Of an event whose fields cannot be read, or whose call cannot be asked about: a tool does not run, and an outcome is not recorded.
    Raises the error again where the event is not one of the dialect: then the request failed, and coding agents block."""
    name = payload.get("hook_event_name")
    if not isinstance(name, str) or name not in FORMS[dialect].phases:
        raise error
    if FORMS[dialect].phases[name] is HookPhase.BEFORE:
        event = HookEvent(name=name, phase=HookPhase.BEFORE, arguments={})
        return answer_of(dialect, event, refusal_of(error), can_defer=False)
    return {"systemMessage": f"Cortex Plane did not record this: {refusal_of(error).reason}"[:8000]}


def is_answer(dialect: Dialect, event_name: str, answer: Any) -> bool:
    """Whether the coding agent can read it. What it cannot read it takes for no objection."""
    if not isinstance(answer, dict):
        return False
    if phase_of(dialect, event_name) is not HookPhase.BEFORE:
        return True
    if dialect is Dialect.GEMINI:
        return answer.get("decision") in ("allow", "deny")
    output = answer.get("hookSpecificOutput")
    if output is None:
        return dialect is Dialect.CODEX and not answer
    return isinstance(output, dict) and output.get("permissionDecision") in ("allow", "deny", "defer")


def _json(value: Any) -> str:
    text = canonical(value).decode()
    return text if len(text) <= 4000 else f"{text[:4000]}…"

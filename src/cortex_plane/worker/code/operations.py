"""The operations of a code agent before they are performed: checked, with the digest of their input, and the scopes they run in.

The function itself is one scope, and so is each branch of a gather. Within a scope the recorded operations must come again in
the same order, each with the same kind, name and input. Anything else means that the code has changed, and nothing is run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.agents.model.tools import InvalidApp, OnUncertain, is_number
from cortex_plane.approvals.model.questions import ASK_PERSON, QuestionForm
from cortex_plane.gates.model.gates import ANSWER
from cortex_plane.jobs.model.journal import MAX_KEY, EntryKind, JournalEntry, check_name, digest, scope_of
from cortex_plane.jobs.model.state import check_key
from cortex_plane.kernel.canonical import canonical, check_text
from cortex_plane.kernel.errors import ContextMisused, CortexError, InvalidInput
from cortex_plane.policies.model.policies import MAX_TIMEOUT_SECONDS, PolicyRow, PolicyVerdict, Quorum
from cortex_plane.worker.calls import ASK, END_TOOL, Toolbox
from cortex_plane.worker.questions import ASK_PERSON_DIGEST, ASK_PERSON_TOOL, question_demand
from cortex_plane.worker.tools.tool import RETURNED, Tool, check_settlement, encode_result, encode_state

MAX_INPUT_BYTES = 256 * 1024
MAX_SECONDS = 10 * 366 * 24 * 3600.0
MAX_ACTION, MAX_DETAILS_BYTES = 200, 16 * 1024
MAX_BRANCHES = 1000
MAX_RETRIES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedOperation:
    kind: EntryKind
    name: str
    input_hash: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedStep(PlannedOperation):
    function: Callable[..., Any]
    arguments: Sequence[Any]
    retries: int
    timeout: float | None
    repeatable: bool = False
    on_uncertain: OnUncertain | None = None
    """How it is settled where nobody knows its outcome; None where it declares nothing, or is repeatable."""
    probe: Callable[..., Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedToolCall(PlannedOperation):
    tool: str
    arguments: dict[str, Any]
    demand: PolicyRow | None = field(default=None, hash=False)
    """Of an approval: what the agent asks for beyond what policies say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedModelCall(PlannedOperation):
    prompt: str
    system: str | None
    temperature: float | None
    max_tokens: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSleep(PlannedOperation):
    seconds: float | None
    until: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedWait(PlannedOperation):
    key: str
    timeout: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedValue(PlannedOperation):
    make: Callable[[], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedStateRead(PlannedOperation):
    """What stands under a key, as a list of one value or none."""

    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedStateChange(PlannedOperation):
    key: str
    value: bytes | None
    """None deletes the entry."""


def plan_step(
    name: str,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    retries: int,
    timeout: float | None,
    repeatable: bool = False,
    on_uncertain: OnUncertain | str | None = None,
    probe: Callable[..., Any] | None = None,
) -> PlannedStep:
    step_name = check_name(name, "a step")
    if not callable(function):
        raise ContextMisused(
            f"The step `{step_name}` was given a {type(function).__name__}, not a function.",
            hint="Name the function and pass its arguments after it: `ctx.step('plan', make_plan, ref)`.",
        )
    if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries <= MAX_RETRIES:
        raise ContextMisused(f"`retries={retries!r}` of the step `{step_name}` is not possible.", hint="Use 0 to 100.")
    what = f"The arguments of the step `{step_name}`"
    return PlannedStep(
        kind=EntryKind.STEP,
        name=step_name,
        input_hash=_hash(list(arguments), what, "Let the function close over them."),
        function=function,
        arguments=arguments,
        retries=retries,
        timeout=None if timeout is None else _seconds(timeout, f"timeout of the step `{step_name}`"),
        repeatable=repeatable,
        on_uncertain=None
        if on_uncertain is None and probe is None
        else _settlement(step_name, repeatable, on_uncertain, probe, retries),
        probe=probe,
    )


def _settlement(
    name: str, repeatable: bool, on_uncertain: OnUncertain | str | None, probe: Callable[..., Any] | None, retries: int
) -> OnUncertain:
    """What a step declares, as tools do."""
    if repeatable or retries:
        what = "`repeatable`" if repeatable else "`retries`"
        raise ContextMisused(
            f"The step `{name}` has {what} and says how it is settled: it is one or the other.",
            hint="Pass `repeatable=True` for a step that may run again, with `retries`; else `on_uncertain`.",
        )
    try:
        return check_settlement(f"step `{name}`", on_uncertain, probe)
    except InvalidApp as error:
        raise ContextMisused(error.message, hint=error.hint) from None


def plan_tool(name: str, arguments: dict[str, Any]) -> PlannedToolCall:
    tool_name = check_name(name, "a tool")
    exact = _exact(arguments, f"The arguments of `{tool_name}`")
    # As JSON has them, whatever types the agent used.
    return PlannedToolCall(
        kind=EntryKind.TOOL, name=tool_name, input_hash=digest(exact), tool=tool_name, arguments=orjson.loads(exact)
    )


def plan_answer(gate: str, answers: Mapping[str, Any], call: str | None) -> PlannedToolCall:
    if not isinstance(gate, str) or not gate.strip() or not isinstance(answers, Mapping):
        raise ContextMisused(
            "An answer needs the id of a gate and a mapping with one value for each of its questions.",
            hint="Write `await ctx.answer('delete-confirm', {'confirm': 'understood'})`.",
        )
    values = {"gate": gate, "answers": dict(answers)}
    return plan_tool(ANSWER, values if call is None else {**values, "call": call})


def plan_approval(
    action: str,
    details: Mapping[str, Any] | None,
    approvers: Sequence[UUID | str] | None,
    timeout: float | None,
    quorum: int | None,
    clearance: int | None,
) -> PlannedToolCall:
    if not isinstance(action, str) or not action.strip() or len(action) > MAX_ACTION:
        raise ContextMisused(
            f"What people are asked must be a text of 1 to {MAX_ACTION} characters.",
            hint="Say in one line what is to happen, and put the rest into `details`.",
        )
    content = dict(details) if details is not None else None
    arguments = {"action": action} if content is None else {"action": action, "details": content}
    exact = _exact(arguments, "What people are asked")
    if len(exact) > MAX_DETAILS_BYTES:
        raise ContextMisused(
            f"The details are {len(exact)} bytes; the limit is {MAX_DETAILS_BYTES}.", hint="Send a reference to them."
        )
    demand = PolicyRow(
        name="request_approval",
        target=ASK,
        effect=PolicyVerdict.REQUIRES_APPROVAL,
        named=_members(approvers),
        timeout_seconds=None if timeout is None else _whole(timeout, "timeout", MAX_TIMEOUT_SECONDS),
        quorum=None if quorum is None else Quorum(votes=_whole(quorum, "quorum", 100)),
        required_clearance=None if clearance is None else _whole(clearance, "clearance", 2**31 - 1, least=0),
        standing=False,
        action=action,
        details=content,
    )
    values = orjson.loads(exact)
    return PlannedToolCall(
        kind=EntryKind.APPROVAL, name="approval", input_hash=digest(exact), tool=ASK, arguments=values, demand=demand
    )


def plan_question(
    question: str,
    choices: Sequence[str] | None,
    schema: Mapping[str, Any] | None,
    default: Any,
    deadline: float | timedelta | None,
    approvers: Sequence[UUID | str] | None,
) -> PlannedToolCall:
    values: dict[str, Any] = {
        "question": question, "choices": choices, "schema": schema, "default": default,
        "deadline_seconds": None if deadline is None else math.ceil(_seconds(deadline, "deadline of a question")),
    }  # fmt: skip
    exact = _exact({name: value for name, value in values.items() if value is not None}, "The question")
    arguments = orjson.loads(exact)
    try:
        form = QuestionForm.of(arguments)
    except InvalidInput as error:
        raise ContextMisused(error.message, hint=error.hint) from None
    demand = question_demand(form, _members(approvers))
    return PlannedToolCall(
        kind=EntryKind.TOOL,
        name=ASK_PERSON,
        input_hash=digest(exact),
        tool=ASK_PERSON,
        arguments=arguments,
        demand=demand,
    )


def plan_model(prompt: str, system: str | None, temperature: float | None, max_tokens: int | None) -> PlannedModelCall:
    if not isinstance(prompt, str) or not prompt.strip():
        raise ContextMisused("The prompt of a model is empty or not a text.", hint="Say what you want of it.")
    request: dict[str, Any] = {"prompt": prompt, "system": system, "temperature": temperature, "max_tokens": max_tokens}
    input_hash = _hash(request, "The request to the model", most=8 * MAX_INPUT_BYTES)
    return PlannedModelCall(kind=EntryKind.MODEL, name="model", input_hash=input_hash, **request)


def plan_sleep(seconds: float | timedelta | None, until: datetime | None) -> PlannedSleep:
    if (seconds is None) == (until is None):
        raise ContextMisused("A sleep needs either seconds or `until`.", hint="Write `await ctx.sleep(3600)`.")
    if until is not None:
        if not isinstance(until, datetime) or until.tzinfo is None:
            raise ContextMisused("`until` must be a datetime with a time zone.", hint="Begin with `await ctx.now()`.")
        arguments: dict[str, Any] = {"until": until.isoformat()}
        length = None
    else:
        length = _seconds(seconds, "length of a sleep", least=0.0)
        arguments = {"seconds": length}
    return PlannedSleep(
        kind=EntryKind.SLEEP, name="sleep", input_hash=_hash(arguments, "A sleep"), seconds=length, until=until
    )


def plan_wait(name: str, key: str, timeout: float | timedelta | None) -> PlannedWait:
    signal_name = check_name(name, "a signal")
    if not isinstance(key, str) or not 1 <= len(key) <= 255:
        raise ContextMisused(
            "The key of a signal must be a text of 1 to 255 characters.", hint="Such as an order's id."
        )
    check_text(key, "key")
    seconds = None if timeout is None else _seconds(timeout, f"timeout of the signal `{signal_name}`")
    input_hash = _hash({"key": key, "timeout": seconds}, "A wait")
    return PlannedWait(kind=EntryKind.WAIT, name=signal_name, input_hash=input_hash, key=key, timeout=seconds)


def plan_value(name: str, make: Callable[[], Any]) -> PlannedValue:
    return PlannedValue(kind=EntryKind.VALUE, name=name, input_hash=digest(b"[]"), make=make)


def plan_state_read(key: str) -> PlannedStateRead:
    name = _state_key(key)
    return PlannedStateRead(kind=EntryKind.VALUE, name="state.get", input_hash=digest(canonical([name])), key=name)


def plan_state_change(key: str, value: Any = None, *, deletes: bool = False) -> PlannedStateChange:
    name = _state_key(key)
    if deletes:
        hashed = digest(canonical([name]))
        return PlannedStateChange(kind=EntryKind.VALUE, name="state.delete", input_hash=hashed, key=name, value=None)
    try:
        content = encode_state(name, value)
    except CortexError as error:
        raise ContextMisused(error.message, hint=error.hint) from None
    hashed = digest(canonical([name, digest(content)]))
    return PlannedStateChange(kind=EntryKind.VALUE, name="state.set", input_hash=hashed, key=name, value=content)


def _state_key(key: object) -> str:
    try:
        return check_key(key)
    except CortexError as error:
        raise ContextMisused(error.message, hint=error.hint) from None


def plan_gather(branches: int) -> PlannedOperation:
    if branches > MAX_BRANCHES:
        raise ContextMisused(f"{branches} branches are too many.", hint=f"Use at most {MAX_BRANCHES} at once.")
    return PlannedOperation(kind=EntryKind.GATHER, name="gather", input_hash=digest(canonical({"branches": branches})))


def _exact(value: Any, what: str, hint: str | None = None, most: int = MAX_INPUT_BYTES) -> bytes:
    try:
        exact = encode_result(value)
    except CortexError as error:
        reason = error.message.removeprefix(RETURNED)
        raise ContextMisused(f"{what} cannot be stored: {reason}", hint=hint or error.hint) from None
    if len(exact) > most:
        raise ContextMisused(f"{what} are {len(exact)} bytes; the limit is {most}.", hint="Pass a reference instead.")
    return exact


def _hash(value: Any, what: str, hint: str | None = None, most: int = MAX_INPUT_BYTES) -> str:
    return digest(_exact(value, what, hint, most))


def _seconds(value: object, what: str, least: float = 0.001) -> float:
    length = value.total_seconds() if isinstance(value, timedelta) else value
    if not is_number(length, least, MAX_SECONDS):
        raise ContextMisused(f"The {what} cannot be {length!r}.", hint="Give a number of seconds.")
    return float(length)


def _whole(value: object, name: str, most: int, least: int = 1) -> int:
    if not is_number(value, least, most):
        raise ContextMisused(f"`{name}={value!r}` is not possible.", hint=f"Use a number from {least} to {most}.")
    return int(value)


def _members(approvers: Sequence[UUID | str] | None) -> tuple[UUID, ...] | None:
    if approvers is None:
        return None
    try:
        ids = tuple(dict.fromkeys(UUID(str(approver)) for approver in approvers))
    except (ValueError, TypeError):
        ids = ()
    if not ids or isinstance(approvers, str):
        raise ContextMisused("`approvers` must be ids of members.", hint="`cortex member list` shows them.")
    return ids


async def _ask(action: str, details: dict[str, Any] | None = None) -> dict[str, Any]:  # noqa: ARG001
    """Ask people whether this may happen."""
    return {"approved": True}


ASK_TOOL = Tool(_ask, name=ASK, on_uncertain=OnUncertain.RETRY_WITH_KEY)
_ASK_DIGEST = ASK_TOOL.version("plane").digest


def with_ask(toolbox: Toolbox) -> Toolbox:
    """Code may ask, and end its session; the model is not told of it."""
    own = {tool.provider_name: tool for tool in (ASK_TOOL, ASK_PERSON_TOOL, END_TOOL)}
    digests = {**toolbox.digests, ASK: _ASK_DIGEST, ASK_PERSON: ASK_PERSON_DIGEST}
    return replace(toolbox, tools={**toolbox.tools, **own}, digests=digests)


class Unwind(BaseException):
    """Takes the agent's function back to its caller: it waits, or its attempt is over. Not for `except Exception`."""


class Mismatch(Exception):
    """The code does something else than what was recorded."""


@dataclass(eq=False, slots=True)
class Scope:
    prefix: str
    entries: list[JournalEntry] = field(default_factory=list)
    position: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    busy: str | None = None
    """The operation under way: a branch does one thing after the other."""
    unwound: bool = False
    """It was taken back: whatever its code still tries, in a `finally` or behind an `except`, does not begin."""

    def visit(self, kind: EntryKind, name: str, input_hash: str) -> tuple[str, JournalEntry | None]:
        """The key of the operation that comes now, and what was recorded of it."""
        key = f"{self.prefix}{name}#{self.counts[name]}"
        if len(key) > MAX_KEY:
            raise ContextMisused(f"The key of `{name}` is longer than {MAX_KEY} characters.", hint="Nest less.")
        entry = self.unvisited
        if entry is not None:
            if entry.key != key or entry.kind is not kind:
                raise Mismatch(f"expected {entry.kind} `{entry.key}`, and {kind} `{key}` came")
            if entry.input_hash != input_hash:
                raise Mismatch(f"expected {kind} `{key}` with the input that was recorded, and another input came")
            self.position += 1
        self.counts[name] += 1
        return key, entry

    @property
    def unvisited(self) -> JournalEntry | None:
        return self.entries[self.position] if self.position < len(self.entries) else None


class Scopes:
    """All scopes of one attempt, each with what was recorded of it."""

    def __init__(self, entries: Iterable[JournalEntry]) -> None:
        self._entries: dict[str, list[JournalEntry]] = {}
        for entry in sorted(entries, key=lambda entry: entry.position):
            self._entries.setdefault(scope_of(entry.key), []).append(entry)
        self.opened: dict[str, Scope] = {}

    def open(self, prefix: str) -> Scope:
        scope = self.opened[prefix] = Scope(prefix, self._entries.get(prefix, []))
        return scope

    def unvisited(self) -> JournalEntry | None:
        """The first operation that was recorded and did not come again."""
        entries = [entry for scope in self.opened.values() if (entry := scope.unvisited) is not None]
        return min(entries, key=lambda entry: entry.position, default=None)


def last_round(entries: Iterable[JournalEntry]) -> int:
    """How often the function began again, because new messages arrived in its conversation."""
    return max((int(e.key[1:]) for e in entries if e.key.startswith("/") and scope_of(e.key) == "/"), default=0)


def round_prefix(number: int) -> str:
    return f"/{number}/" if number else ""


current: ContextVar[Scope] = ContextVar("scope")
"""The scope of whoever runs: each branch is a task with a context of its own."""

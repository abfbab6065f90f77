"""One tool: a typed function with its declaration, the JSON Schema of its arguments, its calls, and its results.

The schema comes from the function's signature. Arguments are checked against it, and stored in one canonical form.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import hashlib
import inspect
import json
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import ErrorDetails, to_jsonable_python

from cortex_plane.agents.model.completions import ToolSpec, provider_name
from cortex_plane.agents.model.tools import (
    MAX_NAME,
    MAX_TIMEOUT,
    MIN_TIMEOUT,
    DidNotHappen,
    Happened,
    InvalidApp,
    InvalidArguments,
    OnUncertain,
    ToolVersion,
    is_number,
    is_tool_name,
)
from cortex_plane.jobs.model.state import NO_ENTRIES, Changes, Entries, apply_changes, check_key, require_room
from cortex_plane.kernel.canonical import MAX_DEPTH, canonical, check_text
from cortex_plane.kernel.errors import Conflict, InvalidInput
from cortex_plane.kernel.fields import UNDECLARED, Risk

MAX_ARGUMENT_BYTES = 256 * 1024
_SHOWN_FAULTS = 10
_SHOWN_NAME = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Parsed:
    values: dict[str, Any]
    """Python objects, one for each parameter; defaults stand for what was not sent."""
    canonical: bytes
    """What was sent, in its one form: shown, approved and stored."""
    digest: str
    """SHA-256 of that, in hex."""

    @classmethod
    def of(cls, values: dict[str, Any], exact: bytes) -> Parsed:
        return cls(values=values, canonical=exact, digest=hashlib.sha256(exact).hexdigest())


class Arguments:
    """The arguments of one tool. ``owner`` names it in errors of its declaration."""

    def __init__(self, signature: Signature, owner: str) -> None:
        # Fields have names of our own, since a parameter may be called `model_config`, `json` or `_id`.
        self._fields = {f"p{index}": parameter for index, parameter in enumerate(signature.parameters)}
        self._defaults = {name: (each.name, each.default) for name, each in self._fields.items()}
        fields: dict[str, Any] = {
            name: (each.annotation, Field(default=... if each.default is each.empty else each.default, alias=each.name))
            for name, each in self._fields.items()
        }
        try:
            self._model: type[BaseModel] = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)
            self.schema = self._model.model_json_schema(by_alias=True, mode="validation", schema_generator=_Plain)
            del self.schema["title"]
            canonical(self.schema)
        except Exception as error:  # pydantic and the authors of types raise whatever they like
            reason = str(error).partition("\n")[0]
            raise InvalidApp(
                f"The parameters of {owner} have no JSON Schema: {type(error).__name__}: {reason}",
                hint="Use types that JSON can express: str, int, lists, dataclasses, pydantic models, enums, dates.",
            ) from error

    def parse(self, arguments: dict[str, Any] | str) -> Parsed:
        exact = exact_bytes(arguments)
        try:
            # From the canonical bytes, so that a later replay of them gives the same values.
            model = self._model.model_validate_json(exact)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            raise invalid_arguments([self._fault(fault) for fault in faults]) from None
        except Exception as error:  # a validator that the tool's author wrote
            raise InvalidArguments(f"The arguments could not be checked: {type(error).__name__}: {error}.") from error
        sent = model.model_fields_set
        values = {
            name: getattr(model, field) if field in sent else default
            for field, (name, default) in self._defaults.items()
        }
        return Parsed.of(values, exact)

    def _fault(self, fault: ErrorDetails) -> str:
        parts = (f"[{part}]" if isinstance(part, int) else f".{part[:_SHOWN_NAME]}" for part in fault["loc"])
        place = "".join(parts).removeprefix(".") or "arguments"
        if fault["type"] == "missing":
            return f"`{place}` is missing"
        if fault["type"] == "extra_forbidden" and len(fault["loc"]) == 1:
            names = ", ".join(f"`{parameter.name}`" for parameter in self._fields.values())
            return f"`{place}` is not a parameter; the parameters are {names or 'none'}"
        return f"`{place}`: {fault['msg']}"


class _Plain(GenerateJsonSchema):
    """Without the titles that pydantic makes of names: they cost tokens and say nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """A default that JSON cannot show is left out of the schema; the author need not care."""


_DEPTH_IN_RESPONSE = 3
"""How deep the arguments of a call stand in the response that is stored."""


def exact_bytes(arguments: dict[str, Any] | str) -> bytes:
    """What a model sent, in its one form. Raises ``InvalidArguments``."""
    content = _decode(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(content, dict):
        raise InvalidArguments("The arguments must be a JSON object, with one key for each argument.")
    try:
        exact = canonical(content, depth=_DEPTH_IN_RESPONSE)
    except InvalidInput as error:
        raise InvalidArguments(f"The arguments cannot be stored exactly: {error.message}") from None
    _refuse_large(len(exact))
    return exact


def _decode(text: str) -> Any:
    _refuse_large(len(text))
    if not text.strip():
        return {}  # some providers say "no arguments" with an empty text
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidArguments("The arguments are nested too deeply.") from None
    except ValueError as error:
        raise InvalidArguments(f"The arguments are not valid JSON: {error}.") from None


def _refuse_large(size: int) -> None:
    if size > MAX_ARGUMENT_BYTES:
        raise InvalidArguments(
            f"The arguments are {size} bytes; the limit is {MAX_ARGUMENT_BYTES}.",
            hint="Send less, or a reference to the data.",
        )


def invalid_arguments(faults: Sequence[str]) -> InvalidArguments:
    more = [f"and {len(faults) - _SHOWN_FAULTS} more faults"] if len(faults) > _SHOWN_FAULTS else []
    return InvalidArguments(f"The arguments are not valid: {'; '.join([*faults[:_SHOWN_FAULTS], *more])}.")


_REFUSED = {
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values",
    inspect.Parameter.VAR_KEYWORD: "takes any names",
    inspect.Parameter.POSITIONAL_ONLY: "cannot be given by name",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    parameters: tuple[inspect.Parameter, ...]
    contexts: tuple[str, ...]
    """The names of the parameters that take the context."""

    @property
    def annotations(self) -> dict[str, Any]:
        return {parameter.name: parameter.annotation for parameter in self.parameters}

    def keywords(self, values: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        return {**values, **dict.fromkeys(self.contexts, context)}


def read_signature(function: Callable[..., Any], owner: str) -> Signature:
    """``owner`` names the function in errors. Whatever the model could not be told exactly is refused."""
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise InvalidApp(
            f"{owner} is a {type(function).__name__}, not a function.", hint="Write it with `def` or `async def`."
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidApp(f"{owner} yields values.", hint="A tool returns one value: collect them and return a list.")
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:
        raise InvalidApp(
            f"The types of {owner} cannot be read: {type(error).__name__}: {error}.",
            hint="Import or define the types at the top of the module, not in a function or under TYPE_CHECKING.",
        ) from error
    parameters, contexts = [], []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in _REFUSED:
            raise InvalidApp(
                f"The parameter `{name}` of {owner} {_REFUSED[parameter.kind]}.",
                hint="Give each argument a named, typed parameter of its own.",
            )
        if name not in hints:
            raise InvalidApp(
                f"The parameter `{name}` of {owner} has no type.", hint=f"Annotate it, such as `{name}: str`."
            )
        if _is_context(hints[name]):
            contexts.append(name)
        else:
            _refuse_hidden(name, hints[name], parameter.default, owner)
            parameters.append(parameter.replace(annotation=hints[name]))
    return Signature(parameters=tuple(parameters), contexts=tuple(contexts))


def context_parameters(function: Callable[..., Any]) -> list[str]:
    """The parameters of any function that take the context; none where its types cannot be read."""
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception:  # whatever its author annotated it with
        return []
    return [name for name, hint in hints.items() if name != "return" and _is_context(hint)]


def _is_context(annotation: Any) -> bool:
    if get_origin(annotation) in (Union, UnionType):
        return all(part in (ToolContext, NoneType) for part in get_args(annotation))
    return annotation is ToolContext


def _refuse_hidden(name: str, annotation: Any, default: Any, owner: str) -> None:
    """A context inside another type would be the model's to fill in; a field as default would reach the function."""
    if _mentions_context(annotation):
        raise InvalidApp(
            f"The parameter `{name}` of {owner} hides a ToolContext in another type.",
            hint=f"Annotate it as `{name}: ToolContext`.",
        )
    if isinstance(default, FieldInfo):
        raise InvalidApp(
            f"The parameter `{name}` of {owner} has a Field as its default.",
            hint=f"Write `{name}: Annotated[…, Field(…)]` instead.",
        )


def _mentions_context(annotation: Any) -> bool:
    return annotation is ToolContext or any(_mentions_context(part) for part in get_args(annotation))


class ToolState:
    """What the agent keeps with its job, as one call of a tool sees it.

    It begins with what is durable. What the tool changes is written with the outcome of its call, in the same commit; where
    the call fails, or nobody knows its outcome, nothing of it is.
    """

    # One is made for every call, and most calls use none: without `__init__` that costs nothing.
    entries: Entries = NO_ENTRIES
    changes: Changes | None = None
    room: StateRoom | None = None
    end_reason: str | None = None
    """Why the tool asked to end the session, if it did. It takes effect with the outcome of the call."""
    is_closed = False
    """The call is over: a thread that outlived its time changes nothing any more."""

    def get(self, key: str, default: Any = None) -> Any:
        value = self.entries.get(check_key(key))
        return default if value is None else orjson.loads(value)

    def set(self, key: str, value: Any) -> None:
        """Raises where the value is not JSON, or the state would become too large."""
        self._change(check_key(key), encode_state(key, value))

    def delete(self, key: str) -> None:
        """A key that is not there may be deleted."""
        self._change(check_key(key), None)

    def close(self, *, succeeded: bool) -> None:
        """The call is over. Its changes are dropped unless it succeeded."""
        self.is_closed = True
        if not succeeded:
            self.changes = None

    def request_end(self, reason: str) -> None:
        self._require_open("The session was to be ended", "End")
        self.end_reason = str(reason) or "its agent ended it"

    def _require_open(self, what: str, remedy: str) -> None:
        if self.is_closed:
            raise Conflict(
                f"{what} after its call was over.",
                code="call_over",
                hint=f"{remedy} it before the tool returns, and within its timeout.",
            )

    def _change(self, key: str, value: bytes | None) -> None:
        self._require_open("The state was changed", "Change")
        changes, room = {**(self.changes or {}), key: value}, self.room or StateRoom(lambda: self.entries)
        with room.lock:
            if value is not None:
                room.require(changes, key, self)
            if self.changes is None:
                room.states.append(self)
            self.entries, self.changes = apply_changes(self.entries, {key: value}), changes


class StateRoom:
    """Changes of one state that calls made and that are not recorded yet. Together they stay within its size limit."""

    def __init__(self, recorded: Callable[[], Entries]) -> None:
        self._recorded = recorded
        self.states: list[ToolState] = []
        self.lock = threading.Lock()

    def require(self, changes: Changes, key: str, owner: ToolState | None = None) -> None:
        others = [state.changes for state in self.states if state is not owner and state.changes is not None]
        require_room(apply_changes(self._recorded(), changes), key, others)

    def release(self) -> None:
        """The changes of calls that are over are recorded."""
        self.states = [state for state in self.states if not state.is_closed]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """Given to every parameter annotated with it; the model neither sees nor sends it."""

    org_id: UUID
    session_id: UUID
    job_id: UUID
    agent_id: UUID
    invocation_id: UUID
    step: int
    attempt: int
    state: ToolState = field(default_factory=ToolState)
    config: Mapping[str, Any] = field(default_factory=dict)
    """The keys of the agent's `skill_config` that the plane does not read itself."""
    session_context: Mapping[str, Any] = field(default_factory=dict)
    """The `context` of the session, as it was when this attempt of the job began."""

    def end_session(self, reason: str = "") -> None:
        """End the session of this call if the call succeeds, once none of its jobs is open any more: the agent may still say goodbye."""
        self.state.request_end(reason)

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this one call: pass it on to whoever must do the thing only once."""
        return str(self.invocation_id)


DECLARED = ("name", "description", "parameters", "read_only", "risk", "timeout_seconds", "on_uncertain")
"""What makes a version of a tool."""
E = TypeVar("E", bound=StrEnum)


class Tool:
    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        read_only: bool = False,
        risk: Risk | str | None = None,
        timeout: float = 30.0,
        on_uncertain: OnUncertain | str | None = None,
        probe: Callable[..., Any] | None = None,
    ) -> None:
        self.name = _name(function, name)
        self.description = _description(self.name, function, description)
        self.read_only = read_only
        self.risk = UNDECLARED if risk is None else _choice(Risk, risk, "risk", f"tool `{self.name}`")
        self.declares_risk = risk is not None
        self.timeout_seconds = _timeout(self.name, timeout)
        self.on_uncertain = _on_uncertain(self.name, read_only, on_uncertain, probe)
        self.is_async = inspect.iscoroutinefunction(function)
        """False: it runs in a thread, which nothing can stop before it returns."""
        self._function = function
        self._signature = read_signature(function, f"the tool `{self.name}`")
        self._arguments = Arguments(self._signature, f"the tool `{self.name}`")
        self.parameters = self._arguments.schema
        self._probe = probe
        if probe is not None:
            self._probe_signature = read_signature(probe, f"the probe of `{self.name}`")
            own, of_probe = self._signature.annotations, self._probe_signature.annotations
            if own != of_probe:
                raise InvalidApp(
                    f"The probe of `{self.name}` takes other parameters than the tool.",
                    hint=f"Give it the same names and types: {', '.join(own) or 'none'}.",
                )

    @property
    def provider_name(self) -> str:
        return provider_name(self.name)

    @property
    def label(self) -> str:
        """What people read of it in messages."""
        return self.name

    @property
    def takes_context(self) -> bool:
        """Whether it, or its probe, is given a `ToolContext`."""
        return bool(self._signature.contexts or (self._probe is not None and self._probe_signature.contexts))

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(name=self.provider_name, description=self.description, parameters=self.parameters)

    def version(self, app: str) -> ToolVersion:
        declaration: dict[str, Any] = {name: getattr(self, name) for name in DECLARED}
        digest = hashlib.sha256(canonical(declaration)).hexdigest()
        return ToolVersion(app=app, digest=digest, declares_risk=self.declares_risk, **declaration)

    def parse(self, arguments: dict[str, Any] | str) -> Parsed:
        """Raises `InvalidArguments`, whose message is for the model."""
        return self._arguments.parse(arguments)

    async def obstacle(self) -> str | None:
        """Why it could not be sent now, where that is known beforehand. Code that is loaded can always be called."""
        return None

    async def call(self, values: Mapping[str, Any], context: ToolContext) -> Any:
        keywords = self._signature.keywords(values, context)
        return await (self._function(**keywords) if self.is_async else run_function(self._function, keywords))

    def send(self, values: Mapping[str, Any], context: ToolContext, last_moment: float) -> Coroutine[Any, Any, Any]:  # noqa: ARG002
        """The call as an effect, whose intent is written. It must begin before ``last_moment``, by `ticks`: whoever calls functions of
        this process has just looked at the clock."""
        return self.call(values, context)

    def is_under_way(self, invocation_id: UUID) -> bool:  # noqa: ARG002
        """Whether a call that ended here may still go on elsewhere. What runs in this process ends with its call."""
        return False

    async def ask_probe(self, values: Mapping[str, Any], context: ToolContext) -> Happened | DidNotHappen | None:
        """Did an earlier call with this context take effect? None: the probe cannot tell either."""
        if self._probe is None:
            raise InvalidApp(f"The tool `{self.name}` has no probe.")
        answer = await run_function(self._probe, self._probe_signature.keywords(values, context))
        return check_probe_answer(answer, self.name)


def check_probe_answer(answer: Any, name: str) -> Happened | DidNotHappen | None:
    if answer is None or isinstance(answer, Happened | DidNotHappen):
        return answer
    raise InvalidApp(
        f"The probe of `{name}` returned a {type(answer).__name__}.",
        hint="Return `Happened(result=…)`, `DidNotHappen()`, or None if it cannot be known.",
    )


async def run_function(function: Callable[..., Any], keywords: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(**keywords)
    result = await _in_thread(function, keywords)
    return await result if inspect.isawaitable(result) else result


def _in_thread(function: Callable[..., Any], keywords: dict[str, Any]) -> asyncio.Future[Any]:
    """In a thread of its own. In a pool a call would wait for others while its time runs, and be sent late; and one
    that hangs would keep the process from ending."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(set_answer: Callable[[Any], None], value: Any) -> None:
        if not answer.done():
            set_answer(value)

    def run() -> None:
        try:
            outcome: tuple[Callable[[Any], None], Any] = answer.set_result, context.run(function, **keywords)
        except StopIteration:  # a future cannot carry it: whoever awaits would wait for ever
            outcome = answer.set_exception, RuntimeError("the tool raised StopIteration")
        except BaseException as error:
            outcome = answer.set_exception, error
        with contextlib.suppress(RuntimeError):  # nobody waits any more
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=run, name="tool", daemon=True).start()
    return answer


def _name(function: Callable[..., Any], alias: str | None) -> str:
    name = getattr(function, "__name__", "") if alias is None else alias
    if not isinstance(name, str) or not is_tool_name(name):
        raise InvalidApp(
            f"`{str(name)[:100]}` cannot be the name of a tool.",
            hint=f"Write `name=` with at most {MAX_NAME} lower-case letters, digits and `_`, each part beginning "
            "with a letter, parts joined by dots, such as `github.create_issue`.",
        )
    return name


def _description(name: str, function: Callable[..., Any], text: str | None) -> str:
    try:
        return check_text((inspect.getdoc(function) or "") if text is None else text, "description")
    except InvalidInput as error:
        raise InvalidApp(f"The tool `{name}` cannot be described so: {error.message}") from None


def _choice(kind: type[E], value: str, parameter: str, owner: str) -> E:
    try:
        return kind(value)
    except ValueError:
        raise InvalidApp(
            f"`{parameter}={value!r}` of the {owner} is unknown.", hint=f"Use one of {', '.join(kind)}."
        ) from None


def _timeout(name: str, seconds: float) -> float:
    if not is_number(seconds, MIN_TIMEOUT, MAX_TIMEOUT):
        raise InvalidApp(
            f"`timeout={seconds!r}` of the tool `{name}` is not possible.",
            hint=f"Give seconds from {MIN_TIMEOUT} to {MAX_TIMEOUT:.0f}.",
        )
    return float(seconds)


def _on_uncertain(
    name: str, read_only: bool, on_uncertain: OnUncertain | str | None, probe: Callable[..., Any] | None
) -> OnUncertain | None:
    if read_only:
        if on_uncertain is not None or probe is not None:
            raise InvalidApp(
                f"The tool `{name}` is read-only: it leaves nothing uncertain.",
                hint="Remove `on_uncertain` and `probe`, or remove `read_only`.",
            )
        return None
    return check_settlement(f"tool `{name}`", on_uncertain, probe)


def check_settlement(
    owner: str, on_uncertain: OnUncertain | str | None, probe: Callable[..., Any] | None
) -> OnUncertain:
    """How a call with an unknown outcome is settled; ``owner`` names what declares it in errors."""
    choice = _choice(
        OnUncertain, OnUncertain.ASK_HUMAN if on_uncertain is None else on_uncertain, "on_uncertain", owner
    )
    if choice is OnUncertain.PROBE and probe is None:
        raise InvalidApp(
            f"The {owner} is to be probed but has no probe.", hint="Give `probe=` a function with the same parameters."
        )
    if choice is not OnUncertain.PROBE and probe is not None:
        raise InvalidApp(
            f"The {owner} has a probe that would never be asked: `on_uncertain` is `{choice}`.",
            hint='Write `on_uncertain="probe"`, or remove the probe.',
        )
    return choice


_HINT = (
    "Return what JSON can express: text, finite numbers within 64 bits, lists, objects with text keys, "
    "dataclasses, pydantic models, dates, ids, enums."
)


def encode_result(value: Any) -> bytes:
    """Canonical JSON. The order of a set is not kept. What cannot be stored is refused with its place."""
    try:
        return canonical(to_jsonable_python(value))
    except InvalidInput as error:
        raise _unstorable(error.message, error.details["field"]) from None
    except Exception as error:  # a serialiser that the tool's author wrote may raise anything
        place, culprit = _culprit(value)
        reason = str(error).partition("\n")[0]
        raise _unstorable(f"`{place}` is a {type(culprit).__name__}: {reason}.", place) from error


def encode_state(key: str, value: Any) -> bytes:
    """Canonical JSON of an entry of the state."""
    try:
        return encode_result(value)
    except InvalidInput as error:
        reason = error.message.removeprefix(RETURNED)
        raise InvalidInput(
            f"The entry `{key[:50]}` of the state cannot be stored: {reason}", code="unstorable_state", field=key[:50],
            hint=error.hint.replace("Return", "Set", 1),
        ) from None  # fmt: skip


RETURNED = "What the tool returned cannot be stored: "


def _unstorable(reason: str, field: str) -> InvalidInput:
    return InvalidInput(f"{RETURNED}{reason}", code="unstorable_result", field=field, hint=_HINT)


def _culprit(value: Any) -> tuple[str, Any]:
    """The innermost part that cannot become JSON; pydantic says what is wrong but not where."""
    place = "$"
    for _ in range(MAX_DEPTH):  # a value that contains itself never ends
        for name, part in _parts(value):
            if not _becomes_json(part):
                place, value = place + name, part
                break
        else:
            break
    return place, value


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, BaseModel):
        return [(f".{name}", part) for name, part in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, dict):
        return [(f".{str(key)[:50]}", part) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    return []


def _becomes_json(value: Any) -> bool:
    with contextlib.suppress(Exception):
        to_jsonable_python(value)
        return True
    return False

"""From a function's signature: the JSON Schema that the model sees, the check of its arguments, and the context of a call."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import ErrorDetails

from cortex_plane.agents.model.tools import InvalidApp, InvalidArguments
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import InvalidInput

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


class Arguments:
    """The arguments of one tool. ``owner`` names it in errors of its declaration."""

    def __init__(self, signature: Signature, owner: str) -> None:
        # Fields have names of our own, since a parameter may be called `model_config`, `json` or `_id`.
        self._fields = {f"p{index}": parameter for index, parameter in enumerate(signature.parameters)}
        try:
            self._model: type[BaseModel] = create_model(
                "Arguments",
                __config__=ConfigDict(extra="forbid"),
                **{name: _field(parameter) for name, parameter in self._fields.items()},
            )
            self.schema = _schema(self._model)
            canonical(self.schema)
        except Exception as error:  # pydantic and the authors of types raise whatever they like
            reason = str(error).partition("\n")[0]
            raise InvalidApp(
                f"The parameters of {owner} have no JSON Schema: {type(error).__name__}: {reason}",
                hint="Use types that JSON can express: str, int, lists, dataclasses, pydantic models, enums, dates.",
            ) from error

    def parse(self, arguments: dict[str, Any] | str) -> Parsed:
        exact = exact_bytes(arguments)
        model = self._validate(exact)
        values = {
            parameter.name: getattr(model, field) if field in model.model_fields_set else parameter.default
            for field, parameter in self._fields.items()
        }
        return Parsed(values=values, canonical=exact, digest=hashlib.sha256(exact).hexdigest())

    def _validate(self, exact: bytes) -> BaseModel:
        """From the canonical bytes, so that a later replay of them gives the same values."""
        try:
            return self._model.model_validate_json(exact)
        except ValidationError as error:
            raise InvalidArguments(f"The arguments are not valid: {self._explain(error)}.") from None
        except Exception as error:  # a validator that the tool's author wrote
            raise InvalidArguments(
                f"The arguments could not be checked: {type(error).__name__}: {error}."
            ) from error

    def _explain(self, error: ValidationError) -> str:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        messages = [self._fault(fault) for fault in faults[:_SHOWN_FAULTS]]
        if len(faults) > _SHOWN_FAULTS:
            messages.append(f"and {len(faults) - _SHOWN_FAULTS} more faults")
        return "; ".join(messages)

    def _fault(self, fault: ErrorDetails) -> str:
        place = _place(fault["loc"])
        if fault["type"] == "missing":
            return f"`{place}` is missing"
        if fault["type"] == "extra_forbidden" and len(fault["loc"]) == 1:
            names = ", ".join(f"`{each.name}`" for each in self._fields.values())
            return f"`{place}` is not a parameter; the parameters are {names or 'none'}"
        return f"`{place}`: {fault['msg']}"


class _Plain(GenerateJsonSchema):
    """Without the titles that pydantic makes of names: they cost tokens and say nothing."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        return False

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        """A default that JSON cannot show is left out of the schema; the author need not care."""


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(by_alias=True, mode="validation", schema_generator=_Plain)
    del schema["title"]
    return schema


def _field(parameter: Parameter) -> Any:
    if parameter.default is NO_DEFAULT:
        return (parameter.annotation, Field(alias=parameter.name))
    return (parameter.annotation, Field(default=parameter.default, alias=parameter.name))


def exact_bytes(arguments: dict[str, Any] | str) -> bytes:
    """What a model sent, in its one form. Raises ``InvalidArguments``."""
    content = _decode(arguments) if isinstance(arguments, str) else arguments
    if not isinstance(content, dict):
        raise InvalidArguments("The arguments must be a JSON object, with one key for each argument.")
    try:
        exact = canonical(content)
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


def _place(location: tuple[int | str, ...]) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:_SHOWN_NAME]}" for part in location)
    return place.removeprefix(".") or "arguments"


NO_DEFAULT = inspect.Parameter.empty
_REFUSED = {
    inspect.Parameter.VAR_POSITIONAL: "takes any number of values",
    inspect.Parameter.VAR_KEYWORD: "takes any names",
    inspect.Parameter.POSITIONAL_ONLY: "cannot be given by name",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    name: str
    annotation: Any
    default: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    parameters: tuple[Parameter, ...]
    contexts: tuple[str, ...]
    """The names of the parameters that take the context."""

    def keywords(self, values: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        return {**values, **dict.fromkeys(self.contexts, context)}


def read_signature(function: Callable[..., Any], owner: str) -> Signature:
    """``owner`` names the function in errors. Whatever the model could not be told exactly is refused."""
    if not (inspect.isfunction(function) or inspect.ismethod(function)):
        raise InvalidApp(
            f"{owner} is a {type(function).__name__}, not a function.",
            hint="Write it with `def` or `async def`.",
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidApp(
            f"{owner} yields values.", hint="A tool returns one value: collect them and return a list."
        )
    hints = _hints(function, owner)
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
            parameters.append(Parameter(name=name, annotation=hints[name], default=parameter.default))
    return Signature(parameters=tuple(parameters), contexts=tuple(contexts))


def _hints(function: Callable[..., Any], owner: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except Exception as error:
        raise InvalidApp(
            f"The types of {owner} cannot be read: {type(error).__name__}: {error}.",
            hint="Import or define the types at the top of the module, not in a function or under TYPE_CHECKING.",
        ) from error


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

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of this one call: pass it on to whoever must do the thing only once."""
        return str(self.invocation_id)

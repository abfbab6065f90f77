"""What a function takes: the arguments that the model sends, and the context that the plane gives."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo

from cortex_plane.agents.model.tools import InvalidApp
from cortex_plane.worker.tools.context import ToolContext

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

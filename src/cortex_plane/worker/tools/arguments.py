"""From a function's signature: the JSON Schema that the model sees, and the check of what it sends."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
from pydantic_core import ErrorDetails

from cortex_plane.agents.model.tools import InvalidApp, InvalidArguments
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.worker.tools.signature import NO_DEFAULT, Parameter, Signature

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
        self._fields = {f"p{index}": each for index, each in enumerate(signature.parameters)}
        try:
            self._model: type[BaseModel] = create_model(
                "Arguments",
                __config__=ConfigDict(extra="forbid"),
                **{name: _field(each) for name, each in self._fields.items()},
            )
            self.schema = _schema(self._model)
            canonical(self.schema)
        except Exception as error:  # pydantic and the authors of types raise whatever they like
            reason = str(error).partition("\n")[0]
            raise InvalidApp(
                f"The parameters of {owner} have no JSON Schema: {type(error).__name__}: {reason}",
                hint="Use types that JSON can express: str, int, lists, dataclasses, pydantic models, enums, dates.",
            ) from error

    def parse(self, given: dict[str, Any] | str) -> Parsed:
        exact = exact_bytes(given)
        made = self._validated(exact)
        values = {
            each.name: getattr(made, field) if field in made.model_fields_set else each.default
            for field, each in self._fields.items()
        }
        return Parsed(values=values, canonical=exact, digest=hashlib.sha256(exact).hexdigest())

    def _validated(self, exact: bytes) -> BaseModel:
        """From the canonical bytes, so that a later replay of them gives the same values."""
        try:
            return self._model.model_validate_json(exact)
        except ValidationError as error:
            raise InvalidArguments(f"The arguments are not valid: {self._explained(error)}.") from None
        except Exception as error:  # a validator that the tool's author wrote
            raise InvalidArguments(
                f"The arguments could not be checked: {type(error).__name__}: {error}."
            ) from error

    def _explained(self, error: ValidationError) -> str:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        said = [self._fault(fault) for fault in faults[:_SHOWN_FAULTS]]
        if len(faults) > _SHOWN_FAULTS:
            said.append(f"and {len(faults) - _SHOWN_FAULTS} more faults")
        return "; ".join(said)

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


def exact_bytes(given: dict[str, Any] | str) -> bytes:
    """What a model sent, in its one form. Raises ``InvalidArguments``."""
    sent = _decoded(given) if isinstance(given, str) else given
    if not isinstance(sent, dict):
        raise InvalidArguments("The arguments must be a JSON object, with one key for each argument.")
    try:
        exact = canonical(sent)
    except InvalidInput as error:
        raise InvalidArguments(f"The arguments cannot be stored exactly: {error.message}") from None
    _refuse_large(len(exact))
    return exact


def _decoded(text: str) -> Any:
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

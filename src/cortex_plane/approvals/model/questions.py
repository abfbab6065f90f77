"""Questions that agents ask people with the tool `plane.ask_person`, and which answers fit them.

The arguments of the call are the form. Every door checks an answer with `QuestionForm`; a request about any other call is answered in
words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.schemas import Unusable, check, compiled, faults
from cortex_plane.policies.model.policies import MAX_TIMEOUT_SECONDS

ASK_PERSON = "plane.ask_person"
"""The plane's own tool: its call is a question to people, and their answer is its result."""
MAX_QUESTION = 2000
MAX_CHOICES, MAX_CHOICE = 50, 200
MAX_FIELDS = 20
SHOWN_CHOICES = 10
MAX_ANSWER_BYTES = 16 * 1024
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_OF_FORM = frozenset({"type", "title", "description", "properties", "required", "additionalProperties"})
_OF_FIELD = frozenset(
    {"type", "title", "description", "default", "enum", "minLength", "maxLength", "minimum", "maximum"}
)
_TYPES = ("string", "integer", "number", "boolean")


@dataclass(frozen=True, kw_only=True, slots=True)
class FormField:
    """One value of an answer."""

    name: str
    label: str
    type: str
    choices: Sequence[str]
    required: bool
    description: str
    default: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class QuestionForm:
    question: str
    choices: tuple[str, ...] = ()
    """With neither these nor a schema the answer is free text."""
    schema: Mapping[str, Any] | None = None
    """The answer is a flat object."""
    default: Any = None
    """Becomes the answer where nobody answered in time; None: there is none."""
    deadline_seconds: int | None = None

    @classmethod
    def of(cls, arguments: Any) -> QuestionForm:
        """From the arguments of the call. Raises ``InvalidInput``, in words for whoever asks."""
        values = dict(arguments) if isinstance(arguments, Mapping) else {}
        question, choices, schema = values.get("question"), values.get("choices"), values.get("schema")
        if not isinstance(question, str) or not question.strip() or len(question) > MAX_QUESTION:
            raise _invalid(f"`question` must be a text of 1 to {MAX_QUESTION} characters")
        if choices is not None and schema is not None:
            raise _invalid("a question has either `choices` or a `schema`")
        if choices is not None:
            _check_choices("choices", choices)
        if schema is not None:
            _check_schema(schema)
        seconds = values.get("deadline_seconds")
        if seconds is not None and (type(seconds) is not int or not 1 <= seconds <= MAX_TIMEOUT_SECONDS):
            raise _invalid(f"the deadline must be between 1 and {MAX_TIMEOUT_SECONDS} seconds from now")
        form = cls(
            question=question, choices=tuple(choices or ()), schema=schema, default=values.get("default"),
            deadline_seconds=seconds,
        )  # fmt: skip
        if form.default is not None and (fault := form.fault(form.default)) is not None:
            raise _invalid(f"`default` is no answer to it: {fault}")
        return form

    @property
    def fields(self) -> list[FormField]:
        if self.schema is None:
            return []
        required = self.schema.get("required", ())
        return [
            FormField(
                name=name, label=str(field.get("title") or name), type=field["type"], choices=field.get("enum", ()),
                required=name in required, description=str(field.get("description") or ""), default=field.get("default"),
            )
            for name, field in self.schema["properties"].items()
        ]  # fmt: skip

    def fault(self, answer: Any) -> str | None:
        """Why this is no answer to it; None for one."""
        if self.choices:
            return (
                None
                if isinstance(answer, str) and answer in self.choices
                else f"it is none of the choices {_listed(self.choices)}"
            )
        if self.schema is None:
            return text_fault(answer)
        if len(canonical(answer)) > MAX_ANSWER_BYTES:
            return f"it is longer than {MAX_ANSWER_BYTES} bytes"
        try:
            problems = faults(_validator(self.schema), answer)
        except Unusable as error:
            return str(error)
        return problems[0].replace("`arguments`: ", "") if problems else None


def text_fault(answer: Any) -> str | None:
    """Why this is no answer in words."""
    if not isinstance(answer, str) or not answer.strip():
        return "it must be a text"
    if len(canonical(answer)) > MAX_ANSWER_BYTES:
        return f"it is longer than {MAX_ANSWER_BYTES} bytes"
    return None


def form_of(tool_name: str, arguments: Any) -> QuestionForm | None:
    """The question that a call asks; None where it does something else."""
    if tool_name != ASK_PERSON:
        return None
    try:
        return QuestionForm.of(arguments)
    except InvalidInput:
        return None


def require_answer(tool_name: str, arguments: Any, answer: Any) -> None:
    """Raises ``InvalidInput`` where this is no answer to what the call asks, or no words about any other call."""
    form = form_of(tool_name, arguments)
    fault = text_fault(answer) if form is None else form.fault(answer)
    if fault is not None:
        raise InvalidInput(
            f"The answer does not fit: {fault}.",
            code="answer_invalid",
            hint="Nothing was recorded. Correct the answer, and send it again.",
        )


def _check_choices(name: str, choices: Any) -> None:
    if not isinstance(choices, list | tuple) or not 1 <= len(choices) <= MAX_CHOICES:
        raise _invalid(f"`{name}` must be a list of 1 to {MAX_CHOICES} texts")
    if not all(isinstance(choice, str) and 1 <= len(choice) <= MAX_CHOICE for choice in choices):
        raise _invalid(f"each of `{name}` must be a text of 1 to {MAX_CHOICE} characters")
    if any(choice != " ".join(choice.split()) for choice in choices):
        raise _invalid(f"each of `{name}` must be one line without spaces around it or in a row")
    if len(set(choices)) < len(choices):
        raise _invalid(f"`{name}` has the same text twice")


def _check_schema(schema: Any) -> None:
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or schema.get("type", "object") != "object":
        raise _invalid('`schema` must be a JSON Schema of an object: {"type": "object", "properties": {…}}')
    if not 1 <= len(properties) <= MAX_FIELDS:
        raise _invalid(f"`schema` must have 1 to {MAX_FIELDS} properties")
    if unknown := sorted(schema.keys() - _OF_FORM):
        raise _invalid(f"`schema` has `{unknown[0]}`; a form may have {', '.join(sorted(_OF_FORM))}")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) and name in properties for name in required):
        raise _invalid("`required` must list properties of the schema")
    for name, field in properties.items():
        _check_field(name, field)
    try:
        check(schema)
        _validator(schema)
    except Unusable as error:
        raise _invalid(str(error)) from None


def _check_field(name: str, field: Any) -> None:
    if _NAME.fullmatch(name) is None:
        raise _invalid(f"`{name[:100]}` cannot be the name of a field: use letters, digits, `_`, `-` and `.`")
    if not isinstance(field, dict) or field.get("type") not in _TYPES:
        raise _invalid(f"the field `{name}` must have one of the types {', '.join(_TYPES)}: a form is flat")
    if unknown := sorted(field.keys() - _OF_FIELD):
        raise _invalid(f"the field `{name}` has `{unknown[0]}`; a field may have {', '.join(sorted(_OF_FIELD))}")
    if "enum" in field:
        if field["type"] != "string":
            raise _invalid(f"the field `{name}` may have `enum` only where its type is string")
        _check_choices(f"{name}.enum", field["enum"])


def _validator(schema: Mapping[str, Any]) -> Any:
    return compiled({**schema, "type": "object", "additionalProperties": False})


def _listed(choices: Sequence[str]) -> str:
    more = f" and {len(choices) - SHOWN_CHOICES} more" if len(choices) > SHOWN_CHOICES else ""
    return ", ".join(f"`{choice}`" for choice in choices[:SHOWN_CHOICES]) + more


def _invalid(fault: str) -> InvalidInput:
    return InvalidInput(
        f"This question cannot be asked: {fault}.", code="question_invalid", hint="Correct the question."
    )

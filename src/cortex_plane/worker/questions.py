"""The tool by which an agent asks a person. Nothing is sent: what the person answers is its result."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson

from cortex_plane.agents.model.tools import InvalidArguments, OnUncertain
from cortex_plane.approvals.model.questions import ASK_PERSON, QuestionForm
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import Risk
from cortex_plane.policies.model.policies import PolicyRow, PolicyVerdict
from cortex_plane.worker.tools.tool import Parsed, Tool


async def _ask_person(
    question: str,
    choices: list[str] | None = None,  # noqa: ARG001
    schema: dict[str, Any] | None = None,  # noqa: ARG001
    default: Any = None,  # noqa: ARG001
    deadline_seconds: int | None = None,  # noqa: ARG001
) -> Any:
    """Ask a person, and wait for their answer: it is the result. They answer in words, with one of `choices`, or with an object for
    a flat JSON `schema` of strings, numbers and booleans. Nobody answers within `deadline_seconds`: the result is `default`, and
    an error where there is none."""
    raise AssertionError(f"a person answers: {question}")


class QuestionTool(Tool):
    def parse(self, arguments: dict[str, Any] | str) -> Parsed:
        parsed = super().parse(arguments)
        try:
            QuestionForm.of(orjson.loads(parsed.canonical))
        except InvalidInput as error:
            raise InvalidArguments(error.message) from None
        return parsed


ASK_PERSON_TOOL = QuestionTool(_ask_person, name=ASK_PERSON, risk=Risk.LOW, on_uncertain=OnUncertain.RETRY_WITH_KEY)
ASK_PERSON_DIGEST = ASK_PERSON_TOOL.version("plane").digest


def question_demand(form: QuestionForm, named: tuple[UUID, ...] | None = None) -> PolicyRow:
    """A question always goes to a person. ``named``: to one of these members."""
    return PolicyRow(
        name="ask_person", target=ASK_PERSON, effect=PolicyVerdict.REQUIRES_APPROVAL, named=named,
        timeout_seconds=form.deadline_seconds, standing=False,
    )  # fmt: skip


def model_demand(arguments: bytes) -> PolicyRow:
    """What a question of a model asks of people beyond the policies."""
    return question_demand(QuestionForm.of(orjson.loads(arguments)))

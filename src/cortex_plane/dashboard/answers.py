"""The answer that a form holds, to a question or in the place of a call."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from cortex_plane.approvals.model.approvals import Approval, ApprovalKind
from cortex_plane.approvals.model.questions import QuestionForm, form_of

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_TICKS = {"yes": True, "no": False}


def question_of(approval: Approval) -> QuestionForm | None:
    """What a request asks; None where it is about a call that does something."""
    return form_of(approval.tool_name, approval.arguments) if approval.kind is ApprovalKind.CALL else None


def read_answer(approval: Approval, form: Mapping[str, str]) -> Any:
    """As its fields are named by the macro `answer_fields`. What is no number stays text, so that its check can say so."""
    question = question_of(approval)
    if question is None or question.schema is None:
        return _plain(form.get("answer", ""))
    texts = [(field, _plain(form.get(f"field.{field.name}", ""))) for field in question.fields]
    return {field.name: _value(field.type, text) for field, text in texts if text}


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").strip()


def _value(kind: str, text: str) -> Any:
    if kind == "boolean":
        return _TICKS.get(text, text)
    if kind in ("integer", "number") and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "number":
        try:
            number = float(text)
        except ValueError:
            return text
        return number if math.isfinite(number) else text
    return text

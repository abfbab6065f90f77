"""Which questions may be asked, and which answers fit them: without a database."""

from __future__ import annotations

from typing import Any

import pytest

from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.approvals.model.questions import (
    ASK_PERSON,
    MAX_ANSWER_BYTES,
    MAX_QUESTION,
    QuestionForm,
    form_of,
    require_answer,
    text_fault,
)
from cortex_plane.dashboard.approvals import read_answer
from cortex_plane.kernel.errors import InvalidInput
from tests.fixtures.proofs import decided

AMOUNT = {
    "type": "object",
    "properties": {
        "amount": {"type": "number", "minimum": 1, "maximum": 50, "title": "Amount in EUR"},
        "days": {"type": "integer"},
        "why": {"type": "string", "maxLength": 20, "description": "For the books."},
        "to": {"type": "string", "enum": ["card", "voucher"]},
        "sure": {"type": "boolean", "default": False},
    },
    "required": ["amount", "to"],
}


def form(**arguments: Any) -> QuestionForm:
    return QuestionForm.of({"question": "What now?", **arguments})


@pytest.mark.proves("D.743")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"question": ""}, "`question`"),
        ({"question": 7}, "`question`"),
        ({"question": "x" * (MAX_QUESTION + 1)}, "`question`"),
        ({"choices": []}, "1 to 50"),
        ({"choices": "ab"}, "1 to 50"),
        ({"choices": ["a", 1]}, "each of `choices`"),
        ({"choices": ["a", "a"]}, "twice"),
        ({"choices": ["a\nb"]}, "one line"),
        ({"choices": [" a"]}, "one line"),
        ({"choices": ["a"], "schema": AMOUNT}, "either"),
        ({"schema": {"type": "array"}}, "object"),
        ({"schema": {"properties": {}}}, "1 to 20"),
        ({"schema": {"properties": {"a": {"type": "object"}}}}, "flat"),
        ({"schema": {"properties": {"a": {"type": "string", "pattern": "(a+)+"}}}}, "`pattern`"),
        ({"schema": {"properties": {"a": {"type": "integer", "enum": [1]}}}}, "`enum`"),
        ({"schema": {"properties": {"a b": {"type": "string"}}}}, "name of a field"),
        ({"schema": {"properties": {"a": {"type": "string"}}, "required": ["b"]}}, "`required`"),
        ({"schema": {"properties": {"a": {"type": "string"}}, "$ref": "#/x"}}, "`$ref`"),
        ({"schema": {"properties": {"a": {"type": "number", "minimum": "1"}}}}, "not valid"),
        ({"deadline_seconds": 0}, "deadline"),
        ({"deadline_seconds": 604_801}, "deadline"),
        ({"deadline_seconds": True}, "deadline"),
        ({"choices": ["a", "b"], "default": "c"}, "`default`"),
        ({"default": 4}, "`default`"),
    ],
)  # fmt: skip
def test_a_question_that_nobody_can_answer_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        form(**arguments)
    assert words in refused.value.message
    assert form_of(ASK_PERSON, {"question": "What now?", **arguments}) is None


@pytest.mark.proves("D.743")
@pytest.mark.parametrize(
    ("arguments", "answer", "fault"),
    [
        ({}, "Use order 43.", None),
        ({}, "", "a text"),
        ({}, " \n", "a text"),
        ({}, 7, "a text"),
        ({}, None, "a text"),
        ({}, "x" * MAX_ANSWER_BYTES, "longer"),
        ({"choices": ["yes", "no"]}, "no", None),
        ({"choices": ["yes", "no"]}, "No", "none of the choices `yes`, `no`"),
        ({"choices": ["yes", "no"]}, ["no"], "none of the choices"),
        ({"schema": AMOUNT}, {"amount": 40, "to": "card"}, None),
        ({"schema": AMOUNT}, {"amount": 40.5, "to": "card", "sure": True, "days": 3}, None),
        ({"schema": AMOUNT}, {"amount": 51, "to": "card"}, "`amount`"),
        ({"schema": AMOUNT}, {"amount": 40}, '"to" is a required'),
        ({"schema": AMOUNT}, {"amount": 40, "to": "cash"}, "`to`"),
        ({"schema": AMOUNT}, {"amount": "40", "to": "card"}, "`amount`"),
        ({"schema": AMOUNT}, {"amount": 40, "to": "card", "more": 1}, "more"),
        ({"schema": AMOUNT}, "40", "object"),
    ],
)  # fmt: skip
def test_an_answer_fits_the_question(arguments: dict[str, Any], answer: Any, fault: str | None) -> None:
    said = form(**arguments).fault(answer)
    assert said is None if fault is None else fault in (said or "")
    if fault is not None:
        with pytest.raises(InvalidInput, match="does not fit"):
            require_answer(ASK_PERSON, {"question": "What now?", **arguments}, answer)


def test_any_other_call_is_answered_in_words() -> None:
    require_answer("ship", {"question": "?", "choices": ["a"]}, "Not today.")
    assert text_fault({"a": 1}) == "it must be a text"


def question(**arguments: Any) -> Approval:
    return decided(tool_name=ASK_PERSON, arguments={"question": "What now?", **arguments})


@pytest.mark.proves("D.744")
def test_the_fields_of_a_page_become_the_answer() -> None:
    fields = {
        "field.amount": " 40.5 ",
        "field.days": "3",
        "field.why": "a\r\nb",
        "field.to": "card",
        "field.sure": "no",
    }
    expected = {"amount": 40.5, "days": 3, "why": "a\nb", "to": "card", "sure": False}
    assert read_answer(question(schema=AMOUNT), fields) == expected
    assert read_answer(question(schema=AMOUNT), {"field.amount": "x", "field.days": "1e3", "field.sure": ""}) == {
        "amount": "x", "days": "1e3",
    }  # fmt: skip
    for endless in ("nan", "inf", "1e999"):
        assert read_answer(question(schema=AMOUNT), {"field.amount": endless}) == {"amount": endless}
    assert read_answer(question(choices=["yes", "no"]), {"answer": "no"}) == "no"
    assert read_answer(question(), {"answer": " one\r\ntwo "}) == "one\ntwo"

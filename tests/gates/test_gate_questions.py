"""Answers: every type of question, every rule, and what follows from a wrong one."""

from __future__ import annotations

from typing import Any

import pytest
import re2  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.gates.model.atlases import (
    MAX_ANSWER,
    AnswerValidation,
    Gate,
    GateQuestion,
    MatchMode,
    OnInvalid,
    ResponseType,
    TriggerType,
)
from cortex_plane.gates.rules.answers import AnswerFault, check, custom_checks
from cortex_plane.gates.rules.index import expression
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.text import normal
from cortex_plane.policies.model.policies import PolicyVerdict
from tests.fixtures.counting import instructions
from tests.fixtures.gates import Life, ask, atlas, call, gate

TEXT, BOOLEAN, ACKNOWLEDGMENT, CHOICE, NUMBER, JSON = ResponseType


def one(kind: ResponseType, **more: Any) -> Gate:
    rules = {key: more.pop(key) for key in list(more) if key in AnswerValidation.__slots__}
    question = ask("q", kind, validation=AnswerValidation(**rules), **more)
    return gate("g", TriggerType.SESSION_START, questions=(question,))


def fault(asked: Gate, value: Any, custom: dict[str, str | None] | None = None) -> str | None:
    found = check(asked, {"q": value}, custom or {})
    return found[0].said if found else None


@pytest.mark.proves("S5.17", "D.350")
@pytest.mark.parametrize(
    ("kind", "more", "right", "wrong"),
    [
        (TEXT, {}, ["because"], ["", "  ", "\u200b\u2060", 3, True, ["because"], {"a": 1}]),
        (BOOLEAN, {}, [True], [False, "true", "yes", 1, 0]),
        (
            ACKNOWLEDGMENT,
            {},
            ["understood", "Understood.", " I UNDERSTAND! ", "ｕｎｄｅｒｓｔｏｏｄ", "I understand q.", "acknowledged"],
            ["not understood", "I do not understand", "misunderstood", "understood not", "no", "", True, "ok" * 9],
        ),
        (CHOICE, {"options": ("admin", "user")}, ["admin"], ["Admin", "root", "", 0, ["admin"]]),
        (
            NUMBER,
            {"minimum": 1.0, "maximum": 10.0},
            [1, 10, 2.5],
            [0, 11, "2", True, float("nan"), float("inf"), 10**400, -(10**400)],
        ),
        (JSON, {}, [{"a": 1}, [1]], ["text", 3, True]),
        (
            JSON,
            {"schema": {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}},
            [{"a": 1}],
            [{}, {"a": "1"}, [], "x"],
        ),
    ],
)
def test_types_of_questions(kind: ResponseType, more: dict[str, Any], right: list[Any], wrong: list[Any]) -> None:
    asked = one(kind, **more)
    assert [value for value in right if fault(asked, value) is not None] == []
    assert [value for value in wrong if fault(asked, value) is None] == []


@pytest.mark.proves("S5.18", "D.350")
@pytest.mark.parametrize(
    ("rules", "right", "wrong", "said"),
    [
        ({"min_length": 5}, "12345", "1234 ", "needs at least 5"),
        ({"max_length": 5}, "12345", "123456", "may have 5 at most"),
        ({"must_contain": ("reason",)}, "The REASON is", "because", "must contain `reason`"),
        ({"must_not_contain": ("hack",)}, "the church acknowledges", "a HACK", "must not contain `hack`"),
        ({"pattern": r"^[A-Za-z].*\.$"}, "Because.", "because", "must match"),
    ],
)
def test_rules_for_texts(rules: dict[str, Any], right: str, wrong: str, said: str) -> None:
    asked = one(TEXT, **rules)
    assert fault(asked, right) is None
    assert said in (fault(asked, wrong) or "")


@pytest.mark.proves("D.351")
@pytest.mark.parametrize(
    "hidden",
    [
        "HACK", "hAcK", "ｈａｃｋ", "ha\u200bck", "h\u00adack", "ha\x01ck", "ha\u0301ck", "hàck", "h.a.c.k", "h a c k", "h-a-c-k",
        "h*a*c*k", "h\u2060a\u2060c\u2060k", "ℋack", "𝐡𝐚𝐜𝐤", "h\u0430ck", "һ\u0430\u0441k", "ha\u3164ck", "\ufeffhack", "ⓗⓐⓒⓚ", "h\u034fack",
    ],
)  # fmt: skip
def test_forbidden_words_in_any_disguise(hidden: str) -> None:
    asked = one(TEXT, must_not_contain=("hack", "bypass"))
    assert "must not contain" in (fault(asked, f"I will {hidden} it, for a good reason.") or "")
    assert fault(asked, "I will look after it, for a good reason.") is None


@pytest.mark.proves("D.351")
@given(st.lists(st.text("ab-.", min_size=4, max_size=6), min_size=1, max_size=3), st.text("ab-. ж", max_size=40))
def test_what_is_spelled_out_is_found_wherever_it_stands(words: list[str], text: str) -> None:
    plain = normal(text)
    held = [
        word
        for word in words
        if word in plain or any(sign.join(word) in plain for sign in set(plain) if not sign.isalnum())
    ]
    assert (fault(one(TEXT, must_not_contain=tuple(words)), f"{text}x") is None) == (not held)


@pytest.mark.proves("D.351", "D.342")
def test_an_answer_is_read_once_for_all_forbidden_words() -> None:
    signs = "".join(sign for sign in map(chr, range(0x2190, 0x2190 + 4000)) if not sign.isalnum())
    text = "".join(f"h{sign}" for sign in signs)

    def cost(words: int) -> int:
        asked = one(TEXT, must_not_contain=tuple(f"forbidden{n}" for n in range(words)))
        return instructions(lambda: fault(asked, text))

    assert cost(60) < 2 * cost(1) + 60 * 200


@pytest.mark.proves("D.351")
def test_forbidden_words_inside_a_structured_answer() -> None:
    asked = one(JSON, must_not_contain=("bypass",))
    assert fault(asked, {"why": ["to BYPASS it"]}) is not None
    assert fault(asked, {"why": ["to do it"]}) is None


@pytest.mark.proves("D.351")
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TEXT, "x" * (MAX_ANSWER + 1)), (ACKNOWLEDGMENT, "understood" + " " * MAX_ANSWER), (JSON, ["x" * MAX_ANSWER]),
        (CHOICE, "x" * (MAX_ANSWER + 1)),
    ],
)  # fmt: skip
def test_what_is_too_long_is_refused_whatever_it_is(kind: ResponseType, value: Any) -> None:
    assert "at most" in (fault(one(kind, options=("a",)), value) or "")


@pytest.mark.proves("D.351")
@given(st.text())
def test_a_text_is_normal_once_and_for_all(text: str) -> None:
    assert normal(normal(text)) == normal(text)


@pytest.mark.proves("D.351")
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5))
def test_whatever_is_answered_is_judged(value: Any) -> None:
    for kind in ResponseType:
        asked = one(kind, options=("a",), min_length=1, must_not_contain=("x",), pattern="^a")
        assert all(isinstance(each, AnswerFault) for each in check(asked, {"q": value}, {}))


@pytest.mark.proves("D.352")
def test_expressions_that_take_for_ever_elsewhere_do_not_here() -> None:
    """A backtracking engine needs 2**4_000 steps for this one."""
    evil = r"^(a+)+$"
    assert isinstance(expression(evil), type(re2.compile("a")))
    assert "must match" in (fault(one(TEXT, pattern=evil), "a" * 4_000 + "!") or "")
    word = gate("w", TriggerType.KEYWORD, on_patterns=(r"(x+x+)+y",), on_match_mode=MatchMode.REGEX)
    life = Life(atlas(word))
    life.step("x" * 400_000)
    assert life.state.asks == ()


@pytest.mark.proves("D.352")
@pytest.mark.parametrize("pattern", [r"(?<=a)b", r"(a)\1", r"(?!x)", r"(", r"a{1,100000}"])
def test_expressions_that_cannot_be_linear_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidInput) as error:
        expression(pattern)
    assert error.value.code == "invalid_pattern"


@pytest.mark.proves("D.353")
def test_validators_of_apps_and_what_holds_without_them() -> None:
    asked = one(TEXT, custom_validator="ticket-exists")
    assert custom_checks(asked, {"q": "T-1"}) == [(asked.questions[0], "T-1")]
    assert custom_checks(asked, {"q": 1}) == [], "what is wrong anyway needs no validator"
    assert custom_checks(asked, {"q": None}) == []
    assert fault(asked, "T-1", {"q": None}) is None
    assert fault(asked, "T-1", {"q": "no such ticket"}) == "no such ticket"
    assert "could not look" in (fault(asked, "T-1", {}) or "")
    assert fault(asked, "", {"q": None}) == "it is empty", "an answer that is wrong anyway is not saved by code"


# What follows ----------------------------------------------------------------------------------------------------


def asking(on_invalid: OnInvalid, *more: GateQuestion) -> Life:
    question = ask("q", TEXT, on_invalid=on_invalid, validation=AnswerValidation(min_length=5))
    return Life(atlas(gate("g", TriggerType.SESSION_START, questions=(question, *more))))


@pytest.mark.proves("S5.19", "D.350")
def test_a_wrong_answer_is_asked_again_by_default() -> None:
    assert GateQuestion(question_id="q", question="?", response_type=TEXT).on_invalid is OnInvalid.RETRY
    life = asking(OnInvalid.RETRY)
    said = life.answer("g", q="no")
    assert (said.valid, list(said.told["faults"])) == (False, ["q"])
    assert life.state.asks[0].attempts == 1
    assert life.answer("g", q="long enough").valid


@pytest.mark.proves("S5.19", "D.350")
def test_a_wrong_answer_may_shut_the_gate_at_once() -> None:
    life = asking(OnInvalid.BLOCK)
    assert life.answer("g", q="no").told["next"] == "The gate is shut. Do not try again."
    assert life.state.ended is not None


@pytest.mark.proves("S5.19", "D.350")
@pytest.mark.parametrize(
    ("on_invalid", "warned"), [(OnInvalid.WARN_AND_CONTINUE, True), (OnInvalid.LOG_AND_CONTINUE, False)]
)
def test_a_wrong_answer_may_do_and_is_on_the_trail(on_invalid: OnInvalid, warned: bool) -> None:
    life = asking(on_invalid)
    said = life.answer("g", q="no")
    assert said.valid
    assert ("warning" in said.told) is warned
    response = next(each for each in life.traces if each.type == "checkpoint_response")
    assert response.payload["validation_result"] == "accepted_with_faults"
    assert list(response.payload["faults"]) == ["q"]
    assert life.verdict("a.b") is PolicyVerdict.ALLOW


@pytest.mark.proves("D.350")
@pytest.mark.parametrize("on_invalid", list(OnInvalid))
def test_no_answer_is_asked_again_whatever_follows_from_a_wrong_one(on_invalid: OnInvalid) -> None:
    life = asking(on_invalid, ask("optional", TEXT, required=False))
    for nothing in ({"optional": "x"}, {"q": None, "optional": "x"}):
        assert not life.answer("g", None, **nothing).valid
        assert len(life.state.asks) == 1
    assert life.answer("g", q="long enough").valid, "an optional question may stay without one"


@pytest.mark.proves("D.350")
def test_answers_to_other_questions_are_told_and_bounded() -> None:
    life = asking(OnInvalid.LOG_AND_CONTINUE)
    said = life.answer("g", None, q="long enough", **{f"x{n}": 1 for n in range(1000)})
    assert not said.valid
    assert len(said.told["faults"]) <= 5
    assert "it asks q" in said.told["faults"]["x0"]


TIED = AnswerValidation(equals_argument="order_id")


def tied(kind: ResponseType = TEXT, **more: Any) -> Life:
    question = ask("order", kind, validation=TIED, **more)
    return Life(atlas(gate("order", TriggerType.ACTION_PRE, on_patterns=("refund.*",), questions=(question,))))


@pytest.mark.proves("S5.260")
@pytest.mark.parametrize(
    ("kind", "more", "argument", "right", "wrong"),
    [
        (TEXT, {}, "A-17", ["A-17"], ["a-17", "A-17 ", "A-171", "17", "A-18"]),
        (TEXT, {}, 17, [], ["17"]),
        (NUMBER, {}, 17, [17, 17.0], [18, 17.5, True]),
        (NUMBER, {}, True, [], [1]),
        (CHOICE, {"options": ("a", "b")}, "a", ["a"], ["b"]),
    ],
)
def test_an_answer_may_have_to_equal_an_argument(
    kind: ResponseType, more: dict[str, Any], argument: Any, right: list[Any], wrong: list[Any]
) -> None:
    for value, fits in [*((each, True) for each in right), *((each, False) for each in wrong)]:
        life = tied(kind, **more)
        assert life.verdict(call("refund.pay", order_id=argument, amount=5)) is PolicyVerdict.DENY
        answered = life.answer("order", order=value)
        assert answered.valid is fits, value
        expected = PolicyVerdict.ALLOW if fits else PolicyVerdict.DENY
        assert life.verdict(call("refund.pay", order_id=argument, amount=5)) is expected


@pytest.mark.proves("S5.260")
def test_an_equal_answer_lets_through_no_call_with_another_argument() -> None:
    life = tied()
    life.judge(call("refund.pay", order_id="A-17"))
    wrong = life.answer("order", order="A-18")
    assert wrong.told["faults"]["order"].startswith("it is not the argument `order_id` of the call")
    assert life.answer("order", order="A-17").valid
    assert life.verdict(call("refund.pay", order_id="A-18")) is PolicyVerdict.DENY
    assert life.verdict(call("refund.pay", order_id="A-17")) is PolicyVerdict.ALLOW


@pytest.mark.proves("S5.260")
def test_a_call_without_the_argument_never_passes() -> None:
    life = tied()
    for value in ("A-17", "", "null"):
        life.judge(call("refund.pay", amount=5))
        told = life.answer("order", order=value).told
        assert told["passed"] is False
    assert "the call has no argument `order_id`" in tied_fault(life)
    assert life.verdict(call("refund.pay", amount=5)) is PolicyVerdict.DENY


def tied_fault(life: Life) -> str:
    return " ".join(shut.reason for shut in life.state.shut)

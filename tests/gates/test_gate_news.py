"""What gates did, in words: nothing of it is JSON, and nothing that an agent wrote is more than a text."""

from __future__ import annotations

from typing import Any

import pytest

from cortex_plane.gates.model.atlases import TriggerType
from cortex_plane.gates.rules.prompts import SHOWN, NewsKind, gate_of_rule, news
from cortex_plane.sessions.model.events import TraceType

GATE = {"atlas_id": "com.acme", "checkpoint_id": "delete-confirm"}


def said(kind: TraceType, **data: Any) -> tuple[NewsKind, str]:
    heard = news(kind, GATE | data)
    assert heard is not None
    assert (heard.atlas, heard.gate) == ("com.acme", "delete-confirm")
    assert heard.line == f"gate delete-confirm {heard.said}"
    return heard.kind, heard.said


@pytest.mark.proves("D.395")
@pytest.mark.parametrize(
    ("trigger", "data", "words"),
    [
        ("session_start", {}, "as the session begins"),
        ("session_end", {}, "as the session ends"),
        ("interactive", {}, "before anything goes on"),
        ("action_pre", {"action_id": "ticket.delete"}, "before ticket.delete runs"),
        ("capability_access", {"action_id": "user.ban"}, "before user.ban runs: its capability is locked"),
        ("risk_threshold", {"action_id": "user.ban"}, "before user.ban runs, for its risk"),
        ("action_post", {"action_id": "pay"}, "after pay ended"),
        ("keyword", {"matched": ["refund", "cancel"]}, "because of “refund”, “cancel”"),
        ("keyword", {}, "because of what was said"),
        ("time_interval", {"seconds": 300}, "because 300 seconds have passed"),
        ("count_interval", {"actions": 10}, "because 10 actions have run"),
        ("explicit_request", {"requested": "refunds"}, "because the agent asked for “refunds”"),
        ("error_occurred", {"error": "it broke"}, "because something went wrong: it broke"),
        ("custom", {"trigger_id": "sentiment"}, "because sentiment said so"),
        ("a_newer_one", {}, "at a_newer_one"),
    ],
)
def test_each_trigger_has_its_words(trigger: str, data: dict[str, Any], words: str) -> None:
    for mode, kind, verb in (
        ("blocking", NewsKind.ASKED, "asks"),
        ("advisory", NewsKind.ADVISED, "advises"),
        ("observational", NewsKind.NOTED, "looks on"),
    ):
        told = said(TraceType.TRIGGERED, checkpoint_type=trigger, mode=mode, trigger_data=data)
        assert told == (kind, f"{verb} {words}")


def test_no_trigger_is_without_words() -> None:
    for trigger in TriggerType:
        _, words = said(TraceType.TRIGGERED, checkpoint_type=trigger, mode="blocking", trigger_data={})
        assert f"at {trigger}" not in words


@pytest.mark.proves("D.395")
@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"answers": {"agree": True}, "validation_result": "valid"}, (NewsKind.ANSWERED, "is answered: agree = true")),
        (
            {"answers": {"why": "no"}, "validation_result": "invalid", "faults": {"why": "is too short"}},
            (NewsKind.REFUSED, "is answered: why = no; not accepted (why: is too short)"),
        ),
        (
            {"answers": {}, "validation_result": "accepted_with_faults", "faults": {"why": "is missing"}},
            (NewsKind.ANSWERED, "is answered: nothing; accepted all the same (why: is missing)"),
        ),
        (
            {"answers": {"ack": "understood"}, "validation_result": "valid", "action_id": "ticket.delete"},
            (NewsKind.ANSWERED, "is answered for ticket.delete: ack = understood"),
        ),
        (
            {"answers": {str(n): n for n in range(12)}, "validation_result": "valid"},
            (NewsKind.ANSWERED, "is answered: " + ", ".join(f"{n} = {n}" for n in range(10)) + ", and 2 more"),
        ),
    ],
)  # fmt: skip
def test_an_answer_is_told_with_what_became_of_it(data: dict[str, Any], told: tuple[NewsKind, str]) -> None:
    assert said(TraceType.RESPONSE, **data) == told


@pytest.mark.proves("D.395")
def test_what_a_gate_did_is_told() -> None:
    assert said(TraceType.PASSED, unlocked_capabilities=[], injected_contexts=[]) == (NewsKind.PASSED, "is passed")
    opened = said(
        TraceType.PASSED,
        unlocked_capabilities=["admin", "logs"], locked_capabilities=["public"], injected_contexts=["intro"],
    )  # fmt: skip
    assert opened == (NewsKind.PASSED, "is passed: opens admin, logs, locks public, tells intro")
    stopped = said(TraceType.BLOCKED, reason="Required question not answered", blocked_action="user.ban")
    assert stopped == (NewsKind.BLOCKED, "stops user.ban until it is answered")
    assert said(TraceType.BLOCKED, reason="3 tries") == (NewsKind.BLOCKED, "stops the session: 3 tries")
    budget = "max_checkpoints_per_input"
    left_out = said(TraceType.SKIPPED, reason=budget, checkpoint_type="keyword")
    assert left_out == (NewsKind.SKIPPED, f"is left out: the budget {budget} is used up")
    assert said(TraceType.SKIPPED, reason="x", context_id="intro")[1].startswith("does not tell intro:")
    assert said(TraceType.SKIPPED, reason="x", guidance=True)[1].startswith("gives no guidance:")


def test_other_events_are_none_of_it() -> None:
    assert news("tool_call", GATE) is None
    assert gate_of_rule("gate:com.acme/delete-confirm") == "com.acme/delete-confirm"
    assert gate_of_rule("atlas:com.acme/limit") is None


@pytest.mark.proves("D.395")
@pytest.mark.parametrize("odd", [None, 7, [], {}, "x" * 100_000, ["a" * 5000] * 50, {"a": {"b": [None]}}])
def test_whatever_stands_in_an_event_is_one_short_line(odd: Any) -> None:
    fields = (
        "atlas_id", "checkpoint_id", "checkpoint_type", "mode", "trigger_data", "answers", "validation_result", "faults",
        "unlocked_capabilities", "injected_contexts", "locked_capabilities", "reason", "blocked_action", "context_id",
    )  # fmt: skip
    for kind in TraceType:
        heard = news(kind, dict.fromkeys(fields, odd))
        assert heard is not None
        assert "\n" not in heard.line
        assert len(heard.line) < 40 * SHOWN

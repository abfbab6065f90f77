"""What gates did, as `cortex job watch` tells it: a line each, in words, whatever an agent wrote in it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from rich.text import Text

from cortex_plane.cli.watch import GATE, event_line
from cortex_plane.sessions.model.events import GATES, Event, EventType
from tests.fixtures.hostile import HOSTILE, INVISIBLE

GATE_ID = {"atlas_id": "com.acme", "checkpoint_id": "delete-confirm"}


def told(kind: str, **data: Any) -> str:
    event = Event(seq=1, type=kind, job_id=None, data=GATE_ID | data, created_at=datetime.now(UTC))
    line = event_line(event)
    assert isinstance(line, Text)
    return line.plain


@pytest.mark.proves("D.395")
def test_each_thing_that_a_gate_does_is_a_line() -> None:
    pre = {"checkpoint_type": "action_pre", "trigger_data": {"action_id": "ticket.delete"}}
    begin = "      gate delete-confirm "
    assert told("checkpoint_triggered", mode="blocking", **pre) == begin + "asks before ticket.delete runs"
    answered = told("checkpoint_response", answers={"ack": "understood"}, validation_result="valid")
    assert answered == begin + "is answered: ack = understood"
    passed = told("checkpoint_passed", unlocked_capabilities=["admin"], injected_contexts=[])
    assert passed == begin + "is passed: opens admin"
    blocked = told("checkpoint_blocked", reason="3 tries", blocked_action="ticket.delete")
    assert blocked == begin + "stops ticket.delete: 3 tries"
    skipped = told("checkpoint_skipped", reason="max_checkpoints_per_input")
    assert skipped == begin + "is left out: the budget max_checkpoints_per_input is used up"


@pytest.mark.proves("D.395", "D.401")
@pytest.mark.parametrize("kind", sorted(GATES))
def test_agents_do_not_write_on_the_terminal(kind: str) -> None:
    fields = [name.rstrip("?") for name in EventType(kind).fields]
    for odd in (HOSTILE, [HOSTILE], {HOSTILE: HOSTILE}, HOSTILE * 1000):
        line = told(kind, **dict.fromkeys(fields, odd))
        assert not INVISIBLE & set(line), repr(line)
        assert len(line) <= GATE + 6
        assert "\n" not in line


@pytest.mark.proves("D.402")
def test_events_have_the_names_of_the_trail() -> None:
    assert {
        "checkpoint_triggered", "checkpoint_response", "checkpoint_passed", "checkpoint_blocked", "checkpoint_skipped",
    } == GATES  # fmt: skip

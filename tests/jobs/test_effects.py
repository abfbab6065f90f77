from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.jobs.model.effects import SETTLED, CallStatus, Settlement, ToolCall, question, settlement

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)


def a_call(**changes: Any) -> ToolCall:
    fields: dict[str, Any] = {
        "id": UUID(int=1), "job_id": UUID(int=2), "step_index": 3, "position": 0, "tool_name": "git.push",
        "tool_digest": "0" * 64, "arguments": {"branch": "main"}, "read_only": False,
        "on_uncertain": OnUncertain.ASK_HUMAN, "status": CallStatus.UNCERTAIN, "attempt": 2,
        "dispatch_before": NOW, "settle_after": NOW + timedelta(seconds=30), "result": None, "result_id": None,
        "error": None, "settled_by": None, "created_at": NOW, "finished_at": None,
    }  # fmt: skip
    return ToolCall(**{**fields, **changes})


@pytest.mark.parametrize("on_uncertain", OnUncertain)
def test_nothing_is_settled_while_the_call_may_be_under_way(on_uncertain: OnUncertain) -> None:
    for late in (timedelta(microseconds=1), timedelta(days=1)):
        assert settlement(on_uncertain, NOW + late, NOW) is Settlement.WAIT
    assert settlement(on_uncertain, NOW, NOW) is not Settlement.WAIT


def test_every_tool_is_settled_as_it_declares() -> None:
    assert {kind: settlement(kind, NOW, NOW) for kind in OnUncertain} == {
        OnUncertain.RETRY_WITH_KEY: Settlement.SEND_AGAIN,
        OnUncertain.PROBE: Settlement.PROBE,
        OnUncertain.ASK_HUMAN: Settlement.ASK_HUMAN,
        OnUncertain.FAIL: Settlement.FAIL,
    }


def test_what_is_open_is_not_settled() -> None:
    before_it_is_sent = {CallStatus.ALLOWED, CallStatus.AWAITING, CallStatus.APPROVED, CallStatus.PARKED}
    in_doubt = {CallStatus.INTENDED, CallStatus.UNCERTAIN, CallStatus.CLEARED}
    assert set(CallStatus) - SETTLED == before_it_is_sent | in_doubt


def test_a_question_names_the_call_and_the_answers() -> None:
    asked = question(a_call())
    assert (asked.call_id, asked.job_id, asked.step_index, asked.attempt) == (UUID(int=1), UUID(int=2), 3, 2)
    assert (asked.tool_name, asked.arguments) == ("git.push", {"branch": "main"})
    assert "`git.push`" in asked.text
    assert all(answer in asked.text for answer in ("happened", "did_not_happen", "fail"))

"""What a job and an agent may still spend, and how long a provider's wish is heard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.agents.model.agents import ResourceLimits
from cortex_plane.agents.model.completions import (
    AssistantTurn,
    CallRequest,
    CallResult,
    ModelError,
    ModelRequest,
    ToolSpec,
    ToolTurn,
    UserTurn,
)
from cortex_plane.jobs.model.usage import (
    Spent,
    UsageTotals,
    alone_over_day,
    cost_text,
    estimated_prompt,
    over_day,
    over_job,
)
from cortex_plane.kernel.errors import LONGEST_WISH_SECONDS, Backoff, ErrorClass

NOTHING = Spent(tokens=0, cost_micros=0)


def _request(model: str = "anthropic:claude-sonnet-5") -> ModelRequest:
    call = CallRequest(id="1", name="ship", arguments={"to": "Ada"})
    return ModelRequest(
        model=model,
        system_prompt="x" * 400,
        turns=[
            UserTurn("y" * 400),
            AssistantTurn(text="z" * 400, calls=(call,)),
            ToolTurn((CallResult(call_id="1", name="ship", content="w" * 400),)),
        ],
        tools=[ToolSpec(name="ship", description="d" * 400, parameters={})],
        temperature=None,
        max_tokens=None,
        settings={},
        turn_index=1,
    )


@pytest.mark.proves("D.219")
def test_a_prompt_is_about_a_quarter_of_its_characters() -> None:
    assert 500 <= estimated_prompt(_request()) <= 520
    # The scripted model counts what is new alone, as providers with a cache bill it.
    assert estimated_prompt(_request("scripted")) < 120


@pytest.mark.proves("D.219")
def test_a_job_asks_until_the_next_prompt_would_be_too_much() -> None:
    limits = ResourceLimits(token_budget=1000)
    assert over_job(limits, Spent(tokens=900, cost_micros=0), Spent(tokens=100, cost_micros=0)) is None
    why = over_job(limits, Spent(tokens=900, cost_micros=0), Spent(tokens=101, cost_micros=0))
    assert why == "The job used 900 tokens and the next prompt has about 101; its budget is 1000."
    assert over_job(ResourceLimits(), Spent(tokens=10**9, cost_micros=10**12), NOTHING) is None


@pytest.mark.proves("D.219")
def test_money_is_counted_to_the_millionth() -> None:
    limits = ResourceLimits(cost_budget_usd=0.5)
    due = Spent(tokens=1, cost_micros=1)
    assert over_job(limits, Spent(tokens=0, cost_micros=499_999), due) is None
    why = over_job(limits, Spent(tokens=0, cost_micros=500_000), due)
    assert why == "The job cost $0.5000 and the next prompt about $0.0000; its budget is $0.5."
    assert over_job(limits, Spent(tokens=0, cost_micros=500_000), NOTHING) is not None


@pytest.mark.proves("D.220")
def test_a_day_has_its_own_budget_and_some_calls_fit_into_none() -> None:
    limits = ResourceLimits(daily_token_budget=1000, daily_cost_budget_usd=1.0)
    due = Spent(tokens=100, cost_micros=100)
    assert over_day(limits, Spent(tokens=900, cost_micros=0), due) is None
    assert "901 tokens today" in (over_day(limits, Spent(tokens=901, cost_micros=0), due) or "")
    assert "$1.0000 today" in (over_day(limits, Spent(tokens=0, cost_micros=10**6), due) or "")
    assert not alone_over_day(limits, due)
    assert alone_over_day(limits, Spent(tokens=1001, cost_micros=0))
    assert alone_over_day(limits, Spent(tokens=1, cost_micros=1_000_001))


@given(wished=st.floats(0, 10**9) | st.none(), count=st.integers(0, 100), chance=st.floats(0, 0.999))
@pytest.mark.proves("D.212")
def test_nobody_is_asked_before_the_time_that_they_wished(wished: float | None, count: int, chance: float) -> None:
    delay = Backoff(base_seconds=1, cap_seconds=60).delay_after(wished, count, chance)
    assert delay >= min(wished or 0, LONGEST_WISH_SECONDS)
    assert delay <= max(60, LONGEST_WISH_SECONDS * 1.1)


@pytest.mark.proves("D.212")
def test_what_no_later_try_would_change_is_permanent() -> None:
    for code in ("no_model_key", "model_refused", "unknown_price", "unknown_model", "model_quota"):
        assert ModelError("no", code=code, status=429).error_class is ErrorClass.PERMANENT
    assert ModelError("no", status=429).error_class is ErrorClass.TRANSIENT
    assert ModelError("no", status=529).error_class is ErrorClass.TRANSIENT
    assert ModelError("no", status=401).error_class is ErrorClass.PERMANENT
    assert ModelError("no").error_class is ErrorClass.INFRASTRUCTURE


@pytest.mark.proves("D.217")
@pytest.mark.parametrize(
    ("calls", "cost", "unpriced", "says"),
    [
        (0, None, 0, "$0"),
        (2, None, 2, "unknown"),
        (2, 1_500, 0, "$0.0015"),
        (3, 2_000_000, 1, "$2.0000 and 1 of unknown price"),
    ],
)
def test_an_unknown_price_is_said_and_never_taken_for_nothing(
    calls: int, cost: int | None, unpriced: int, says: str
) -> None:
    totals = UsageTotals(
        calls=calls, prompt_tokens=1, completion_tokens=1, cache_read_tokens=0, cache_write_tokens=0,
        cost_micros=cost, unpriced_calls=unpriced, seconds=1,
    )  # fmt: skip
    assert cost_text(totals) == says

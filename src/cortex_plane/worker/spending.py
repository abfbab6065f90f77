"""Whether a job may ask its model once more, by its own budget and by its agent's of the day. Looked at before the call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from cortex_plane.agents.model.completions import ModelError, Request, Usage, heard, tokens
from cortex_plane.jobs.model.usage import (
    OpenModelCall,
    Spent,
    alone_over_day,
    estimated_prompt,
    over_day,
    over_job,
)
from cortex_plane.jobs.rules.attempts import StepWrite
from cortex_plane.jobs.verbs import workers
from cortex_plane.sessions.model.events import EventType
from cortex_plane.worker.models.backends import Answering
from cortex_plane.worker.models.prices import cost_micros

if TYPE_CHECKING:
    from cortex_plane.worker.model_calls import Voice

RAISE = "Raise `{setting}` in the agent's resource limits, then `cortex job resubmit` the job."


@contextmanager
def question(voice: Voice) -> Iterator[OpenModelCall]:
    """Counted from before it is asked until whoever asked counts the answer: branches of a job ask at the same time."""
    asked = OpenModelCall()
    voice.asking.append(asked)
    try:
        yield asked
    finally:
        voice.asking.remove(asked)


async def afford(voice: Voice, asked: OpenModelCall, request: Request, answering: Answering) -> None:
    """Ends the attempt where the next call would be too much; without a budget it costs nothing to ask."""
    limits = voice.limits.resources
    by_cost = limits.cost_budget_usd is not None or limits.daily_cost_budget_usd is not None
    daily = limits.daily_token_budget is not None or limits.daily_cost_budget_usd is not None
    if limits.token_budget is None and not by_cost and not daily:
        return
    due = await _estimate(request, answering, by_cost)
    today, seconds_left = await workers.spent_today(voice.host.db, voice.given) if daily else (Spent(), 0.0)
    so_far = await _so_far(voice)
    # From here until it is reserved nothing is awaited, so that of several questions each sees those before it.
    under_way = sum((each.least for each in voice.asking), Spent())
    why = over_job(limits, so_far + under_way, due)
    if why is not None:
        setting = "token_budget" if "tokens" in why else "cost_budget_usd"
        await voice.fail(why, RAISE.format(setting=setting))
    if daily:
        await _afford_today(voice, today + under_way + _unwritten(voice), due, seconds_left)
    asked.least = due


async def _afford_today(voice: Voice, spent: Spent, due: Spent, seconds_left: float) -> None:
    limits = voice.limits.resources
    why = over_day(limits, spent, due)
    if why is None:
        return
    setting = "daily_token_budget" if "tokens" in why else "daily_cost_budget_usd"
    if alone_over_day(limits, due):
        await voice.fail(
            f"The next prompt alone has about {due.tokens} tokens, more than the agent's budget of a day.",
            RAISE.format(setting=setting),
        )
    await _sleep(voice, why, setting, seconds_left)


async def _sleep(voice: Voice, why: str, setting: str, seconds: float) -> NoReturn:
    told = {"message": f"{why} The job goes on with the next day of UTC.", "budget": setting}
    fact = voice.fact("budget_spent", budget=setting, reason=why)
    await voice.sleep(
        seconds, "budget_spent", StepWrite(events=[(EventType.BUDGET_SPENT, told)], facts=[fact])
    )


async def _estimate(request: Request, answering: Answering, by_cost: bool) -> Spent:
    """The least that the next prompt may take: what was sent before may be read from the provider's cache."""
    asked = replace(request, model=answering.model)
    prompt = estimated_prompt(asked)
    if not by_cost:
        return Spent(tokens=prompt, cost_micros=0)
    cached = max(0, prompt - tokens(heard(asked))) if request.turn_index > 0 else 0
    least = Usage(prompt_tokens=prompt, completion_tokens=0, cache_read_tokens=cached)
    cost = await cost_micros(answering.model, least)
    if cost is None:
        raise ModelError(
            f"The price of `{answering.model}` is not known, so its cost cannot be kept within a budget.",
            code="unknown_price",
            hint="Limit the agent by `token_budget` or `daily_token_budget` instead, or name a model with a known price.",
        )
    return Spent(tokens=prompt, cost_micros=cost)


async def _so_far(voice: Voice) -> Spent:
    """By the job. Read once per attempt: nobody else spends for a job that is leased.

    Its checkpoint counts tokens too, and less where an attempt ended without one.
    """
    limits = voice.limits.resources
    if limits.token_budget is None and limits.cost_budget_usd is None:
        return Spent()
    if voice.job_spent is None:
        written = await workers.spent_by_job(voice.host.db, voice.given)
        if voice.job_spent is None:
            voice.job_spent = written + _unwritten(voice)
    counted = voice.at.prompt_tokens + voice.at.completion_tokens
    return replace(voice.job_spent, tokens=max(voice.job_spent.tokens, counted))


def _unwritten(voice: Voice) -> Spent:
    return sum((call.spent for call in voice.model_calls), Spent())

"""Tokens and cost of jobs, and the budgets that bound them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any
from uuid import UUID

from cortex_plane.agents.model import completions
from cortex_plane.agents.model.agents import ResourceLimits
from cortex_plane.agents.model.completions import tokens


class Grouping(StrEnum):
    DAY = "day"
    """Of UTC."""
    AGENT = "agent"
    JOB = "job"
    MODEL = "model"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCall:
    """One answer of a model, or as much of one as there was."""

    id: UUID
    step_index: int
    purpose: str
    model: str
    usage: completions.ModelUsage
    cost_micros: int | None
    seconds: float
    estimated: bool
    """The answer broke off before its provider said what it counted."""

    @property
    def spent(self) -> Spent:
        return Spent(tokens=self.usage.total, cost_micros=self.cost_micros or 0)

    def row(self) -> dict[str, Any]:
        """As a write carries it."""
        return {
            "id": str(self.id),
            "step_index": self.step_index,
            "purpose": self.purpose,
            "model": self.model,
            "prompt_tokens": self.usage.prompt_tokens,
            "completion_tokens": self.usage.completion_tokens,
            "cache_read_tokens": self.usage.cache_read_tokens,
            "cache_write_tokens": self.usage.cache_write_tokens,
            "cost_micros": self.cost_micros,
            "estimated": self.estimated,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageTotals:
    calls: int
    """How many requests were sent to models."""
    prompt_tokens: int
    """Those of the cache included."""
    completion_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_micros: int | None
    """Millionths of a US dollar, of the calls whose price is known; null where none is."""
    unpriced_calls: int
    """Calls whose price nobody knows."""
    seconds: float
    """How long the models took, in seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageRow(UsageTotals):
    """The totals of one day, agent, job or model."""

    key: str
    """What they are summed by: a day such as 2026-12-01, an id, or a model's name."""
    day: date | None
    """The day, in UTC."""
    agent_id: UUID | None
    agent: str | None
    job_id: UUID | None
    model: str | None


def cost_text(totals: UsageTotals) -> str:
    """For people: unknown is said, never taken for nothing."""
    if totals.calls == 0:
        return "$0"
    if totals.cost_micros is None:
        return "unknown"
    dollars = f"${totals.cost_micros / 1_000_000:,.4f}"
    return f"{dollars} and {totals.unpriced_calls} of unknown price" if totals.unpriced_calls else dollars


MICROS = 1_000_000


def is_scripted(model: str) -> bool:
    return model.partition(":")[0] == "scripted"


def estimated_prompt(request: completions.ModelRequest) -> int:
    """About how many tokens the prompt has: four characters make one. Too few rather than too many, so that a call is not
    made only where it would clearly be too much."""
    if is_scripted(request.model):
        return tokens(completions.heard(request))
    length = len(request.system_prompt or "") + len(request.notice)
    length += sum(len(tool.name) + len(tool.description) + len(str(tool.parameters)) for tool in request.tools)
    for turn in request.turns:
        match turn:
            case completions.UserTurn():
                length += len(turn.text)
            case completions.AssistantTurn():
                length += len(turn.text or "")
                length += sum(len(call.name) + len(str(call.arguments)) for call in turn.calls)
            case completions.ToolTurn():
                length += sum(len(result.content) for result in turn.results)
    return tokens(length)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spent:
    tokens: int = 0
    cost_micros: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(tokens=self.tokens + other.tokens, cost_micros=self.cost_micros + other.cost_micros)


def over_job(limits: ResourceLimits, spent: Spent, next_call: Spent) -> str | None:
    """Why the job may not ask again; None where it may."""
    if limits.token_budget is not None and spent.tokens + next_call.tokens > limits.token_budget:
        return (
            f"The job used {spent.tokens} tokens and the next prompt has about {next_call.tokens};"
            f" its budget is {limits.token_budget}."
        )
    if limits.cost_budget_usd is not None:
        cost, budget = spent.cost_micros + next_call.cost_micros, limits.cost_budget_usd * MICROS
        if cost > budget or spent.cost_micros >= budget:
            return (
                f"The job cost {_dollars(spent.cost_micros)} and the next prompt about"
                f" {_dollars(next_call.cost_micros)}; its budget is ${limits.cost_budget_usd:g}."
            )
    return None


def over_day(limits: ResourceLimits, spent: Spent, next_call: Spent) -> str | None:
    """Why the agent's jobs ask no more today; None where they may."""
    budget = limits.daily_token_budget
    if budget is not None and (spent.tokens >= budget or spent.tokens + next_call.tokens > budget):
        return f"The agent used {spent.tokens} tokens today; its budget of a day is {budget}."
    dollars = limits.daily_cost_budget_usd
    if dollars is not None:
        cost = spent.cost_micros + next_call.cost_micros
        if cost > dollars * MICROS or spent.cost_micros >= dollars * MICROS:
            return f"The agent cost {_dollars(spent.cost_micros)} today; its budget of a day is ${dollars:g}."
    return None


def alone_over_day(limits: ResourceLimits, next_call: Spent) -> bool:
    """Whether the next call would not fit into any day: then nothing is gained by waiting for the next one."""
    return over_day(limits, Spent(), next_call) is not None


def _dollars(micros: int) -> str:
    return f"${micros / MICROS:.4f}"

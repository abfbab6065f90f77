"""What models were asked for jobs, what it took, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any
from uuid import UUID

from cortex_plane.agents.model.models import Usage
from cortex_plane.jobs.model.budgets import Spent


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
    usage: Usage
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


@dataclass(frozen=True, kw_only=True, slots=True)
class UsageRow(UsageTotals):
    """The totals of one day, agent, job or model."""

    key: str
    """What they are summed by: a day such as 2026-12-01, an id, or a model's name."""
    day: date | None
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

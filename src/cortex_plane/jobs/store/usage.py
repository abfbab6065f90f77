"""What models were asked, in SQL. The rows are written with the writes of attempts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from cortex_plane.db.database import Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.jobs.model.budgets import Spent
from cortex_plane.jobs.model.usage import UsageRow, UsageTotals
from cortex_plane.kernel.values import parse

queries = Queries(__file__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """Which answers are summed, and which of the sums are wanted: those below a key, the highest first."""

    sees: UUID | None
    since: datetime | None
    until: datetime | None
    agent_id: UUID | None
    job_id: UUID | None
    below: str | None
    limit: int

    @property
    def arguments(self) -> tuple[object, ...]:
        return (self.sees, self.since, self.until, self.agent_id, self.job_id, self.below, self.limit)


async def by_day(tx: Transaction, chosen: Chosen) -> list[UsageRow]:
    return [parse(UsageRow, row) for row in await tx.rows(queries.by_day, *chosen.arguments)]


async def by_agent(tx: Transaction, chosen: Chosen) -> list[UsageRow]:
    return [parse(UsageRow, row) for row in await tx.rows(queries.by_agent, *chosen.arguments)]


async def by_job(tx: Transaction, chosen: Chosen) -> list[UsageRow]:
    return [parse(UsageRow, row) for row in await tx.rows(queries.by_job, *chosen.arguments)]


async def by_model(tx: Transaction, chosen: Chosen) -> list[UsageRow]:
    return [parse(UsageRow, row) for row in await tx.rows(queries.by_model, *chosen.arguments)]


async def of_job(tx: Transaction, job_id: UUID) -> UsageTotals:
    (row,) = await tx.rows(queries.of_job, job_id)
    return parse(UsageTotals, row)


async def spent_by_job(tx: Transaction, job_id: UUID) -> Spent:
    """Its cost as far as it is known."""
    (row,) = await tx.rows(queries.spent_by_job, job_id)
    return Spent(tokens=row["tokens"], cost_micros=row["cost_micros"])


async def spent_today(tx: Transaction, agent_id: UUID) -> tuple[Spent, float]:
    """By an agent since midnight UTC, and the seconds until the next one."""
    (row,) = await tx.rows(queries.spent_today, agent_id)
    return Spent(tokens=row["tokens"], cost_micros=row["cost_micros"]), row["seconds_left"]

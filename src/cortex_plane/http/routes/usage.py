from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from cortex_plane.http.exchange import Caller, Db, Listing, ListQuery, reply, reply_keyed, route
from cortex_plane.jobs.model.usage import Grouping, UsageRow, UsageTotals
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.fields import Moment, Ref
from cortex_plane.kernel.pages import decode_text

router = APIRouter(tags=["models"])


class UsageQuery(ListQuery):
    by: Grouping = Grouping.DAY
    since: Moment | None = None
    until: Moment | None = None
    agent: Ref | None = None
    job_id: UUID | None = None


@router.get("/usage", response_model=Listing[UsageRow], **route(workers.list_usage))
async def list_usage(db: Db, actor: Caller, query: Annotated[UsageQuery, Query()]) -> Response:
    """What models were asked, what it took and what it cost, by day of UTC, agent, job or model; the newest day first.

    Whoever is not staff sees what their own jobs used. `cost_micros` is in millionths of a US dollar, of the calls whose
    price is known; `unpriced_calls` says how many others there were.
    """
    noun = f"usage by {query.by}"
    found = await workers.list_usage(
        db,
        actor,
        query.by,
        query.limit + 1,
        below=decode_text(noun, query.cursor),
        since=query.since,
        until=query.until,
        agent=query.agent,
        job_id=query.job_id,
    )
    return reply_keyed(noun, found, query.limit, lambda row: row.key)


@router.get("/jobs/{job_id}/usage", response_model=UsageTotals, **route(workers.list_job_usage))
async def get_job_usage(db: Db, actor: Caller, job_id: UUID) -> Response:
    """What the models of one job took, over all its attempts."""
    return reply(await workers.list_job_usage(db, actor, job_id))

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from cortex_plane.adapters.http.cursors import decode_position
from cortex_plane.adapters.http.exchange import (
    Caller,
    Db,
    Listing,
    ListQuery,
    OnceOnly,
    metrics,
    reply,
    reply_numbered,
    reply_page,
    route,
)
from cortex_plane.adapters.telemetry.metrics import Metrics
from cortex_plane.domain.fields import Ref
from cortex_plane.domain.jobs import Cancellation, Job, JobChange, JobDraft, JobStatus, Receipt
from cortex_plane.operations import jobs, steering

router = APIRouter(tags=["jobs"])


class JobQuery(ListQuery):
    status: JobStatus | None = None
    session_id: UUID | None = None
    agent: Ref | None = None


@router.post("/jobs", response_model=Job, status_code=201, **route(jobs.submit))
async def submit_job(
    db: Db, actor: Caller, once: OnceOnly, draft: JobDraft, counted: Annotated[Metrics, Depends(metrics)]
) -> Response:
    """Without `session_id` the plane opens a session for the job."""
    job = await jobs.submit(db, actor, draft, once)
    counted.jobs.add(1, {"tenant_id": str(actor.org_id)})
    return reply(job, 201)


@router.get("/jobs", response_model=Listing[Job], **route(jobs.list_page))
async def list_jobs(db: Db, actor: Caller, query: Annotated[JobQuery, Query()]) -> Response:
    page = await jobs.list_page(
        db,
        actor,
        decode_position("jobs", query.cursor),
        query.limit,
        status=query.status,
        session_id=query.session_id,
        agent=query.agent,
    )
    return reply_page("jobs", page)


@router.get("/jobs/{job_id}", response_model=Job, **route(jobs.get))
async def get_job(db: Db, actor: Caller, job_id: UUID) -> Response:
    return reply(await jobs.get(db, actor, job_id))


@router.get("/jobs/{job_id}/history", response_model=Listing[JobChange], **route(jobs.history))
async def get_job_history(db: Db, actor: Caller, job_id: UUID) -> Response:
    """Every change of status, oldest first."""
    changes = await jobs.history(db, actor, job_id)
    return reply_numbered("history", changes, len(changes), lambda _: 0)


@router.post("/jobs/{job_id}/cancel", response_model=Receipt, **route(steering.cancel))
async def cancel_job(db: Db, actor: Caller, job_id: UUID, cancellation: Cancellation) -> Response:
    return reply(await steering.cancel(db, actor, job_id, cancellation))


@router.post("/jobs/{job_id}/resubmit", response_model=Job, status_code=201, **route(jobs.resubmit))
async def resubmit_job(
    db: Db, actor: Caller, job_id: UUID, once: OnceOnly, counted: Annotated[Metrics, Depends(metrics)]
) -> Response:
    """A failed or cancelled job once more: a new job that is linked to the old one."""
    job = await jobs.resubmit(db, actor, job_id, once)
    counted.jobs.add(1, {"tenant_id": str(actor.org_id)})
    return reply(job, 201)

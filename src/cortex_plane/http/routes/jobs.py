from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import Field
from starlette.responses import Response

from cortex_plane.calls.verbs import doubts
from cortex_plane.http.exchange import (
    Caller,
    Db,
    Listing,
    ListQuery,
    OnceOnly,
    metrics,
    reply,
    reply_all,
    reply_numbered,
    reply_page,
    route,
)
from cortex_plane.http.metrics import Metrics
from cortex_plane.jobs.model.effects import Answer, Question
from cortex_plane.jobs.model.jobs import (
    Cancellation,
    Job,
    JobChange,
    JobDraft,
    JobStatus,
    Pause,
    Resumption,
    SteeringResult,
    Step,
)
from cortex_plane.jobs.model.journal import JournalEntry
from cortex_plane.jobs.verbs import attempts, jobs, steering
from cortex_plane.kernel.fields import MAX_BODY_BYTES, Ref
from cortex_plane.kernel.pages import decode_number, decode_position

router = APIRouter(tags=["jobs"])


class JobQuery(ListQuery):
    status: JobStatus | None = None
    session_id: UUID | None = None
    agent: Ref | None = None


class StepQuery(ListQuery):
    above: Annotated[int, Field(ge=-1, lt=2**31, description="Only steps after this one.")] = -1


@router.post("/jobs", response_model=Job, status_code=201, **route(jobs.submit, body=MAX_BODY_BYTES))
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
    return reply_all(await jobs.history(db, actor, job_id))


@router.get("/jobs/{job_id}/steps", response_model=Listing[Step], **route(steering.list_steps))
async def list_steps(db: Db, actor: Caller, job_id: UUID, query: Annotated[StepQuery, Query()]) -> Response:
    """What the model said and what its calls did, in order. The last step may still be under way."""
    number = decode_number("steps", query.cursor)
    above = query.above if number is None else number
    found = await steering.list_steps(db, actor, job_id, above, query.limit + 1)
    return reply_numbered("steps", found, query.limit, lambda step: step.step_index)


@router.get("/jobs/{job_id}/journal", response_model=Listing[JournalEntry], **route(attempts.list_journal))
async def list_journal(db: Db, actor: Caller, job_id: UUID, query: Annotated[StepQuery, Query()]) -> Response:
    """What the code of a job did so far, in the order in which it was begun. Empty for agents that follow their model."""
    number = decode_number("journal", query.cursor)
    above = query.above if number is None else number
    found = await attempts.list_journal(db, actor, job_id, above, query.limit + 1)
    return reply_numbered("journal", found, query.limit, lambda entry: entry.position)


@router.get("/jobs/{job_id}/checkpoint", response_model=dict[str, Any], **route(steering.checkpoint))
async def get_checkpoint(db: Db, actor: Caller, job_id: UUID) -> Response:
    """The durable state, as the job would be resumed from it. Its schema is at /schemas/checkpoint/v1.json."""
    return reply(await steering.checkpoint(db, actor, job_id))


@router.get("/jobs/{job_id}/results/{result_id}", response_model=Any, **route(steering.stored_result))
async def get_result(db: Db, actor: Caller, job_id: UUID, result_id: UUID) -> Response:
    """A result that was too large for its step, as the tool returned it."""
    content = await steering.stored_result(db, actor, job_id, result_id)
    # Whatever a tool fetched: a browser must save it, never show it.
    headers = {"Content-Disposition": f'attachment; filename="{result_id}.json"'}
    return Response(content, headers=headers, media_type="application/json")


@router.get("/jobs/{job_id}/questions", response_model=Listing[Question], **route(steering.questions))
async def list_questions(db: Db, actor: Caller, job_id: UUID) -> Response:
    """Calls of which nobody knows whether they happened. The job waits for the answers."""
    return reply_all(await steering.questions(db, actor, job_id))


@router.post(
    "/jobs/{job_id}/calls/{call_id}/settle",
    response_model=SteeringResult,
    **route(doubts.answer_doubt, body=MAX_BODY_BYTES),
)
async def settle_call(db: Db, actor: Caller, job_id: UUID, call_id: UUID, answer: Answer) -> Response:
    """Answer a question: it happened, it did not, or give the job up."""
    return reply(await doubts.answer_doubt(db, actor, job_id, call_id, answer))


@router.post("/jobs/{job_id}/pause", response_model=SteeringResult, **route(steering.pause))
async def pause_job(db: Db, actor: Caller, job_id: UUID, pause: Pause) -> Response:
    """Hold a job until it is resumed. One that runs stops at its next boundary; until then it is `pending`."""
    return reply(await steering.pause(db, actor, job_id, pause))


@router.post("/jobs/{job_id}/resume", response_model=SteeringResult, **route(steering.resume))
async def resume_job(db: Db, actor: Caller, job_id: UUID, resumption: Resumption) -> Response:
    """Lift what an operator may lift. A question is answered instead, a session's hold ends with the session's."""
    return reply(await steering.resume(db, actor, job_id, resumption))


@router.post("/jobs/{job_id}/cancel", response_model=SteeringResult, **route(steering.cancel))
async def cancel_job(db: Db, actor: Caller, job_id: UUID, cancellation: Cancellation) -> Response:
    """End a job. One that runs ends at its next boundary; until then it is `pending`."""
    return reply(await steering.cancel(db, actor, job_id, cancellation))


@router.post("/jobs/{job_id}/resubmit", response_model=Job, status_code=201, **route(jobs.resubmit))
async def resubmit_job(
    db: Db, actor: Caller, job_id: UUID, once: OnceOnly, counted: Annotated[Metrics, Depends(metrics)]
) -> Response:
    """A failed or cancelled job once more: a new job that is linked to the old one."""
    job = await jobs.resubmit(db, actor, job_id, once)
    counted.jobs.add(1, {"tenant_id": str(actor.org_id)})
    return reply(job, 201)

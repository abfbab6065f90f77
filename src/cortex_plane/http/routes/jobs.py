"""The routes of jobs, bound to their verbs."""

from __future__ import annotations

from uuid import UUID

from starlette.responses import Response

from cortex_plane.calls.verbs import doubts
from cortex_plane.http.exchange import Binding, Exchange, answer, handle, ordered, pages, reply, reply_ordered, whole
from cortex_plane.jobs import routes
from cortex_plane.jobs.model.jobs import Job, JobDraft
from cortex_plane.jobs.verbs import jobs, steering, workers
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.pages import decode_text


async def submit_job(exchange: Exchange, draft: JobDraft, once: IdempotencyKey | None) -> Response:
    return _reply_created(exchange, await jobs.submit(exchange.db, exchange.actor, draft, once))


async def resubmit_job(exchange: Exchange, job_id: UUID, once: IdempotencyKey | None) -> Response:
    return _reply_created(exchange, await jobs.resubmit(exchange.db, exchange.actor, job_id, once))


def _reply_created(exchange: Exchange, job: Job) -> Response:
    exchange.state.metrics.jobs.add(1, {"tenant_id": str(exchange.actor.org_id)})
    return reply(job, 201)


async def get_result(exchange: Exchange, job_id: UUID, result_id: UUID) -> Response:
    content = await steering.get_stored_result(exchange.db, exchange.actor, job_id, result_id)
    # Whatever a tool fetched: a browser must save it, never show it.
    headers = {"Content-Disposition": f'attachment; filename="{result_id}.json"'}
    return Response(content, headers=headers, media_type="application/json")


async def list_usage(exchange: Exchange, query: routes.UsageQuery) -> Response:
    noun = f"usage by {query.by}"
    rows = await workers.list_usage(
        exchange.db,
        exchange.actor,
        query.by,
        query.limit + 1,
        below=decode_text(noun, query.cursor),
        since=query.since,
        until=query.until,
        agent=query.agent,
        job_id=query.job_id,
    )
    return reply_ordered(noun, rows, query.limit, lambda row: row.key)


BINDINGS: tuple[Binding, ...] = (
    answer(routes.PAUSE_SESSION, steering.pause_session),
    answer(routes.RESUME_SESSION, steering.resume_session),
    handle(routes.SUBMIT_JOB, jobs.submit, submit_job),
    pages(routes.LIST_JOBS, jobs.list_page, "jobs"),
    answer(routes.GET_JOB, jobs.get),
    whole(routes.GET_JOB_HISTORY, jobs.history),
    ordered(routes.LIST_STEPS, steering.list_steps, "steps", "above", lambda step: step.step_index),
    ordered(routes.LIST_JOURNAL, workers.list_journal, "journal", "above", lambda entry: entry.position),
    answer(routes.GET_CHECKPOINT, steering.get_checkpoint),
    handle(routes.GET_RESULT, steering.get_stored_result, get_result),
    whole(routes.LIST_QUESTIONS, steering.list_questions),
    answer(routes.SETTLE_CALL, doubts.answer_doubt),
    answer(routes.PAUSE_JOB, steering.pause),
    answer(routes.RESUME_JOB, steering.resume),
    answer(routes.CANCEL_JOB, steering.cancel),
    handle(routes.RESUBMIT_JOB, jobs.resubmit, resubmit_job),
    answer(routes.SEND_SIGNAL, steering.send_signal),
    pages(routes.LIST_SIGNALS, steering.list_signals, "signals"),
    whole(routes.LIST_WAITS, steering.list_waits),
    handle(routes.LIST_USAGE, workers.list_usage, list_usage),
    answer(routes.GET_JOB_USAGE, workers.list_job_usage),
    whole(routes.LIST_WORKERS, workers.list_workers),
)

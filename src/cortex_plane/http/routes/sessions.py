"""Sessions, jobs, their events, and the calls of agents that run elsewhere: routes and their verbs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from starlette.responses import Response

from cortex_plane.calls import routes as call_routes
from cortex_plane.calls.model import Dialect, ExternalCall
from cortex_plane.calls.rules.hooks import ANSWER_HEADER, FORMS, PROCESS_HEADER
from cortex_plane.calls.verbs import (
    calls,
    deadlines,
    decided_calls,
    external,
    hooks,
    outcomes,
    permissions,
    resolutions,
)
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.http import exchange as exchanges
from cortex_plane.http.exchange import Exchange, answer, handle, reply
from cortex_plane.http.lists import ordered, pages, reply_ordered, whole
from cortex_plane.http.streams import MEDIA_TYPE, EventStream, stream, wait_for_decision
from cortex_plane.jobs import routes as job_routes
from cortex_plane.jobs.model.jobs import Job, JobDraft
from cortex_plane.jobs.model.usage import Grouping
from cortex_plane.jobs.verbs import jobs, steering, workers
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.pages import decode_number, decode_text
from cortex_plane.notify.verbs.webhooks import AnswerCallbacks
from cortex_plane.sessions import routes
from cortex_plane.sessions.model.sessions import InboundMessage, IngestedMessage, MessageDraft
from cortex_plane.sessions.verbs import events, sessions, states
from cortex_plane.sessions.verbs.events import EventReplay
from cortex_plane.tenancy.verbs.frame import OpenStreams, leave

_LAST = 2**31 - 1
"""No event has a higher number."""


async def ingest_message(
    exchange: Exchange, connection_id: UUID, inbound: InboundMessage, once: IdempotencyKey | None
) -> Response:
    message = await sessions.ingest_message(exchange.db, exchange.actor, connection_id, inbound, once)
    if not message.replayed:
        exchange.state.metrics.messages.add(1, {"tenant_id": str(exchange.actor.org_id)})
        _count_job(exchange, message)
    return reply(message, 201)


async def post_message(
    exchange: Exchange, session_id: UUID, draft: MessageDraft, once: IdempotencyKey | None
) -> Response:
    message = await sessions.post_message(exchange.db, exchange.actor, session_id, draft, once)
    _count_job(exchange, message)
    return reply(message, 201)


def _count_job(exchange: Exchange, message: IngestedMessage) -> None:
    if "job" in message.created:
        exchange.state.metrics.jobs.add(1, {"tenant_id": str(exchange.actor.org_id)})


async def session_events(exchange: Exchange, session_id: UUID, last: int | None, **options: Any) -> Response:
    return await _send_events(exchange, events.of_session, session_id, last, **options)


async def job_events(exchange: Exchange, job_id: UUID, last: int | None, follow: str, **options: Any) -> Response:
    verb = events.of_job if follow == "job" else events.of_jobs_session
    return await _send_events(exchange, verb, job_id, last, **options)


async def _send_events(
    exchange: Exchange,
    verb: Callable[..., Awaitable[EventReplay]],
    id: UUID,
    last: int | None,
    after: int,
    cursor: str | None,
    limit: int,
) -> Response:
    request = exchange.request
    # A browser that connects again repeats its first address, so what it says of its last event goes first.
    after = after if last is None else last
    accepts = request.headers.get("accept", "")
    if "application/json" in accepts and MEDIA_TYPE not in accepts:
        after = decode_number("events", cursor) or after
        page = await verb(exchange.db, exchange.actor, id, after, limit + 1)
        return reply_ordered("events", page.events, limit, lambda event: event.seq)
    org = request.headers.get(exchanges.ORG)

    async def read_page(after: int) -> EventReplay:
        return await verb(exchange.db, exchange.actor, id, after, events.PAGE)

    async def check_access() -> None:
        """The key still works, and its holder still sees what is streamed."""
        await verb(exchange.db, await exchanges.key_holder(request, org), id, _LAST, 0)

    first = await read_page(after)
    streams: OpenStreams = exchange.state.streams
    return EventStream(
        stream(exchange.state.feed, read_page, first, after, check_access),
        streams.open(exchange.actor.identity, exchange.actor.org_id),
    )


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


async def list_usage(exchange: Exchange, by: Grouping, cursor: str | None, limit: int, **filters: Any) -> Response:
    noun = f"usage by {by}"
    below = decode_text(noun, cursor)
    rows = await workers.list_usage(exchange.db, exchange.actor, by, limit + 1, below=below, **filters)
    return reply_ordered(noun, rows, limit, lambda row: row.key)


async def get_call(exchange: Exchange, call_id: UUID, wait: float) -> Response:
    if not wait:
        return reply(await calls.get_call(exchange.db, exchange.actor, call_id))
    return reply(await _wait_for_call(exchange, call_id, wait))


async def _wait_for_call(exchange: Exchange, call_id: UUID, wait: float) -> ExternalCall:
    async def read() -> tuple[ExternalCall, int]:
        return await calls.watch_call(exchange.db, exchange.actor, call_id)

    request, streams = exchange.request, exchange.state.streams
    end = streams.open(exchange.actor.identity, exchange.actor.org_id)
    leave(request.scope["state"])
    try:
        return await wait_for_decision(exchange.state.feed, exchange.actor.org_id, read, wait, request.is_disconnected)
    finally:
        end()


ENTRYPOINT, PENDING = "Cortex-Entrypoint", "Cortex-Pending"


async def answer_hook(
    exchange: Exchange, dialect: Dialect, payload: dict[str, Any], agent: str | None, defer: bool, wait: float
) -> Response:
    is_headless = defer or exchange.request.headers.get(ENTRYPOINT, "").startswith("sdk-")
    can_defer = is_headless and FORMS[dialect].can_defer

    async def ask() -> hooks.HookReply:
        return await hooks.answer_hook(
            exchange.db, exchange.actor, dialect, payload, agent=agent, can_defer=can_defer,
            plane_url=exchange.state.channels.public_url or str(exchange.request.base_url), process=exchange.request.headers.get(PROCESS_HEADER),
        )  # fmt: skip

    answered = await ask()
    if answered.call is not None and wait and not can_defer:
        await _wait_for_call(exchange, answered.call.id, wait)
        answered = await ask()
    response = reply(answered.body)
    response.headers[ANSWER_HEADER] = dialect.value
    if answered.call is not None:
        response.headers[PENDING] = str(answered.call.approval_id or answered.call.id)
    return response


DECLARATIONS = (routes, job_routes, call_routes)
BINDINGS: tuple[exchanges.Binding, ...] = (
    handle(routes.INGEST_MESSAGE, sessions.ingest_message, ingest_message),
    answer(routes.CREATE_SESSION, session_lifecycle.create),
    pages(routes.LIST_SESSIONS, sessions.list_sessions, "sessions"),
    answer(routes.GET_SESSION, sessions.get_session),
    answer(routes.UPDATE_SESSION, sessions.update_session),
    answer(routes.GET_SESSION_STATE, states.get_session_state),
    answer(routes.SAVE_SESSION_STATE, states.save_session_state),
    answer(routes.TERMINATE_SESSION, session_lifecycle.terminate),
    handle(routes.POST_MESSAGE, sessions.post_message, post_message),
    ordered(routes.LIST_MESSAGES, sessions.list_messages, "messages", "above", lambda message: message.seq, start=0),
    ordered(routes.LIST_MEMORIES, sessions.list_memories, "memories", "below", lambda memory: memory.number),
    handle(routes.SESSION_EVENTS, events.of_session, session_events),
    handle(job_routes.JOB_EVENTS, events.of_job, job_events),
    answer(job_routes.PAUSE_SESSION, steering.pause_session),
    answer(job_routes.RESUME_SESSION, steering.resume_session),
    handle(job_routes.SUBMIT_JOB, jobs.submit, submit_job),
    pages(job_routes.LIST_JOBS, jobs.list_page, "jobs"),
    answer(job_routes.GET_JOB, jobs.get),
    whole(job_routes.GET_JOB_HISTORY, jobs.history),
    ordered(job_routes.LIST_STEPS, steering.list_steps, "steps", "above", lambda step: step.step_index),
    ordered(job_routes.LIST_JOURNAL, steering.list_journal, "journal", "above", lambda entry: entry.position),
    answer(job_routes.GET_CHECKPOINT, steering.get_checkpoint),
    handle(job_routes.GET_RESULT, steering.get_stored_result, get_result),
    whole(job_routes.LIST_QUESTIONS, steering.list_questions),
    answer(job_routes.SETTLE_CALL, deadlines.answer_doubt),
    answer(job_routes.PAUSE_JOB, steering.pause),
    answer(job_routes.RESUME_JOB, steering.resume),
    answer(job_routes.CANCEL_JOB, steering.cancel),
    handle(job_routes.RESUBMIT_JOB, jobs.resubmit, resubmit_job),
    answer(job_routes.SEND_SIGNAL, steering.send_signal),
    pages(job_routes.LIST_SIGNALS, steering.list_signals, "signals"),
    whole(job_routes.LIST_WAITS, steering.list_waits),
    handle(job_routes.LIST_USAGE, workers.list_usage, list_usage),
    answer(job_routes.GET_JOB_USAGE, steering.list_job_usage),
    whole(job_routes.LIST_WORKERS, workers.list_workers),
    answer(call_routes.AUTHORIZE_CALL, calls.authorize_call),
    answer(call_routes.AUTHORIZE_CALLS, calls.authorize_calls),
    pages(call_routes.LIST_CALLS, calls.list_calls, "calls"),
    pages(call_routes.LIST_DECIDED_CALLS, decided_calls.list_decided_calls, "decided_calls"),
    handle(call_routes.GET_CALL, calls.get_call, get_call),
    answer(call_routes.INTEND_CALL, calls.begin_call),
    answer(call_routes.SETTLE_CALL, outcomes.settle_call),
    handle(call_routes.ANSWER_HOOK, hooks.answer_hook, answer_hook),
    answer(call_routes.COMPLETE_SESSION, external.complete),
    answer(call_routes.FAIL_SESSION, external.fail),
    answer(call_routes.REPORT_USAGE, external.report_usage),
    answer(call_routes.RESOLVE_REQUEST, resolutions.resolve),
    answer(call_routes.GET_RESOLUTION, resolutions.get_resolution),
    answer(call_routes.EXECUTE_RESOLUTION, resolutions.execute_resolution),
    answer(call_routes.REPORT_RESOLUTION, resolutions.report_resolution),
    answer(
        call_routes.ANSWER_GATE,
        resolutions.give_answers,
        lambda exchange: {"callbacks": AnswerCallbacks(exchange.db, exchange.state.webhooks)},
    ),
    answer(call_routes.GET_PERMISSIONS, permissions.get_permissions),
    answer(call_routes.PLAY_SCENARIOS, permissions.play_scenarios),
)

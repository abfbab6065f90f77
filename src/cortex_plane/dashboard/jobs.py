"""Jobs: the list, and the page of one with its timeline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from starlette.responses import Response

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import Agent
from cortex_plane.approvals.verbs import approvals
from cortex_plane.calls.verbs import permissions as permission_verbs
from cortex_plane.dashboard import pages
from cortex_plane.dashboard.timeline import GATE_ENTRIES, JobGates, gantt, gate_entries
from cortex_plane.dashboard.visits import Visit, parse_filter, parse_form, parse_number, signed_in, view
from cortex_plane.jobs.model.jobs import (
    TERMINAL,
    Cancellation,
    Job,
    JobKind,
    JobStatus,
    Pause,
    Resumption,
    SteeringResult,
)
from cortex_plane.jobs.model.usage import cost_text
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import NotFound
from cortex_plane.kernel.pages import encode_position
from cortex_plane.kernel.routes import PageRoutes
from cortex_plane.sessions.model.sessions import BoundAtlas
from cortex_plane.sessions.verbs import events, sessions
from cortex_plane.tenancy.model.access import Permission

router = PageRoutes()

STEERING: dict[str, tuple[Callable[..., Awaitable[SteeringResult]], type[Any], str]] = {
    "pause": (steering.pause, Pause, "reason"),
    "resume": (steering.resume, Resumption, "note"),
    "cancel": (steering.cancel, Cancellation, "reason"),
}
PAGE = 50
STEPS = 50
"""How many steps a page shows; older ones are a page further."""
SHOWN_ACTIONS = 100
FILTERS = {
    "waiting": JobStatus.WAITING_FOR_APPROVAL,
    "running": JobStatus.RUNNING,
    "paused": JobStatus.PAUSED,
    "completed": JobStatus.COMPLETED,
    "failed": JobStatus.FAILED,
}


async def _agents(visit: Visit) -> dict[UUID, Agent]:
    """Agents by id, for their names; empty for visitors who may not see agents."""
    if not visit.actor.may(Permission.AGENT_READ):
        return {}
    return {agent.id: agent for agent in (await agents.list_agents(visit.db, visit.actor, None, 200)).items}


async def _listing(visit: Visit) -> dict[str, Any]:
    chosen = visit.request.query_params.get("status") or None
    status = parse_filter(FILTERS, chosen) if chosen else None
    page = await jobs.list_page(visit.db, visit.actor, visit.position("jobs"), PAGE, status=status)
    return {
        "jobs": page.items,
        "agents": await _agents(visit),
        "filters": FILTERS,
        "chosen": chosen,
        "cursor": visit.request.query_params.get("cursor"),
        "next_cursor": encode_position("jobs", page.next),
        "seen": pages.fingerprint([(job.id, job.status, job.holds, job.step_index) for job in page.items]),
    }


async def _job_context(visit: Visit) -> dict[str, Any]:
    """What the templates of a job show."""
    id = visit.path_id("job_id", "job")
    job = await jobs.get(visit.db, visit.actor, id)
    history = await jobs.history(visit.db, visit.actor, id)
    last = -1 if job.step_index is None else job.step_index
    before = parse_number(visit.request.query_params.get("before"))
    first = max(0, (last + 1 if before is None else before) - STEPS)
    steps = await steering.list_steps(visit.db, visit.actor, id, first - 1, STEPS)
    requests = (await approvals.list_approvals(visit.db, visit.actor, None, 100, job_id=id)).items
    agent = (await _agents(visit)).get(job.agent_id)
    usage = await steering.list_job_usage(visit.db, visit.actor, id)
    session = await sessions.get_session(visit.db, visit.actor, job.session_id)
    gates = await _read_gates(visit, job, session.atlases)
    state = await steering.get_state(visit.db, visit.actor, id)
    is_open = job.status not in TERMINAL
    now = datetime.now(UTC)
    return {
        "job": job,
        "agent": agent,
        "session": session,
        "takes_words": job.kind is not JobKind.EXTERNAL and not (agent and agent.skill_config.get("run")),
        "history": history,
        "steps": steps,
        "asked": requests,
        "gantt": gantt(job, history, steps, requests, now, gates.entries),
        "bound": gates.atlases,
        "gates": gates.entries,
        "permissions": gates.permissions,
        "is_open": is_open,
        "may_steer": is_open and visit.actor.may(Permission.JOB_STEER),
        "seen": pages.fingerprint(
            (job.status, job.holds, job.pending_pause, job.pending_cancel, job.step_index, session.agent_status),
            [(call.id, call.status, call.attempt) for step in steps for call in step.calls],
            [(request.id, request.status, request.version) for request in requests],
            gates.entries[-1].seq if gates.entries else None,
            state,
        ),
        "now": now,
        "journal": await steering.list_journal(visit.db, visit.actor, id, first - 1, STEPS),
        "memory": await sessions.list_job_memories(visit.db, visit.actor, id),
        "state": state,
        "used": usage,
        "cost": cost_text(usage),
        "before": before,
        "older": first or None,
        "newer": before is not None and first + STEPS <= last,
    }


async def _read_gates(visit: Visit, job: Job, atlases: list[BoundAtlas]) -> JobGates:
    if not atlases:
        return JobGates()
    entries = gate_entries(await events.of_gates(visit.db, visit.actor, job.id, GATE_ENTRIES))
    if job.status in TERMINAL:
        return JobGates(atlases, entries)
    permissions = await permission_verbs.get_permissions(visit.db, visit.actor, job.session_id, most=SHOWN_ACTIONS)
    return JobGates(atlases, entries, permissions)


async def show_step(visit: Visit) -> Response:
    """One step in full; the page of its job shows only the beginning of large values."""
    id = visit.path_id("job_id", "job")
    number = parse_number(visit.request.path_params["number"])
    job = await jobs.get(visit.db, visit.actor, id)
    steps = await steering.list_steps(visit.db, visit.actor, id, number - 2, 1) if number else []
    if not steps or steps[0].step_index + 1 != number:
        raise NotFound("There is no such step.", code="route_not_found")
    return visit.page("step.html", job=job, step=steps[0])


async def steer(visit: Visit) -> Response:
    id = visit.path_id("job_id", "job")
    reason = visit.form.get("reason", "").strip() or None
    if visit.request.path_params["act"] not in STEERING:
        raise NotFound("A job can be paused, resumed and cancelled.", code="route_not_found")
    verb, kind, field = STEERING[visit.request.path_params["act"]]
    words = {"operator_input": visit.form.get("operator_input", "").strip() or None} if kind is Resumption else {}
    await verb(visit.db, visit.actor, id, parse_form(kind, {field: reason, **words}, too_long=True))
    return pages.redirect(f"/jobs/{id}")


router.add("/jobs", view("jobs.html", _listing), "GET")
router.add("/jobs/live", view("jobs_list.html", _listing, polled=True), "GET")
router.add("/jobs/{job_id}", view("job.html", _job_context), "GET")
router.add("/jobs/{job_id}/live", view("job_body.html", _job_context, polled=True), "GET")
router.add("/jobs/{job_id}/steps/{number}", signed_in(show_step), "GET")
router.add("/jobs/{job_id}/{act}", signed_in(steer), "POST")

"""Jobs: the list, and the page of one with its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pydantic
from fastapi import APIRouter
from starlette.responses import RedirectResponse, Response

from cortex_plane.agents.model.agents import Agent
from cortex_plane.agents.verbs import agents
from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.approvals.verbs import approvals
from cortex_plane.calls.model import Permissions
from cortex_plane.calls.verbs import permissions
from cortex_plane.dashboard import pages
from cortex_plane.dashboard.gates import SHOWN, Told, told
from cortex_plane.dashboard.timeline import gantt
from cortex_plane.dashboard.visits import Visit, signed_in
from cortex_plane.jobs.model.jobs import (
    TERMINAL,
    Cancellation,
    Job,
    JobChange,
    JobStatus,
    Pause,
    Resumption,
    Step,
)
from cortex_plane.jobs.model.usage import cost_text
from cortex_plane.jobs.verbs import attempts, jobs, steering, workers
from cortex_plane.kernel.errors import InvalidInput, NotFound
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.pages import decode_position, encode_position
from cortex_plane.sessions.model.sessions import BoundAtlas
from cortex_plane.sessions.verbs import events, sessions
from cortex_plane.tenancy.model.access import Permission

router = APIRouter()

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


def _id(visit: Visit) -> UUID:
    try:
        return UUID(visit.request.path_params["job_id"])
    except ValueError:
        raise NotFound("There is no such job.", code="job_not_found") from None


async def _agents(visit: Visit) -> dict[UUID, Agent]:
    """By id, for their names. Whoever may not see agents does without."""
    if not visit.actor.may(Permission.AGENT_READ):
        return {}
    page = await agents.list_page(visit.db, visit.actor, None, 200)
    return {agent.id: agent for agent in page.items}


async def _listing(visit: Visit) -> dict[str, Any]:
    query = visit.request.query_params
    chosen = query.get("status") or None
    if chosen is not None and chosen not in FILTERS:
        raise InvalidInput("There is no such filter.", hint=f"Choose one of: {', '.join(FILTERS)}.")
    position = decode_position("jobs", query.get("cursor") or None)
    status = FILTERS[chosen] if chosen else None
    found = await jobs.list_page(visit.db, visit.actor, position, PAGE, status=status)
    cursor = query.get("cursor")
    return listing(found.items, await _agents(visit), chosen, cursor, encode_position("jobs", found.next))


def listing(
    items: Sequence[Job],
    known: dict[UUID, Agent],
    chosen: str | None,
    cursor: str | None,
    next_cursor: str | None,
) -> dict[str, Any]:
    return {
        "jobs": items,
        "agents": known,
        "filters": FILTERS,
        "chosen": chosen,
        "cursor": cursor,
        "next_cursor": next_cursor,
        "seen": pages.fingerprint([(job.id, job.status, job.holds, job.step_index) for job in items]),
    }


async def list_jobs(visit: Visit) -> Response:
    return visit.page("jobs.html", **await _listing(visit))


async def list_jobs_again(visit: Visit) -> Response:
    return visit.fragment("jobs_list.html", **await _listing(visit))


async def _whole(visit: Visit) -> dict[str, Any]:
    id = _id(visit)
    job = await jobs.get(visit.db, visit.actor, id)
    history = await jobs.history(visit.db, visit.actor, id)
    last = -1 if job.step_index is None else job.step_index
    before = _number(visit.request.query_params.get("before"))
    first = max(0, (last + 1 if before is None else before) - STEPS)
    steps = await steering.list_steps(visit.db, visit.actor, id, first - 1, STEPS)
    asked = (await approvals.list_approvals(visit.db, visit.actor, None, 100, job_id=id)).items
    agent = (await _agents(visit)).get(job.agent_id)
    may_steer = visit.actor.may(Permission.JOB_STEER)
    used = await workers.list_job_usage(visit.db, visit.actor, id)
    governed = await _governed(visit, job)
    shown = whole(job, history, steps, asked, agent, may_steer, datetime.now(UTC), governed)
    newer = before is not None and first + STEPS <= last
    shown["journal"] = await attempts.list_journal(visit.db, visit.actor, id, first - 1, STEPS)
    shown["memory"] = await sessions.list_job_memories(visit.db, visit.actor, id)
    return {
        **shown,
        "used": used,
        "cost": cost_text(used),
        "before": before,
        "older": first or None,
        "newer": newer,
    }


@dataclass(frozen=True, slots=True)
class Governed:
    """What the atlases of a job's session did, and what they allow now; nothing where there are none."""

    bound: Sequence[BoundAtlas] = ()
    gates: Sequence[Told] = ()
    permissions: Permissions | None = None


async def _governed(visit: Visit, job: Job) -> Governed:
    bound = (await sessions.get_session(visit.db, visit.actor, job.session_id)).atlases
    if not bound:
        return Governed()
    happened = await events.of_gates(visit.db, visit.actor, job.id, SHOWN)
    # What has ended does nothing any more.
    allowed = None
    if job.status not in TERMINAL:
        allowed = await permissions.get_permissions(visit.db, visit.actor, job.session_id, most=SHOWN_ACTIONS)
    return Governed(bound, told(happened), allowed)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None


def whole(
    job: Job,
    history: Sequence[JobChange],
    steps: Sequence[Step],
    asked: Sequence[Approval],
    agent: Agent | None,
    may_steer: bool,
    now: datetime,
    governed: Governed,
) -> dict[str, Any]:
    """What the templates show."""
    is_open = job.status not in TERMINAL
    calls = [(call.id, call.status, call.attempt) for step in steps for call in step.calls]
    return {
        "job": job,
        "agent": agent,
        "history": history,
        "steps": steps,
        "asked": asked,
        "gantt": gantt(job, history, steps, asked, now, governed.gates),
        "bound": governed.bound,
        "gates": governed.gates,
        "permissions": governed.permissions,
        "is_open": is_open,
        "may_steer": may_steer and is_open,
        "seen": pages.fingerprint(
            (job.status, job.holds, job.pending_pause, job.pending_cancel, job.step_index),
            calls,
            [(a.id, a.status, a.version) for a in asked],
            governed.gates[-1].seq if governed.gates else None,
        ),
        "now": now,
    }


async def show_job(visit: Visit) -> Response:
    return visit.page("job.html", notice=None, **await _whole(visit))


async def show_job_again(visit: Visit) -> Response:
    return visit.fragment("job_body.html", **await _whole(visit))


async def show_step(visit: Visit) -> Response:
    """One step with all that it sent and got, which the page of its job cuts."""
    id = _id(visit)
    number = _number(visit.request.path_params["number"])
    job = await jobs.get(visit.db, visit.actor, id)
    steps = await steering.list_steps(visit.db, visit.actor, id, number - 2, 1) if number else []
    if not steps or steps[0].step_index + 1 != number:
        raise NotFound("There is no such step.", code="route_not_found")
    return visit.page("step.html", job=job, step=steps[0])


async def steer(visit: Visit) -> Response:
    id = _id(visit)
    reason = visit.form.get("reason", "").strip() or None
    try:
        match visit.request.path_params["act"]:
            case "pause":
                await steering.pause(visit.db, visit.actor, id, parse(Pause, {"reason": reason}))
            case "resume":
                await steering.resume(visit.db, visit.actor, id, parse(Resumption, {"note": reason}))
            case "cancel":
                await steering.cancel(visit.db, visit.actor, id, parse(Cancellation, {"reason": reason}))
            case _:
                raise NotFound("A job can be paused, resumed and cancelled.", code="route_not_found")
    except pydantic.ValidationError:
        raise InvalidInput("The reason is too long.", hint="Use at most 2000 characters.") from None
    return RedirectResponse(f"/jobs/{id}", 303, pages.HEADERS)


router.add_api_route("/jobs", signed_in(list_jobs), methods=["GET"])
router.add_api_route("/jobs/live", signed_in(list_jobs_again, by_itself=True), methods=["GET"])
router.add_api_route("/jobs/{job_id}", signed_in(show_job), methods=["GET"])
router.add_api_route("/jobs/{job_id}/live", signed_in(show_job_again, by_itself=True), methods=["GET"])
router.add_api_route("/jobs/{job_id}/steps/{number}", signed_in(show_step), methods=["GET"])
router.add_api_route("/jobs/{job_id}/{act}", signed_in(steer), methods=["POST"])

"""Routes of jobs."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field
from pydantic.dataclasses import dataclass as draft

from cortex_plane.jobs.model.effects import Answer, Question
from cortex_plane.jobs.model.jobs import (
    Cancellation,
    Job,
    JobChange,
    JobDraft,
    JobStatus,
    Pause,
    Resumption,
    SessionReceipt,
    SteeringResult,
    Step,
    Worker,
)
from cortex_plane.jobs.model.journal import (
    JournalEntry,
    Signal,
    SignalDraft,
    SignalKey,
    SignalName,
    SignalReceipt,
    Wait,
)
from cortex_plane.jobs.model.usage import Grouping, UsageRow, UsageTotals
from cortex_plane.kernel.fields import DRAFT, MAX_BODY_BYTES, Moment, Ref
from cortex_plane.kernel.routes import ListQuery, ListRoute, Route
from cortex_plane.sessions.model.events import Event, EventNumber

# Sessions ----------------------------------------------------------------------------------------------------

PAUSE_SESSION = Route(
    "POST /v1/sessions/{session_id}/pause",
    SessionReceipt,
    body=Pause,
    notes="Hold a session: its open jobs, and whatever it is asked to do until it is resumed.",
)
RESUME_SESSION = Route(
    "POST /v1/sessions/{session_id}/resume",
    SessionReceipt,
    body=Resumption,
    notes="Lift the hold of a session, and with it that of its jobs.",
)

# Jobs --------------------------------------------------------------------------------------------------------

SUBMIT_JOB = Route(
    "POST /v1/jobs",
    Job,
    body=JobDraft,
    status=201,
    once=True,
    max_body=MAX_BODY_BYTES,
    notes="Without `session_id` the plane opens a session for the job.",
)


@draft(config=DRAFT, frozen=True, kw_only=True)
class JobQuery(ListQuery):
    status: JobStatus | None = None
    session_id: UUID | None = None
    agent: Ref | None = None


LIST_JOBS = ListRoute("GET /v1/jobs", Job, query=JobQuery)
GET_JOB = Route("GET /v1/jobs/{job_id}", Job)


@draft(config=DRAFT, frozen=True, kw_only=True)
class JobEventQuery(ListQuery):
    after: Annotated[EventNumber, Field(description="Only events after this number.")] = 0
    follow: Annotated[
        Literal["job", "session"],
        Field(description="`session`: everything in the job's session, also after the job's end."),
    ] = "job"


JOB_EVENTS = ListRoute(
    "GET /v1/jobs/{job_id}/events",
    Event,
    query=JobEventQuery,
    stream=True,
    answer="A stream of events; with `Accept: application/json` one page of them.",
    tag="events",
    notes="What a job does, as server-sent events: what you missed first, then live, until the job ends.",
)
GET_JOB_HISTORY = ListRoute(
    "GET /v1/jobs/{job_id}/history", JobChange, query=None, notes="Every change of status, oldest first."
)


@draft(config=DRAFT, frozen=True, kw_only=True)
class StepQuery(ListQuery):
    above: Annotated[int, Field(ge=-1, lt=2**31, description="Only steps after this one.")] = -1


LIST_STEPS = ListRoute(
    "GET /v1/jobs/{job_id}/steps",
    Step,
    query=StepQuery,
    notes="What the model said and what its calls did, in order. The last step may still be under way.",
)
LIST_JOURNAL = ListRoute(
    "GET /v1/jobs/{job_id}/journal",
    JournalEntry,
    query=StepQuery,
    notes="What the code of a job did so far, in the order in which it was begun. Empty for agents that follow their model.",
)
GET_CHECKPOINT = Route(
    "GET /v1/jobs/{job_id}/checkpoint",
    dict[str, Any],
    notes="The durable state, as the job would be resumed from it. Its schema is at /schemas/checkpoint/v1.json.",
)
GET_RESULT: Route[Any] = Route(
    "GET /v1/jobs/{job_id}/results/{result_id}",
    Any,
    notes="A result that was too large for its step, as the tool returned it.",
)
LIST_QUESTIONS = ListRoute(
    "GET /v1/jobs/{job_id}/questions",
    Question,
    query=None,
    notes="Calls of which nobody knows whether they happened. The job waits for the answers.",
)
SETTLE_CALL = Route(
    "POST /v1/jobs/{job_id}/calls/{call_id}/settle",
    SteeringResult,
    body=Answer,
    max_body=MAX_BODY_BYTES,
    notes="Answer a question: it happened, it did not, or give the job up.",
)
PAUSE_JOB = Route(
    "POST /v1/jobs/{job_id}/pause",
    SteeringResult,
    body=Pause,
    notes="Hold a job until it is resumed. One that runs stops at its next boundary; until then it is `pending`.",
)
RESUME_JOB = Route(
    "POST /v1/jobs/{job_id}/resume",
    SteeringResult,
    body=Resumption,
    notes="Lift what an operator may lift. A question is answered instead, a session's hold ends with the session's.",
)
CANCEL_JOB = Route(
    "POST /v1/jobs/{job_id}/cancel",
    SteeringResult,
    body=Cancellation,
    notes="End a job. One that runs ends at its next boundary; until then it is `pending`.",
)
RESUBMIT_JOB = Route(
    "POST /v1/jobs/{job_id}/resubmit",
    Job,
    status=201,
    once=True,
    notes="A failed or cancelled job once more: a new job that is linked to the old one.",
)

# Signals -----------------------------------------------------------------------------------------------------

SEND_SIGNAL = Route(
    "POST /v1/signals",
    SignalReceipt,
    body=SignalDraft,
    once=True,
    max_body=MAX_BODY_BYTES,
    notes="""Wakes every job of the org that waits for this name and key, now or later.

        The first payload stays: the same again changes nothing, another one is a conflict.""",
)


@draft(config=DRAFT, frozen=True, kw_only=True)
class SignalQuery(ListQuery):
    name: SignalName | None = None
    key: SignalKey | None = None


LIST_SIGNALS = ListRoute(
    "GET /v1/signals",
    Signal,
    query=SignalQuery,
    notes="Newest first. Whoever is not staff sees what they sent themselves.",
)
LIST_WAITS = ListRoute(
    "GET /v1/jobs/{job_id}/waits",
    Wait,
    query=None,
    tag="signals",
    notes="The signals that a job waits for or waited for, oldest first, with what came.",
)

# Usage -------------------------------------------------------------------------------------------------------


@draft(config=DRAFT, frozen=True, kw_only=True)
class UsageQuery(ListQuery):
    by: Grouping = Grouping.DAY
    since: Moment | None = None
    until: Moment | None = None
    agent: Ref | None = None
    job_id: UUID | None = None


LIST_USAGE = ListRoute(
    "GET /v1/usage",
    UsageRow,
    query=UsageQuery,
    tag="models",
    notes="""What models were asked, what it took and what it cost, by day of UTC, agent, job or model; the newest day first.

        Whoever is not staff sees what their own jobs used. `cost_micros` is in millionths of a US dollar, of the calls whose
        price is known; `unpriced_calls` says how many others there were.""",
)
GET_JOB_USAGE = Route(
    "GET /v1/jobs/{job_id}/usage",
    UsageTotals,
    tag="models",
    notes="What the models of one job took, over all its attempts.",
)


# Workers -----------------------------------------------------------------------------------------------------

LIST_WORKERS = ListRoute(
    "GET /v1/workers",
    Worker,
    query=None,
    notes="The processes that run jobs, newest first; for platform keys, because they serve every org.",
)

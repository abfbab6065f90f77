"""Routes of jobs."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import Field

from cortex_plane.jobs.model import effects, jobs, journal, usage
from cortex_plane.kernel.fields import MAX_BODY_BYTES, Moment, Ref
from cortex_plane.kernel.routes import ListQuery, ListRoute, Route, filters
from cortex_plane.sessions.model.events import Event, EventNumber


class StepQuery(ListQuery):
    above: Annotated[int, Field(ge=-1, lt=2**31, description="Only steps after this one.")] = -1


class UsageQuery(ListQuery):
    by: usage.Grouping = usage.Grouping.DAY
    """What the rows are summed by."""
    since: Moment | None = None
    """From when on to count."""
    until: Moment | None = None
    """Until when to count."""
    agent: Ref | None = None
    job_id: UUID | None = None


class JobEventQuery(ListQuery):
    after: Annotated[EventNumber, Field(description="Only events after this number.")] = 0
    follow: Annotated[
        Literal["job", "session"],
        Field(description="`session`: everything in the job's session, also after the job's end."),
    ] = "job"


PAUSE_SESSION = Route("POST /v1/sessions/{session_id}/pause", jobs.SessionReceipt, body=jobs.Pause)
"""Hold a session: its open jobs, and whatever it is asked to do until it is resumed."""
RESUME_SESSION = Route("POST /v1/sessions/{session_id}/resume", jobs.SessionReceipt, body=jobs.Resumption)
"""Lift the hold of a session, and with it that of its jobs."""

SUBMIT_JOB = Route("POST /v1/jobs", jobs.Job, body=jobs.JobDraft, status=201, once=True, max_body=MAX_BODY_BYTES)
"""Without `session_id` the plane opens a session for the job."""
LIST_JOBS = ListRoute(
    "GET /v1/jobs",
    jobs.Job,
    query=filters(status=jobs.JobStatus, session_id=UUID, agent=Ref),
    columns="id status kind session_id created_at error_message",
)
GET_JOB = Route("GET /v1/jobs/{job_id}", jobs.Job)
JOB_EVENTS = ListRoute(
    "GET /v1/jobs/{job_id}/events",
    Event,
    query=JobEventQuery,
    stream=True,
    answer="A stream of events; with `Accept: application/json` one page of them.",
    tag="events",
)
"""What a job does, as server-sent events: what you missed first, then live, until the job ends."""
GET_JOB_HISTORY = ListRoute(
    "GET /v1/jobs/{job_id}/history",
    jobs.JobChange,
    query=None,
    columns="created_at previous_status new_status metadata",
)
"""Every change of status, oldest first."""
LIST_STEPS = ListRoute("GET /v1/jobs/{job_id}/steps", jobs.Step, query=StepQuery)
"""What the model said and what its calls did, in order. The last step may still be under way."""
LIST_JOURNAL = ListRoute("GET /v1/jobs/{job_id}/journal", journal.JournalEntry, query=StepQuery)
"""What the code of a job did so far, in the order in which it was begun. Empty for agents that follow their model."""
GET_CHECKPOINT = Route("GET /v1/jobs/{job_id}/checkpoint", dict[str, Any])
"""The durable state, as the job would be resumed from it. Its schema is at /schemas/checkpoint/v1.json."""
GET_RESULT: Route[Any] = Route("GET /v1/jobs/{job_id}/results/{result_id}", Any)
"""A result that was too large for its step, as the tool returned it."""
LIST_QUESTIONS = ListRoute("GET /v1/jobs/{job_id}/questions", effects.Question, query=None)
"""Calls of which nobody knows whether they happened. The job waits for the answers."""
SETTLE_CALL = Route(
    "POST /v1/jobs/{job_id}/calls/{call_id}/settle", jobs.SteeringResult, body=effects.Answer, max_body=MAX_BODY_BYTES
)
"""Answer a question: it happened, it did not, or give the job up."""
PAUSE_JOB = Route("POST /v1/jobs/{job_id}/pause", jobs.SteeringResult, body=jobs.Pause)
"""Hold a job until it is resumed. One that runs stops at its next boundary; until then it is `pending`."""
RESUME_JOB = Route("POST /v1/jobs/{job_id}/resume", jobs.SteeringResult, body=jobs.Resumption)
"""Lift what an operator may lift. A question is answered instead, a session's hold ends with the session's."""
CANCEL_JOB = Route("POST /v1/jobs/{job_id}/cancel", jobs.SteeringResult, body=jobs.Cancellation)
"""End a job. One that runs ends at its next boundary; until then it is `pending`."""
RESUBMIT_JOB = Route("POST /v1/jobs/{job_id}/resubmit", jobs.Job, status=201, once=True)
"""A failed or cancelled job once more: a new job that is linked to the old one."""

SEND_SIGNAL = Route(
    "POST /v1/signals", journal.SignalReceipt, body=journal.SignalDraft, once=True, max_body=MAX_BODY_BYTES
)
"""Wakes every job of the org that waits for this name and key, now or later.

The first payload stays: the same again changes nothing, another one is a conflict."""
LIST_SIGNALS = ListRoute(
    "GET /v1/signals",
    journal.Signal,
    query=filters(name=journal.SignalName, key=journal.SignalKey),
    columns="created_at name key sent_by payload id",
)
"""Newest first. Whoever is not staff sees what they sent themselves."""
LIST_WAITS = ListRoute(
    "GET /v1/jobs/{job_id}/waits",
    journal.Wait,
    query=None,
    tag="signals",
    columns="entry name key created_at arrived_at payload",
)
"""The signals that a job waits for or waited for, oldest first, with what came."""

LIST_USAGE = ListRoute("GET /v1/usage", usage.UsageRow, query=UsageQuery, tag="models")
"""What models were asked, what it took and what it cost, by day of UTC, agent, job or model; the newest day first.

Whoever is not staff sees what their own jobs used. `cost_micros` is in millionths of a US dollar, of the calls whose
price is known; `unpriced_calls` says how many others there were."""
GET_JOB_USAGE = Route("GET /v1/jobs/{job_id}/usage", usage.UsageTotals, tag="models")
"""What the models of one job took, over all its attempts."""

LIST_WORKERS = ListRoute(
    "GET /v1/workers",
    jobs.Worker,
    query=None,
    columns="id name alive apps org_id concurrency started_at expires_at stopped_at",
)
"""The processes that run jobs, newest first; for platform keys, because they serve every org."""

"""Routes of calls."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar
from uuid import UUID

from pydantic import AwareDatetime, Field

from cortex_plane.calls import model
from cortex_plane.gates.model.atlases import MAX_ATLAS_BYTES
from cortex_plane.gates.model.scenarios import MAX_FILE_BYTES, ScenarioReport, ScenarioRun
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.usage import UsageTotals
from cortex_plane.kernel.fields import MAX_BODY_BYTES, Ref
from cortex_plane.kernel.routes import ListQuery, ListRoute, Query, Route, filters
from cortex_plane.sessions.model.sessions import Session

T = TypeVar("T")


SCENARIO_BODY_BYTES = MAX_ATLAS_BYTES * 3 // 2 + 2 * MAX_FILE_BYTES
"""Files in JSON strings, in which some characters are two."""


class WaitQuery(Query):
    wait: Annotated[
        float, Field(ge=0, le=model.MAX_WAIT, allow_inf_nan=False, description="Seconds to wait for a decision.")
    ] = 0


class HookQuery(Query):
    agent: Annotated[
        Ref | None,
        Field(description="The agent whose calls these are; the one named like the coding agent if left out."),
    ] = None
    defer: Annotated[
        bool,
        Field(
            description="The coding agent runs without a terminal: it can end its run and ask again when it is resumed."
        ),
    ] = False
    wait: Annotated[
        float,
        Field(ge=0, le=model.MAX_WAIT, allow_inf_nan=False, description="Seconds to hold the hook for a decision."),
    ] = 0


class DecidedCallsQuery(ListQuery):
    agent: Ref | None = None
    since: Annotated[AwareDatetime | None, Field(description="Not those that were decided before.")] = None


def _large(address: str, output: type[T], body: type, tag: str = "", status: int = 200) -> Route[T]:
    """A route whose body may hold arguments or results of any size."""
    return Route(address, output, body=body, status=status, max_body=MAX_BODY_BYTES, tag=tag)


AUTHORIZE_CALL = _large("POST /v1/sessions/{session_id}/calls", model.ExternalCall, model.CallDraft, "calls", 201)
"""Ask before acting. Act only where the answer says `run`; its `next` says what to do otherwise."""
AUTHORIZE_CALLS = _large("POST /v1/sessions/{session_id}/calls/batch", model.BatchAnswer, model.CallBatch, "calls")
"""Ask about several calls of one response at once. Each needs a key, and is answered as if it were sent alone, in their order."""
LIST_CALLS = ListRoute(
    "GET /v1/calls",
    model.CallShown,
    query=filters(session_id=UUID, status=CallStatus),
    columns="id agent tool status rule attempt key created_at",
)
"""Calls of agents that run elsewhere, newest first."""
LIST_DECIDED_CALLS = ListRoute(
    "GET /v1/decided-calls",
    model.CallDecision,
    query=DecidedCallsQuery,
    columns="id agent tool outside_id decision status decided_at",
    tag="calls",
)
"""Calls of agents that run elsewhere whose request has ended, oldest decision first. Decisions of the last seconds may still join: look again
from a little earlier than where you were."""
GET_CALL = Route("GET /v1/calls/{call_id}", model.ExternalCall, query=WaitQuery)
"""One call. With `wait` it is answered once there is something to do, or when that time is over."""
INTEND_CALL = Route("POST /v1/calls/{call_id}/intent", model.ExternalCall, body=model.IntentDraft)
"""Say that you begin. Act only where the answer says `run`, and before its `dispatch_before`."""
SETTLE_CALL = _large("POST /v1/calls/{call_id}/outcome", model.OutcomeReceipt, model.OutcomeDraft)
"""Say what became of it. Told twice the same, nothing changes."""
COMPLETE_SESSION = _large("POST /v1/sessions/{session_id}/complete", Session, model.Ending, "calls")
"""The agent that runs elsewhere is done."""
FAIL_SESSION = _large("POST /v1/sessions/{session_id}/fail", Session, model.Ending, "calls")
"""The agent that runs elsewhere gives up: nobody is asked any more, except whether a call in doubt happened."""

ANSWER_HOOK: Route[dict[str, Any]] = Route(
    "POST /v1/hooks/{dialect}",
    model.HookAnswer,
    body=model.HookPayload,
    query=HookQuery,
    path_types={"dialect": model.Dialect},
    max_body=model.MAX_HOOK_BYTES,
    tag="calls",
)
"""Answer a hook of a coding agent in its own words: before a tool, whether it runs; after it, that its result was recorded. Whatever is wrong
with a call is a denial with the reason. The header `Cortex-Entrypoint` may say `sdk-cli` instead of `defer=true`, and `Cortex-Process`
which process asks: a call that another one began is not running any more. The header `Cortex-Pending` of
the answer has the id of the approval that the call waits for; `Cortex-Hook` has the dialect. An event that the dialect does not have is refused."""

REPORT_USAGE = Route(
    "POST /v1/sessions/{session_id}/usage", UsageTotals, body=model.ReportedUsage, status=201, once=True, tag="models"
)
"""Say what an answer of a model took, elsewhere: it is counted in the usage of the session's job and agent. The answer is what the session
took so far. Send an `Idempotency-Key` where you may repeat it."""

RESOLVE_REQUEST = _large(
    "POST /v1/sessions/{session_id}/resolve", model.Resolution, model.ResolutionRequest, "resolutions", 201
)
"""What an agent that runs elsewhere may do now, and what it must know and answer first. Asking uses nothing up."""
GET_RESOLUTION = Route("GET /v1/resolutions/{resolution_id}", model.Resolution)
"""A resolution as it was given: for whoever asked for it, and for those who see the whole org."""
EXECUTE_RESOLUTION = _large(
    "POST /v1/resolutions/{resolution_id}/execute", model.ExternalCall, model.CallDraft, status=201
)
"""Begin a call that the resolution covers. Act only where the answer says `run`."""
REPORT_RESOLUTION = _large("POST /v1/resolutions/{resolution_id}/report", model.OutcomeReceipt, model.ReportDraft)
"""Say what became of a call that was executed under it. Told twice the same, nothing changes."""
ANSWER_GATE = _large("POST /v1/sessions/{session_id}/answers", model.AnswerReceipt, model.AnswerDraft, "resolutions")
"""Answer a gate that stops an agent that runs elsewhere. A wrong answer is one try less."""
PLAY_SCENARIOS = Route(
    "POST /v1/atlases/test", ScenarioReport, body=ScenarioRun, max_body=SCENARIO_BODY_BYTES, tag="atlases"
)
"""Plays scenario files under the policies, tools and agents of the org: what is decided about calls that nobody makes. Nothing is
recorded."""
GET_PERMISSIONS = Route("GET /v1/sessions/{session_id}/permissions", model.Permissions, tag="resolutions")
"""What is allowed in a session now, and which gate, capability or policy did it. Looking changes nothing."""

"""Sessions, and the calls of an agent that runs elsewhere, made by hand. `plane.guard` makes them for a function."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from cortex_plane.calls import model as calls
from cortex_plane.calls import routes as call_routes
from cortex_plane.client.transport import Lost, Noun
from cortex_plane.jobs import routes as job_routes
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import HOLD_SECONDS, Pause, Resumption, SessionReceipt
from cortex_plane.jobs.model.usage import UsageTotals
from cortex_plane.sessions import routes
from cortex_plane.sessions.model import sessions as model
from cortex_plane.sessions.model.events import Event


class Sessions(Noun):
    async def create(self, draft: model.SessionDraft, *, idempotency_key: str | None = None) -> model.Session:
        return await self._plane.call(routes.CREATE_SESSION, body=draft, idempotency_key=idempotency_key)

    async def open_external(
        self,
        agent: str,
        *,
        title: str | None = None,
        context: dict[str, Any] | None = None,
        outside_id: str | None = None,
        on_behalf_of: str | None = None,
        idempotency_key: str | None = None,
    ) -> ExternalSession:
        """For an agent that runs here: it asks with `authorize` before it acts. ``outside_id``: what its own world calls the session; where
        you have that one open, it is found. ``on_behalf_of``: the person for whom a service opens it: the id of a member, or
        `connection:name` with a verified name of theirs."""
        draft = model.SessionDraft(
            agent=agent,
            kind=model.SessionKind.EXTERNAL,
            title=title,
            context=context or {},
            outside_id=outside_id,
            on_behalf_of=on_behalf_of,
        )
        return ExternalSession(await self.create(draft, idempotency_key=idempotency_key), Calls(self._plane))

    async def get(self, id: UUID) -> model.Session:
        return await self._plane.call(routes.GET_SESSION, id)

    def list(
        self,
        limit: int | None = None,
        *,
        status: model.SessionStatus | None = None,
        agent: str | None = None,
        member_id: UUID | None = None,
        outside_id: str | None = None,
    ) -> AsyncIterator[model.Session]:
        filters = {"status": status, "agent": agent, "member_id": member_id, "outside_id": outside_id}
        return self._plane.pages(routes.LIST_SESSIONS, limit=limit, **filters)

    async def update(self, id: UUID, change: model.SessionChange, *, revision: int | None = None) -> model.Session:
        return await self._plane.call(routes.UPDATE_SESSION, id, body=change, revision=revision)

    async def terminate(self, id: UUID, reason: str | None = None) -> model.Session:
        return await self._plane.call(routes.TERMINATE_SESSION, id, body=model.Termination(reason=reason))

    async def pause(
        self,
        id: UUID,
        reason: str | None = None,
        *,
        correlation_id: str | None = None,
        within_seconds: int = HOLD_SECONDS,
    ) -> SessionReceipt:
        """Hold it until it is resumed; jobs that run stop at their next boundary, or are cut off after ``within_seconds``."""
        pause = Pause(reason=reason, correlation_id=correlation_id, within_seconds=within_seconds)
        return await self._plane.call(job_routes.PAUSE_SESSION, id, body=pause)

    async def resume(self, id: UUID, note: str | None = None, *, operator_input: Any = None) -> SessionReceipt:
        """``operator_input``: what the model of its open job reads before it goes on, as your words."""
        resumption = Resumption(note=note, operator_input=operator_input)
        return await self._plane.call(job_routes.RESUME_SESSION, id, body=resumption)

    async def permissions(self, id: UUID) -> calls.Permissions:
        """What is allowed in it now, and what did it."""
        return await Resolutions(self._plane).permissions(id)

    async def resolve(self, id: UUID, request: calls.ResolutionRequest) -> calls.Resolution:
        return await Resolutions(self._plane).resolve(id, request)

    async def answer(
        self, id: UUID, gate: str, answers: dict[str, Any], *, call: str | None = None
    ) -> calls.AnswerReceipt:
        """Of an agent that runs elsewhere."""
        return await Resolutions(self._plane).answer(id, gate, answers, call=call)

    async def send(self, id: UUID, text: str, *, idempotency_key: str | None = None) -> model.IngestedMessage:
        return await self._plane.call(
            routes.POST_MESSAGE, id, body=model.MessageDraft(text=text), idempotency_key=idempotency_key
        )

    async def state(self, id: UUID) -> model.SessionState:
        """The state of a run elsewhere, as `save_state` kept it; version 0 where nothing is."""
        return await self._plane.call(routes.GET_SESSION_STATE, id)

    async def save_state(self, id: UUID, text: str | None, *, replaces: int) -> model.SessionState:
        """In the place of the version that you read; raises `Conflict` (`state_changed`) where it is not the current one."""
        draft = model.SessionStateDraft(text=text, replaces=replaces)
        return await self._plane.call(routes.SAVE_SESSION_STATE, id, body=draft)

    def messages(self, id: UUID, limit: int | None = None) -> AsyncIterator[model.Message]:
        return self._plane.pages(routes.LIST_MESSAGES, id, limit=limit)

    def memory(self, id: UUID, limit: int | None = None) -> AsyncIterator[model.SessionMemory]:
        """What is kept of what no longer fits into the model's window: the newest first, then how it came about."""
        return self._plane.pages(routes.LIST_MEMORIES, id, limit=limit)

    def events(self, id: UUID, *, after: int = 0, on_lost: Lost | None = None) -> AsyncIterator[Event]:
        """What happens in it after number ``after``, without end; a lost connection is made again."""
        return self._plane.events(routes.SESSION_EVENTS, id, after=after, on_lost=on_lost)


class Calls(Noun):
    async def authorize(self, session_id: UUID, draft: calls.CallDraft) -> calls.ExternalCall:
        """Ask before acting; the answer's `next` says what to do."""
        return await self._plane.call(call_routes.AUTHORIZE_CALL, session_id, body=draft)

    async def authorize_batch(self, session_id: UUID, drafts: Sequence[calls.CallDraft]) -> Sequence[calls.CallAnswer]:
        """Several calls of one response in one request, each with a key and an answer of its own."""
        batch = calls.CallBatch(calls=[*drafts])
        return (await self._plane.call(call_routes.AUTHORIZE_CALLS, session_id, body=batch)).answers

    async def get(self, id: UUID, *, wait: float = 0) -> calls.ExternalCall:
        """With ``wait``, once there is something to do, or after so many seconds (at most 60)."""
        return await self._plane.call(call_routes.GET_CALL, id, query={"wait": wait} if wait else None)

    def list(
        self, limit: int | None = None, *, session_id: UUID | None = None, status: CallStatus | None = None
    ) -> AsyncIterator[calls.CallShown]:
        return self._plane.pages(call_routes.LIST_CALLS, limit=limit, session_id=session_id, status=status)

    def list_decided(
        self, limit: int | None = None, *, agent: str | None = None, since: datetime | None = None
    ) -> AsyncIterator[calls.CallDecision]:
        """Those whose request has ended, the oldest decision first. Look again from a little earlier: a decision of the last seconds may
        still join."""
        return self._plane.pages(call_routes.LIST_DECIDED_CALLS, limit=limit, agent=agent, since=since)

    async def intent(
        self, call: calls.ExternalCall, *, sender: str | None = None, did_not_happen: bool = False
    ) -> calls.ExternalCall:
        """Begin with the arguments that ``call`` shows. Act only where the answer says `run`."""
        draft = calls.IntentDraft(input_hash=call.input_hash, sender=sender, did_not_happen=did_not_happen)
        return await self._plane.call(call_routes.INTEND_CALL, call.id, body=draft)

    async def outcome(
        self,
        call: calls.ExternalCall,
        status: calls.OutcomeStatus | str,
        *,
        result: Any = None,
        error: str | None = None,
        probed: bool = False,
    ) -> calls.OutcomeReceipt:
        draft = calls.OutcomeDraft(
            status=calls.OutcomeStatus(status), result=result, error=error, attempt=call.attempt, probed=probed
        )
        return await self._plane.call(call_routes.SETTLE_CALL, call.id, body=draft)


@dataclass(frozen=True, slots=True)
class ExternalSession:
    """The session of an agent that runs here and asks there."""

    session: model.Session
    _calls: Calls

    @property
    def id(self) -> UUID:
        return self.session.id

    async def authorize(self, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> calls.ExternalCall:
        """``more`` are the fields of `CallDraft`: risk, key, on_uncertain, dispatch …"""
        return await self._calls.authorize(self.id, calls.CallDraft(tool=tool, arguments=arguments or {}, **more))

    async def authorize_batch(self, *drafts: calls.CallDraft) -> Sequence[calls.CallAnswer]:
        return await self._calls.authorize_batch(self.id, drafts)

    async def resolve(
        self, goal: str | None = None, action: str | None = None, arguments: dict[str, Any] | None = None, **more: Any
    ) -> calls.Resolution:  # fmt: skip
        """What may be done now. ``more`` are the other fields of `ResolutionRequest`: request, risk, ttl_seconds."""
        request = calls.ResolutionRequest(goal=goal, action=action, arguments=arguments or {}, **more)
        return await self._resolutions.resolve(self.id, request)

    async def execute(
        self, resolution: calls.Resolution, tool: str, arguments: dict[str, Any] | None = None, **more: Any
    ) -> calls.ExternalCall:
        """Begin a call that the resolution covers."""
        draft = calls.CallDraft(tool=tool, arguments=arguments or {}, **more)
        return await self._resolutions.execute(resolution.id, draft)

    async def report(
        self,
        resolution: calls.Resolution,
        call: calls.ExternalCall,
        status: calls.OutcomeStatus | str,
        *,
        result: Any = None,
        error: str | None = None,
    ) -> calls.OutcomeReceipt:
        return await self._resolutions.report(resolution.id, call, status, result=result, error=error)

    async def answer(self, gate: str, answers: dict[str, Any], *, call: str | None = None) -> calls.AnswerReceipt:
        return await self._resolutions.answer(self.id, gate, answers, call=call)

    async def permissions(self) -> calls.Permissions:
        return await self._resolutions.permissions(self.id)

    @property
    def _resolutions(self) -> Resolutions:
        return Resolutions(self._calls._plane)

    async def report_usage(self, usage: calls.ReportedUsage, *, idempotency_key: str | None = None) -> UsageTotals:
        """What one answer of a model took here; the answer is what the session took so far."""
        return await self._calls._plane.call(
            call_routes.REPORT_USAGE, self.id, body=usage, idempotency_key=idempotency_key
        )

    async def complete(self, result: dict[str, Any] | None = None) -> model.Session:
        return await self._calls._plane.call(call_routes.COMPLETE_SESSION, self.id, body=calls.Ending(result=result))

    async def fail(self, error: str | None = None) -> model.Session:
        return await self._calls._plane.call(call_routes.FAIL_SESSION, self.id, body=calls.Ending(error=error))


class Resolutions(Noun):
    async def resolve(self, session_id: UUID, request: calls.ResolutionRequest) -> calls.Resolution:
        """What may be done now, and what must be known and answered first. Asking uses nothing up."""
        return await self._plane.call(call_routes.RESOLVE_REQUEST, session_id, body=request)

    async def get(self, id: UUID) -> calls.Resolution:
        return await self._plane.call(call_routes.GET_RESOLUTION, id)

    async def execute(self, id: UUID, draft: calls.CallDraft) -> calls.ExternalCall:
        """Begin a call that the resolution covers. Act only where the answer says `run`."""
        return await self._plane.call(call_routes.EXECUTE_RESOLUTION, id, body=draft)

    async def report(
        self,
        id: UUID,
        call: calls.ExternalCall,
        status: calls.OutcomeStatus | str,
        *,
        result: Any = None,
        error: str | None = None,
    ) -> calls.OutcomeReceipt:
        outcome = calls.OutcomeDraft(
            status=calls.OutcomeStatus(status), result=result, error=error, attempt=call.attempt
        )
        body = calls.ReportDraft(call=call.id, outcome=outcome)
        return await self._plane.call(call_routes.REPORT_RESOLUTION, id, body=body)

    async def answer(
        self, session_id: UUID, gate: str, answers: dict[str, Any], *, call: str | None = None
    ) -> calls.AnswerReceipt:
        """Answer a gate that stops the session or one of its calls."""
        body = calls.AnswerDraft(gate=gate, answers=answers, call=call)
        return await self._plane.call(call_routes.ANSWER_GATE, session_id, body=body)

    async def permissions(self, session_id: UUID) -> calls.Permissions:
        return await self._plane.call(call_routes.GET_PERMISSIONS, session_id)

"""One class per noun, one method per route."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any
from urllib.parse import quote
from uuid import UUID

from cortex_plane.client.calls import Calls, ExternalSession
from cortex_plane.client.events import Lost
from cortex_plane.client.resolutions import Resolutions
from cortex_plane.client.transport import Transport
from cortex_plane.domain.agents import Agent, AgentChange, AgentDraft, AgentStatus, AgentVersion
from cortex_plane.domain.audit import AuditRecord, Verification
from cortex_plane.domain.browser_sessions import LoginLink
from cortex_plane.domain.connections import (
    Connection,
    ConnectionChange,
    ConnectionDraft,
    Mapping,
    MappingDraft,
    NewConnection,
    NewSecret,
)
from cortex_plane.domain.credentials import SecretRotation, SecretRotationDraft
from cortex_plane.domain.effects import Answer, Question
from cortex_plane.domain.events import Event
from cortex_plane.domain.gate_drafts import AnswerReceipt
from cortex_plane.domain.jobs import (
    Cancellation,
    Job,
    JobChange,
    JobDraft,
    JobStatus,
    Pause,
    Receipt,
    Resumption,
    Step,
)
from cortex_plane.domain.journal import Entry
from cortex_plane.domain.keys import Key, KeyDraft, NewKey
from cortex_plane.domain.members import Member, MemberChange, MemberDraft, Role
from cortex_plane.domain.memories import SessionMemory
from cortex_plane.domain.messages import Delivery, InboundMessage, Message, MessageDraft
from cortex_plane.domain.orgs import NewOrg, Org, OrgChange, OrgDraft
from cortex_plane.domain.resolutions import Permissions, Resolution, ResolutionRequest
from cortex_plane.domain.roots import AuditRoot, RootMade
from cortex_plane.domain.sessions import (
    Session,
    SessionChange,
    SessionDraft,
    SessionKind,
    SessionReceipt,
    SessionStatus,
    Termination,
)
from cortex_plane.domain.signals import Wait
from cortex_plane.domain.signing import SigningKey
from cortex_plane.domain.teams import Team, TeamChange, TeamDraft
from cortex_plane.domain.webhooks import Ping
from cortex_plane.domain.workers import Worker


class _Noun:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport


class Orgs(_Noun):
    async def create(self, draft: OrgDraft) -> NewOrg:
        return await self._transport.one(NewOrg, "POST", "/v1/orgs", body=draft)

    async def get(self) -> Org:
        return await self._transport.one(Org, "GET", "/v1/org")

    def list(self, limit: int | None = None) -> AsyncIterator[Org]:
        return self._transport.pages(Org, "/v1/orgs", limit=limit)

    async def update(self, change: OrgChange, *, revision: int | None = None) -> Org:
        return await self._transport.one(Org, "PATCH", "/v1/org", body=change, revision=revision)

    async def rotate_secret(self, *, forget: bool = False) -> SecretRotation:
        """Sign links with a new secret; with ``forget`` those that were sent stop working at once."""
        given = SecretRotationDraft(forget=forget)
        return await self._transport.one(SecretRotation, "POST", "/v1/org/signing-secret", body=given)


class Teams(_Noun):
    async def create(self, draft: TeamDraft, *, idempotency_key: str | None = None) -> Team:
        return await self._transport.one(
            Team, "POST", "/v1/teams", body=draft, idempotency_key=idempotency_key
        )

    async def get(self, ref: str) -> Team:
        return await self._transport.one(Team, "GET", f"/v1/teams/{quote(ref, safe='')}")

    def list(self, limit: int | None = None) -> AsyncIterator[Team]:
        return self._transport.pages(Team, "/v1/teams", limit=limit)

    async def update(self, ref: str, change: TeamChange, *, revision: int | None = None) -> Team:
        return await self._transport.one(
            Team, "PATCH", f"/v1/teams/{quote(ref, safe='')}", body=change, revision=revision
        )

    async def delete(self, ref: str) -> None:
        await self._transport.send("DELETE", f"/v1/teams/{quote(ref, safe='')}")


class Members(_Noun):
    async def create(self, draft: MemberDraft, *, idempotency_key: str | None = None) -> Member:
        return await self._transport.one(
            Member, "POST", "/v1/members", body=draft, idempotency_key=idempotency_key
        )

    async def get(self, id: UUID) -> Member:
        return await self._transport.one(Member, "GET", f"/v1/members/{id}")

    def list(self, limit: int | None = None, role: Role | None = None) -> AsyncIterator[Member]:
        return self._transport.pages(Member, "/v1/members", limit=limit, role=role)

    async def update(self, id: UUID, change: MemberChange, *, revision: int | None = None) -> Member:
        return await self._transport.one(Member, "PATCH", f"/v1/members/{id}", body=change, revision=revision)

    def mappings(self, id: UUID, limit: int | None = None) -> AsyncIterator[Mapping]:
        return self._transport.pages(Mapping, f"/v1/members/{id}/mappings", limit=limit)

    async def login_link(self, id: UUID | None = None) -> LoginLink:
        """Logs a member in to the dashboard once; without an id, whoever holds the key."""
        path = "/v1/me/login-links" if id is None else f"/v1/members/{id}/login-links"
        return await self._transport.one(LoginLink, "POST", path)


class Keys(_Noun):
    async def create(self, draft: KeyDraft, *, idempotency_key: str | None = None) -> NewKey:
        return await self._transport.one(
            NewKey, "POST", "/v1/keys", body=draft, idempotency_key=idempotency_key
        )

    async def get(self, id: UUID) -> Key:
        return await self._transport.one(Key, "GET", f"/v1/keys/{id}")

    def list(self, limit: int | None = None) -> AsyncIterator[Key]:
        return self._transport.pages(Key, "/v1/keys", limit=limit)

    async def revoke(self, id: UUID) -> Key:
        return await self._transport.one(Key, "POST", f"/v1/keys/{id}/revoke")


class Connections(_Noun):
    async def create(self, draft: ConnectionDraft, *, idempotency_key: str | None = None) -> NewConnection:
        """A webhook's secret is in the answer, once."""
        return await self._transport.one(
            NewConnection, "POST", "/v1/connections", body=draft, idempotency_key=idempotency_key
        )

    async def get(self, id: UUID) -> Connection:
        return await self._transport.one(Connection, "GET", f"/v1/connections/{id}")

    def list(self, limit: int | None = None) -> AsyncIterator[Connection]:
        return self._transport.pages(Connection, "/v1/connections", limit=limit)

    async def update(self, id: UUID, change: ConnectionChange, *, revision: int | None = None) -> Connection:
        return await self._transport.one(
            Connection, "PATCH", f"/v1/connections/{id}", body=change, revision=revision
        )

    async def rotate_secret(self, id: UUID) -> NewSecret:
        """A new secret for a webhook, told once; the one before it counts for a day."""
        return await self._transport.one(NewSecret, "POST", f"/v1/connections/{id}/rotate-secret")

    async def test(self, id: UUID) -> Ping:
        """Let the plane send a signed `ping` to a webhook, and say what came back."""
        return await self._transport.one(Ping, "POST", f"/v1/connections/{id}/test")

    async def map(self, id: UUID, draft: MappingDraft) -> Mapping:
        """Say whose a name in the system behind a webhook is."""
        return await self._transport.one(Mapping, "POST", f"/v1/connections/{id}/mappings", body=draft)

    async def ingest(
        self, id: UUID, message: InboundMessage, *, idempotency_key: str | None = None
    ) -> Delivery:
        """Hand over a person's message. Needs a service key."""
        return await self._transport.one(
            Delivery,
            "POST",
            f"/v1/connections/{id}/messages",
            body=message,
            idempotency_key=idempotency_key,
        )


class Agents(_Noun):
    async def create(self, draft: AgentDraft, *, idempotency_key: str | None = None) -> Agent:
        return await self._transport.one(
            Agent, "POST", "/v1/agents", body=draft, idempotency_key=idempotency_key
        )

    async def get(self, ref: str) -> Agent:
        return await self._transport.one(Agent, "GET", f"/v1/agents/{quote(ref, safe='')}")

    def list(self, limit: int | None = None, status: AgentStatus | None = None) -> AsyncIterator[Agent]:
        return self._transport.pages(Agent, "/v1/agents", limit=limit, status=status)

    async def update(self, ref: str, change: AgentChange, *, revision: int | None = None) -> Agent:
        return await self._transport.one(
            Agent, "PATCH", f"/v1/agents/{quote(ref, safe='')}", body=change, revision=revision
        )

    async def delete(self, ref: str, *, revision: int | None = None) -> None:
        await self._transport.send("DELETE", f"/v1/agents/{quote(ref, safe='')}", revision=revision)

    def versions(self, ref: str, limit: int | None = None) -> AsyncIterator[AgentVersion]:
        return self._transport.pages(AgentVersion, f"/v1/agents/{quote(ref, safe='')}/versions", limit=limit)


class Sessions(_Noun):
    async def create(self, draft: SessionDraft, *, idempotency_key: str | None = None) -> Session:
        return await self._transport.one(
            Session, "POST", "/v1/sessions", body=draft, idempotency_key=idempotency_key
        )

    async def open_external(
        self,
        agent: str,
        *,
        title: str | None = None,
        context: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> ExternalSession:
        """For an agent that runs here: it asks with `authorize` before it acts."""
        draft = SessionDraft(agent=agent, kind=SessionKind.EXTERNAL, title=title, context=context or {})
        made = await self.create(draft, idempotency_key=idempotency_key)
        return ExternalSession(made, Calls(self._transport))

    async def get(self, id: UUID) -> Session:
        return await self._transport.one(Session, "GET", f"/v1/sessions/{id}")

    def list(
        self,
        limit: int | None = None,
        *,
        status: SessionStatus | None = None,
        agent: str | None = None,
        member_id: UUID | None = None,
    ) -> AsyncIterator[Session]:
        return self._transport.pages(
            Session, "/v1/sessions", limit=limit, status=status, agent=agent, member_id=member_id
        )

    async def update(self, id: UUID, change: SessionChange, *, revision: int | None = None) -> Session:
        return await self._transport.one(
            Session, "PATCH", f"/v1/sessions/{id}", body=change, revision=revision
        )

    async def terminate(self, id: UUID, reason: str | None = None) -> Session:
        body = Termination(reason=reason)
        return await self._transport.one(Session, "POST", f"/v1/sessions/{id}/terminate", body=body)

    async def pause(self, id: UUID, reason: str | None = None) -> SessionReceipt:
        """Hold it until it is resumed; jobs that run stop at their next boundary."""
        return await self._transport.one(
            SessionReceipt, "POST", f"/v1/sessions/{id}/pause", body=Pause(reason=reason)
        )

    async def resume(self, id: UUID, note: str | None = None) -> SessionReceipt:
        return await self._transport.one(
            SessionReceipt, "POST", f"/v1/sessions/{id}/resume", body=Resumption(note=note)
        )

    async def permissions(self, id: UUID) -> Permissions:
        """What is allowed in it now, and what did it."""
        return await Resolutions(self._transport).permissions(id)

    async def resolve(self, id: UUID, request: ResolutionRequest) -> Resolution:
        return await Resolutions(self._transport).resolve(id, request)

    async def answer(
        self, id: UUID, gate: str, answers: dict[str, Any], *, call: str | None = None
    ) -> AnswerReceipt:
        """Of an agent that runs elsewhere."""
        return await Resolutions(self._transport).answer(id, gate, answers, call=call)

    async def send(self, id: UUID, text: str, *, idempotency_key: str | None = None) -> Delivery:
        return await self._transport.one(
            Delivery,
            "POST",
            f"/v1/sessions/{id}/messages",
            body=MessageDraft(text=text),
            idempotency_key=idempotency_key,
        )

    def messages(self, id: UUID, limit: int | None = None) -> AsyncIterator[Message]:
        return self._transport.pages(Message, f"/v1/sessions/{id}/messages", limit=limit)

    def memory(self, id: UUID, limit: int | None = None) -> AsyncIterator[SessionMemory]:
        """What is kept of what no longer fits into the model's window: the newest first, then how it came about."""
        return self._transport.pages(SessionMemory, f"/v1/sessions/{id}/memory", limit=limit)

    def events(self, id: UUID, *, after: int = 0, on_lost: Lost | None = None) -> AsyncIterator[Event]:
        """What happens in it after number ``after``, without end; a lost connection is made again."""
        return self._transport.events(f"/v1/sessions/{id}/events", after, on_lost)


class Jobs(_Noun):
    async def submit(self, draft: JobDraft, *, idempotency_key: str | None = None) -> Job:
        return await self._transport.one(Job, "POST", "/v1/jobs", body=draft, idempotency_key=idempotency_key)

    async def get(self, id: UUID) -> Job:
        return await self._transport.one(Job, "GET", f"/v1/jobs/{id}")

    def list(
        self,
        limit: int | None = None,
        *,
        status: JobStatus | None = None,
        session_id: UUID | None = None,
        agent: str | None = None,
    ) -> AsyncIterator[Job]:
        return self._transport.pages(
            Job, "/v1/jobs", limit=limit, status=status, session_id=session_id, agent=agent
        )

    async def history(self, id: UUID) -> Sequence[JobChange]:
        return await self._transport.all(JobChange, f"/v1/jobs/{id}/history")

    def steps(self, id: UUID, limit: int | None = None, *, above: int | None = None) -> AsyncIterator[Step]:
        """In order; with ``above`` only those after that one. The last may still be under way."""
        return self._transport.pages(Step, f"/v1/jobs/{id}/steps", limit=limit, above=above)

    def journal(
        self, id: UUID, limit: int | None = None, *, above: int | None = None
    ) -> AsyncIterator[Entry]:
        """What the code of a job did so far, in the order in which it was begun."""
        return self._transport.pages(Entry, f"/v1/jobs/{id}/journal", limit=limit, above=above)

    def events(
        self, id: UUID, *, after: int = 0, follow: str | None = None, on_lost: Lost | None = None
    ) -> AsyncIterator[Event]:
        """What it does after number ``after``, until it ends; a lost connection is made again.

        ``follow="session"`` gives everything in its session, without end. ``on_lost`` is told of a plane that is away.
        """
        return self._transport.events(f"/v1/jobs/{id}/events", after, on_lost, follow=follow)

    async def waits(self, id: UUID) -> Sequence[Wait]:
        """The signals that it waits for, and what came."""
        return await self._transport.all(Wait, f"/v1/jobs/{id}/waits")

    async def checkpoint(self, id: UUID) -> dict[str, Any]:
        """The durable state, as the job would be resumed from it."""
        blob: dict[str, Any] = await self._transport.send("GET", f"/v1/jobs/{id}/checkpoint")
        return blob

    async def result(self, id: UUID, result_id: UUID) -> Any:
        """A result that was too large for its step."""
        return await self._transport.send("GET", f"/v1/jobs/{id}/results/{result_id}")

    async def questions(self, id: UUID) -> Sequence[Question]:
        """Calls of which nobody knows whether they happened."""
        return await self._transport.all(Question, f"/v1/jobs/{id}/questions")

    async def settle(self, id: UUID, call_id: UUID, answer: Answer) -> Receipt:
        return await self._transport.one(
            Receipt, "POST", f"/v1/jobs/{id}/calls/{call_id}/settle", body=answer
        )

    async def pause(self, id: UUID, reason: str | None = None) -> Receipt:
        return await self._transport.one(Receipt, "POST", f"/v1/jobs/{id}/pause", body=Pause(reason=reason))

    async def resume(self, id: UUID, note: str | None = None) -> Receipt:
        return await self._transport.one(Receipt, "POST", f"/v1/jobs/{id}/resume", body=Resumption(note=note))

    async def cancel(self, id: UUID, reason: str | None = None) -> Receipt:
        return await self._transport.one(
            Receipt, "POST", f"/v1/jobs/{id}/cancel", body=Cancellation(reason=reason)
        )

    async def resubmit(self, id: UUID, *, idempotency_key: str | None = None) -> Job:
        return await self._transport.one(
            Job, "POST", f"/v1/jobs/{id}/resubmit", idempotency_key=idempotency_key
        )


class Audit(_Noun):
    def list(self, session_id: UUID | None = None, limit: int | None = None) -> AsyncIterator[AuditRecord]:
        return self._transport.pages(AuditRecord, "/v1/audit", limit=limit, session_id=session_id)

    def export(self, session_id: UUID | None = None) -> AsyncGenerator[bytes, None]:
        """The whole trail, or a session's chain, as it comes: nothing is kept. docs/audit.md describes the lines."""
        return self._transport.download("/v1/audit/export", session_id=session_id)

    async def verify(self) -> Verification:
        return await self._transport.one(Verification, "GET", "/v1/audit/verification")

    def roots(self, limit: int | None = None) -> AsyncIterator[AuditRoot]:
        """Signed roots over all chains, newest first."""
        return self._transport.pages(AuditRoot, "/v1/audit/roots", limit=limit)

    async def make_root(self) -> RootMade:
        """A root over everything so far, at once."""
        return await self._transport.one(RootMade, "POST", "/v1/audit/roots")

    async def keys(self) -> Sequence[SigningKey]:
        """The public keys that receipts and roots are signed with, oldest first."""
        return await self._transport.all(SigningKey, "/v1/audit/keys")

    async def rotate_key(self) -> SigningKey:
        """A new key signs from now on; what the old one signed stays valid."""
        return await self._transport.one(SigningKey, "POST", "/v1/audit/keys")


class Workers(_Noun):
    async def list(self) -> Sequence[Worker]:
        """The processes that run jobs. Needs a platform key."""
        return await self._transport.all(Worker, "/v1/workers")

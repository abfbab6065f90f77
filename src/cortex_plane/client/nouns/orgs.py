"""Orgs, teams, members, keys and workers, as the client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from urllib.parse import quote
from uuid import UUID

from cortex_plane.approvals.model.credentials import SecretRotation, SecretRotationDraft
from cortex_plane.client.nouns import Noun
from cortex_plane.jobs.model.jobs import Worker
from cortex_plane.tenancy.model.credentials import (
    BrowserSession,
    EndedSessions,
    EnrolmentCode,
    Key,
    KeyDraft,
    LoginLink,
    NewKey,
    NewOrg,
    OwnKeyDraft,
    Redemption,
)
from cortex_plane.tenancy.model.identities import Mapping
from cortex_plane.tenancy.model.orgs import (
    Member,
    MemberChange,
    MemberDraft,
    Org,
    OrgChange,
    OrgDraft,
    Role,
    Team,
    TeamChange,
    TeamDraft,
)


class Orgs(Noun):
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


class Teams(Noun):
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


class Members(Noun):
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

    async def login_link(self) -> LoginLink:
        """Logs whoever holds the key in to the dashboard once."""
        return await self._transport.one(LoginLink, "POST", "/v1/me/login-links")

    async def enrolment_code(self, id: UUID) -> EnrolmentCode:
        """A code that a member redeems for a session or a key of their own."""
        return await self._transport.one(EnrolmentCode, "POST", f"/v1/members/{id}/enrolment-codes")

    async def enrol(self, redemption: Redemption) -> NewKey:
        """Redeem a code for a key. Needs no key."""
        return await self._transport.one(NewKey, "POST", "/v1/enrolments", body=redemption)

    def browser_sessions(
        self, id: UUID | None = None, limit: int | None = None
    ) -> AsyncIterator[BrowserSession]:
        """Where a member is logged in; without an id, whoever holds the key."""
        return self._transport.pages(BrowserSession, f"{_owner(id)}/browser-sessions", limit=limit)

    async def end_browser_session(self, session_id: UUID, id: UUID | None = None) -> None:
        await self._transport.send("DELETE", f"{_owner(id)}/browser-sessions/{session_id}")

    async def end_browser_sessions(self, id: UUID | None = None) -> EndedSessions:
        """All of a member's; without an id, your own."""
        return await self._transport.one(EndedSessions, "DELETE", f"{_owner(id)}/browser-sessions")


def _owner(member_id: UUID | None) -> str:
    return "/v1/me" if member_id is None else f"/v1/members/{member_id}"


class Keys(Noun):
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

    async def create_own(self, draft: OwnKeyDraft, *, idempotency_key: str | None = None) -> NewKey:
        """A key for whoever asks. It ends with the key that it is made with."""
        return await self._transport.one(
            NewKey, "POST", "/v1/me/keys", body=draft, idempotency_key=idempotency_key
        )

    def list_own(self, limit: int | None = None) -> AsyncIterator[Key]:
        return self._transport.pages(Key, "/v1/me/keys", limit=limit)

    async def revoke_own(self, id: UUID) -> Key:
        return await self._transport.one(Key, "POST", f"/v1/me/keys/{id}/revoke")


class Workers(Noun):
    async def list(self) -> Sequence[Worker]:
        """The processes that run jobs. Needs a platform key."""
        return await self._transport.all(Worker, "/v1/workers")

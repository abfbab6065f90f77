"""Orgs, teams, members, absences, keys, connections and identities: one class each, one method per route."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from uuid import UUID

from cortex_plane.approvals import routes as approval_routes
from cortex_plane.approvals.model.approvals import Delegate
from cortex_plane.approvals.model.credentials import SecretRotation, SecretRotationDraft
from cortex_plane.client.transport import Noun
from cortex_plane.notify import routes as notify_routes
from cortex_plane.notify.model.notifications import Ping
from cortex_plane.sessions import routes as session_routes
from cortex_plane.sessions.model.sessions import InboundMessage, IngestedMessage
from cortex_plane.tenancy import routes
from cortex_plane.tenancy.model import access, identities, orgs


class Orgs(Noun):
    async def create(self, draft: orgs.OrgDraft) -> access.NewOrg:
        return await self._plane.call(routes.CREATE_ORG, body=draft)

    async def get(self) -> orgs.Org:
        return await self._plane.call(routes.GET_ORG)

    def list(self, limit: int | None = None) -> AsyncIterator[orgs.Org]:
        return self._plane.pages(routes.LIST_ORGS, limit=limit)

    async def update(self, change: orgs.OrgChange, *, revision: int | None = None) -> orgs.Org:
        return await self._plane.call(routes.UPDATE_ORG, body=change, revision=revision)

    async def rotate_secret(self, *, forget: bool = False) -> SecretRotation:
        """Sign links with a new secret; with ``forget`` those that were sent stop working at once."""
        return await self._plane.call(approval_routes.ROTATE_SIGNING_SECRET, body=SecretRotationDraft(forget=forget))


class Teams(Noun):
    async def create(self, draft: orgs.TeamDraft, *, idempotency_key: str | None = None) -> orgs.Team:
        return await self._plane.call(routes.CREATE_TEAM, body=draft, idempotency_key=idempotency_key)

    async def get(self, ref: str) -> orgs.Team:
        return await self._plane.call(routes.GET_TEAM, ref)

    def list(self, limit: int | None = None) -> AsyncIterator[orgs.Team]:
        return self._plane.pages(routes.LIST_TEAMS, limit=limit)

    async def update(self, ref: str, change: orgs.TeamChange, *, revision: int | None = None) -> orgs.Team:
        return await self._plane.call(routes.UPDATE_TEAM, ref, body=change, revision=revision)

    async def delete(self, ref: str) -> None:
        await self._plane.call(routes.DELETE_TEAM, ref)


class Members(Noun):
    async def create(self, draft: orgs.MemberDraft, *, idempotency_key: str | None = None) -> orgs.Member:
        return await self._plane.call(routes.CREATE_MEMBER, body=draft, idempotency_key=idempotency_key)

    async def get(self, id: UUID) -> orgs.Member:
        return await self._plane.call(routes.GET_MEMBER, id)

    def list(self, limit: int | None = None, role: orgs.Role | None = None) -> AsyncIterator[orgs.Member]:
        return self._plane.pages(routes.LIST_MEMBERS, limit=limit, role=role)

    async def update(self, id: UUID, change: orgs.MemberChange, *, revision: int | None = None) -> orgs.Member:
        return await self._plane.call(routes.UPDATE_MEMBER, id, body=change, revision=revision)

    def mappings(self, id: UUID, limit: int | None = None) -> AsyncIterator[identities.Mapping]:
        return self._plane.pages(routes.LIST_MAPPINGS, id, limit=limit)

    async def login_link(self) -> access.LoginLink:
        """A link that logs the holder of the key in to the dashboard, once."""
        return await self._plane.call(routes.CREATE_OWN_LOGIN_LINK)

    async def enrolment_code(self, id: UUID) -> access.EnrolmentCode:
        """A code that a member redeems for a session or a key of their own."""
        return await self._plane.call(routes.CREATE_ENROLMENT_CODE, id)

    async def enrol(self, redemption: access.Redemption) -> access.NewKey:
        """Redeem a code for a key. Needs no key."""
        return await self._plane.call(routes.REDEEM_ENROLMENT_CODE, body=redemption)

    def browser_sessions(
        self, id: UUID | None = None, limit: int | None = None
    ) -> AsyncIterator[access.BrowserSession]:
        """Where a member is logged in; without an id, the holder of the key."""
        if id is None:
            return self._plane.pages(routes.LIST_OWN_BROWSER_SESSIONS, limit=limit)
        return self._plane.pages(routes.LIST_MEMBER_BROWSER_SESSIONS, id, limit=limit)

    async def end_browser_session(self, session_id: UUID, id: UUID | None = None) -> None:
        if id is None:
            return await self._plane.call(routes.END_OWN_BROWSER_SESSION, session_id)
        return await self._plane.call(routes.END_MEMBER_BROWSER_SESSION, id, session_id)

    async def end_browser_sessions(self, id: UUID | None = None) -> access.EndedSessions:
        """All of a member's; without an id, your own."""
        if id is None:
            return await self._plane.call(routes.END_OWN_BROWSER_SESSIONS)
        return await self._plane.call(routes.END_MEMBER_BROWSER_SESSIONS, id)


class Keys(Noun):
    async def create(self, draft: access.KeyDraft, *, idempotency_key: str | None = None) -> access.NewKey:
        return await self._plane.call(routes.CREATE_KEY, body=draft, idempotency_key=idempotency_key)

    async def get(self, id: UUID) -> access.Key:
        return await self._plane.call(routes.GET_KEY, id)

    def list(self, limit: int | None = None) -> AsyncIterator[access.Key]:
        return self._plane.pages(routes.LIST_KEYS, limit=limit)

    async def revoke(self, id: UUID) -> access.Key:
        return await self._plane.call(routes.REVOKE_KEY, id)

    async def create_own(self, draft: access.OwnKeyDraft, *, idempotency_key: str | None = None) -> access.NewKey:
        """A key for the caller. It ends with the key that it is made with."""
        return await self._plane.call(routes.CREATE_OWN_KEY, body=draft, idempotency_key=idempotency_key)

    def list_own(self, limit: int | None = None) -> AsyncIterator[access.Key]:
        return self._plane.pages(routes.LIST_OWN_KEYS, limit=limit)

    async def revoke_own(self, id: UUID) -> access.Key:
        return await self._plane.call(routes.REVOKE_OWN_KEY, id)


class Identities(Noun):
    async def invite(
        self, draft: identities.InvitationDraft, *, idempotency_key: str | None = None
    ) -> identities.Invited:
        """Add a member by mail. For an address that was not confirmed yet, the mail is sent again."""
        return await self._plane.call(routes.INVITE_MEMBER, body=draft, idempotency_key=idempotency_key)

    async def unlink_member(self, member_id: UUID, mapping_id: UUID) -> None:
        await self._plane.call(routes.UNLINK_MEMBER_MAPPING, member_id, mapping_id)

    def mappings(self, limit: int | None = None) -> AsyncIterator[identities.Mapping]:
        """Your own."""
        return self._plane.pages(routes.LIST_OWN_MAPPINGS, limit=limit)

    async def unlink(self, mapping_id: UUID) -> None:
        """Give up one of your own."""
        await self._plane.call(routes.UNLINK_OWN_MAPPING, mapping_id)

    async def add_address(self, draft: identities.AddressDraft) -> identities.Mapping:
        """An address of your own; it counts once you have confirmed it."""
        return await self._plane.call(routes.ADD_OWN_ADDRESS, body=draft)

    async def link_code(self) -> identities.LinkCode:
        """A code to type on another channel."""
        return await self._plane.call(routes.CREATE_LINK_CODE)

    async def claims(self) -> Sequence[identities.LinkClaim]:
        """Who typed your code on a channel and waits for you to say that it was you."""
        return await self._plane.all(routes.LIST_LINK_CLAIMS)

    async def confirm(self, mapping_id: UUID) -> identities.Mapping:
        """It was you who typed the code."""
        return await self._plane.call(routes.CONFIRM_LINK_CLAIM, mapping_id)

    async def refuse(self, mapping_id: UUID) -> None:
        """It was somebody else: nothing is linked."""
        await self._plane.call(routes.REFUSE_LINK_CLAIM, mapping_id)

    async def redeem(self, connection_id: UUID, draft: identities.LinkDraft) -> identities.Mapping:
        """For a channel's program: somebody typed a code. Needs a service key."""
        return await self._plane.call(routes.REDEEM_LINK_CODE, connection_id, body=draft)


class Absences(Noun):
    async def create(self, draft: orgs.AbsenceDraft, *, idempotency_key: str | None = None) -> orgs.Absence:
        return await self._plane.call(routes.CREATE_ABSENCE, body=draft, idempotency_key=idempotency_key)

    async def get(self, id: UUID) -> orgs.Absence:
        return await self._plane.call(routes.GET_ABSENCE, id)

    def list(
        self, limit: int | None = None, *, member_id: UUID | None = None, only_open: bool = False
    ) -> AsyncIterator[orgs.Absence]:
        """Newest first; ``only_open`` leaves out what is over or cancelled."""
        return self._plane.pages(routes.LIST_ABSENCES, limit=limit, member_id=member_id, only_open=only_open)

    async def cancel(self, id: UUID) -> orgs.Absence:
        return await self._plane.call(routes.CANCEL_ABSENCE, id)

    async def delegates(self, *, approval_id: UUID | None = None, name: str | None = None) -> Sequence[Delegate]:
        """Colleagues to whom you may hand your part; with an approval, those who could take it there."""
        return await self._plane.all(approval_routes.LIST_DELEGATES, approval_id=approval_id, name=name)


class ModelKeys(Noun):
    async def list(self) -> Sequence[access.ModelKey]:
        return await self._plane.all(routes.LIST_MODEL_KEYS)

    async def get(self, provider: access.Provider) -> access.ModelKey:
        return await self._plane.call(routes.GET_MODEL_KEY, provider)

    async def set(self, provider: access.Provider, key: str) -> access.ModelKey:
        """The org's own key, in the place of the one before."""
        return await self._plane.call(routes.PUT_MODEL_KEY, provider, body=access.ModelKeyDraft(key=key))

    async def remove(self, provider: access.Provider) -> None:
        await self._plane.call(routes.REMOVE_MODEL_KEY, provider)


class Connections(Noun):
    async def create(
        self, draft: identities.ConnectionDraft, *, idempotency_key: str | None = None
    ) -> identities.NewConnection:
        """A webhook's secret is in the answer, once."""
        return await self._plane.call(routes.CREATE_CONNECTION, body=draft, idempotency_key=idempotency_key)

    async def get(self, id: UUID) -> identities.Connection:
        return await self._plane.call(routes.GET_CONNECTION, id)

    def list(self, limit: int | None = None) -> AsyncIterator[identities.Connection]:
        return self._plane.pages(routes.LIST_CONNECTIONS, limit=limit)

    async def update(
        self, id: UUID, change: identities.ConnectionChange, *, revision: int | None = None
    ) -> identities.Connection:
        return await self._plane.call(routes.UPDATE_CONNECTION, id, body=change, revision=revision)

    async def check(self, id: UUID) -> identities.Connection:
        """Ask its vendor who the connection is, and set up there what is missing."""
        return await self._plane.call(routes.CHECK_CONNECTION, id)

    async def channels(self) -> Sequence[identities.ServedChannel]:
        """The channels that this plane serves, and what a connection of each needs."""
        return await self._plane.all(routes.LIST_CHANNELS)

    async def rotate_secret(self, id: UUID) -> identities.NewSecret:
        """A new secret for a webhook, shown once. The one before it stays valid for a day."""
        return await self._plane.call(routes.ROTATE_CONNECTION_SECRET, id)

    async def test(self, id: UUID) -> Ping:
        """Let the plane send a signed `ping` to a webhook, and say what came back."""
        return await self._plane.call(notify_routes.TEST_CONNECTION, id)

    async def map(self, id: UUID, draft: identities.MappingDraft) -> identities.Mapping:
        """Say whose a name in the system behind a webhook is."""
        return await self._plane.call(routes.MAP_CONNECTION_MEMBER, id, body=draft)

    async def ingest(self, id: UUID, message: InboundMessage, *, idempotency_key: str | None = None) -> IngestedMessage:
        """Hand over a person's message. Needs a service key."""
        return await self._plane.call(session_routes.INGEST_MESSAGE, id, body=message, idempotency_key=idempotency_key)

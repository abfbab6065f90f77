"""A small org to test with, made through the same operations that users call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from cortex_plane.agents.model.agents import Agent, AgentDraft, ModelConfig
from cortex_plane.agents.verbs import agents
from cortex_plane.db.database import Database
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.versions import PolicyFile
from cortex_plane.policies.verbs import policies
from cortex_plane.sessions.model.sessions import InboundMessage, IngestedMessage
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.model.credentials import Grantable, KeyDraft, KeyKind
from cortex_plane.tenancy.model.identities import Connection, ConnectionDraft
from cortex_plane.tenancy.model.orgs import MemberDraft, OrgDraft, Role
from cortex_plane.tenancy.store import credentials as credentials_store
from cortex_plane.tenancy.verbs import connections, keys, orgs
from cortex_plane.tenancy.verbs.access import new_key_secret

EVERYTHING_GOES = 'policies: [{name: everything-goes, target: "*", effect: allow}]'


async def apply_policies(db: Database, actor: Actor, text: str) -> None:
    await policies.apply_policies(db, actor, PolicyFile(text=text))


@dataclass(frozen=True)
class Person:
    actor: Actor
    secret: str

    @property
    def member_id(self) -> UUID:
        assert self.actor.user_account_id is not None
        return self.actor.user_account_id

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.secret}"}


@dataclass(frozen=True)
class World:
    db: Database
    org_id: UUID
    admin: Person
    service: Person
    agent: Agent
    connection: Connection

    @classmethod
    async def create(cls, db: Database, slug: str, *, policies: str | None = EVERYTHING_GOES) -> World:
        """``policies`` are the org's; without any, whatever may change something needs approval."""
        new = await orgs.bootstrap_plane(db, OrgDraft(slug=slug, name=slug.title(), admin_name="Ada"))
        assert new.key.secret is not None
        admin = Person(await keys.authenticate_key(db, new.key.secret), new.key.secret)
        agent = await agents.create_agent(
            db,
            admin.actor,
            AgentDraft(
                name="Deployer", slug="deployer", role="DevOps", team="main",
                model_config=ModelConfig(model="scripted"),
            ),
        )  # fmt: skip
        connection = await connections.create_connection(
            db, admin.actor, ConnectionDraft(channel_type="web", name="site")
        )
        service = await _key(db, admin.actor, KeyDraft(name="bridge", roles=[Role.MEMBER]))
        if policies is not None:
            await apply_policies(db, admin.actor, policies)
        return cls(db, new.org.id, admin, service, agent, connection)

    async def person(self, *roles: Role, name: str = "Pat", clearance: int = 0) -> Person:
        """A member with these roles and a key of their own, who counts as a human of their own."""
        draft = MemberDraft(display_name=name, roles=list(roles), clearance=clearance)
        member = await orgs.create_member(self.db, self.admin.actor, draft)
        await stands_alone(self.db, self.org_id, member.id)
        return await with_key(self.db, self.org_id, member.id, f"{name}'s key")

    async def service_with(self, *roles: Role, permissions: Sequence[Grantable] = ()) -> Person:
        draft = KeyDraft(name="service", roles=list(roles), permissions=list(permissions))
        return await _key(self.db, self.admin.actor, draft)

    async def say(self, text: str = "Hello", external_user_id: str = "u-1") -> IngestedMessage:
        """A message over the org's connection."""
        inbound = InboundMessage(external_user_id=external_user_id, agent=self.agent.slug, text=text)
        return await sessions.ingest_message(self.db, self.service.actor, self.connection.id, inbound)


async def stands_alone(db: Database, org_id: UUID, member_id: UUID) -> None:
    """As if nobody had enrolled them: most tests are not about who could be the same human."""
    async with db.transaction(org_id) as tx:
        await tx.rows("update user_account set sponsors = '{}' where id = $1", member_id)


async def with_key(db: Database, org_id: UUID, member_id: UUID, name: str = "key") -> Person:
    """A member with a key, as if they had made it themselves."""
    secret = new_key_secret()
    async with db.transaction(org_id) as tx:
        await credentials_store.insert_key(tx, new_id(), name, KeyKind.PERSON, member_id, [], secret, None)
    return Person(await keys.authenticate_key(db, secret), secret)


async def _key(db: Database, admin: Actor, draft: KeyDraft) -> Person:
    new = await keys.create_key(db, admin, draft)
    assert new.secret is not None
    return Person(await keys.authenticate_key(db, new.secret), new.secret)

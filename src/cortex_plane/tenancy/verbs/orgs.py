"""Orgs: creating one (platform keys), reading and changing one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import Stale
from cortex_plane.kernel.idempotency import new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.proof.model.audit import Fact
from cortex_plane.proof.store import audit
from cortex_plane.tenancy.model.access import Actor, ActorKind, Permission, database_owner
from cortex_plane.tenancy.model.keys import KeyKind, NewKey
from cortex_plane.tenancy.model.members import Role
from cortex_plane.tenancy.model.orgs import (
    FirstOrg,
    NewOrg,
    Org,
    OrgChange,
    OrgDraft,
    OrgSettings,
    OrgSettingsChange,
)
from cortex_plane.tenancy.store import keys, members, orgs, teams
from cortex_plane.tenancy.verbs import enrolments
from cortex_plane.tenancy.verbs.secrets import new_key_secret
from cortex_plane.tenancy.verbs.verbs import require_found, verb

FIRST_TEAM = "main"


@verb(Permission.ORG_CREATE)
async def create(db: Database, actor: Actor, draft: OrgDraft) -> NewOrg:
    """With a code for its first admin to redeem. On the new org's trail the platform made it: whoever holds the key is nobody
    there."""
    outsider = replace(actor, kind=ActorKind.PLATFORM, user_account_id=None)
    async with db.transaction(new_id()) as tx:
        org, admin_id = await _create(tx, outsider, draft, [outsider.key_id])
        code = await enrolments.make_code(tx, outsider, admin_id)
    return NewOrg(org=org, enrolment=code)


async def bootstrap(db: Database, draft: OrgDraft) -> FirstOrg:
    """The first org of a new plane, whose admin holds a platform key. For whoever holds the database, not for a door."""
    secret, key_id = new_key_secret(), new_id()
    async with db.transaction(new_id()) as tx:
        org, admin_id = await _create(tx, database_owner(tx.org), draft, [], key=key_id)
        key = await keys.insert(
            tx, key_id, "first key", KeyKind.PERSON, admin_id, [], secret, None, platform=True
        )
    return FirstOrg(org=org, key=NewKey(key=key, secret=secret))


async def first(db: Database) -> Org | None:
    """The oldest org: the one that was set up with the plane."""
    position, oldest = None, None
    while True:
        page = await orgs.list_all(db, position, 100)
        oldest = page.items[-1] if page.items else oldest
        if page.next is None:
            return oldest
        position = page.next


async def _create(
    tx: Transaction, actor: Actor, draft: OrgDraft, sponsors: Sequence[UUID], *, key: UUID | None = None
) -> tuple[Org, UUID]:
    """An org with a first team and an admin; ``key``: the platform key that the admin gets."""
    admin_id, team_id = new_id(), new_id()
    org = await orgs.insert(tx, tx.org, draft.slug, draft.name, _stated(OrgSettings()))
    await teams.insert(tx, team_id, FIRST_TEAM, "Main", None)
    await members.insert(tx, admin_id, draft.admin_name, 0, [Role.ADMIN], sponsors)
    await members.set_teams(tx, admin_id, [team_id])
    await audit.append_to_org(
        tx,
        Fact.of(
            actor, "org_created", org=str(tx.org), slug=draft.slug, admin=str(admin_id), key=str(key) if key else None,
            platform=key is not None,
        ),
    )  # fmt: skip
    return org, admin_id


@verb(Permission.ORG_READ)
async def get(db: Database, actor: Actor) -> Org:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await orgs.get(tx), "org")


@verb(Permission.ORG_CREATE)
async def list_page(db: Database, actor: Actor, position: Position | None, limit: int) -> Page[Org]:  # noqa: ARG001
    return await orgs.list_all(db, position, limit)


@verb(Permission.ORG_WRITE)
async def update(db: Database, actor: Actor, change: OrgChange, revision: int | None) -> Org:
    settings = _stated(change.settings) if change.settings else None
    async with db.transaction(actor.org_id) as tx:
        org = await orgs.update(tx, revision, change.name, settings)
        if org is None:
            raise Stale(f"The org has changed since revision {revision}.")
        await audit.append_to_org(tx, Fact.of(actor, "org_changed", name=change.name, settings=settings))
    return org


def _stated(settings: OrgSettings | OrgSettingsChange) -> dict[str, Any]:
    """Without what nobody said anything about."""
    return {name: value for name, value in asdict(settings).items() if value is not None}

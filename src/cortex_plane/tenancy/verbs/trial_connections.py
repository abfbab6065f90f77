"""Connections to the emulators of `cortex up`, on which people try channels without an account at a vendor.

Only `cortex up` makes them, in the org of its owner, and only while it runs on this machine does a plane serve them: any other process
disables them when it starts. People on them are members who link themselves from their browser, to a sender that nobody else uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify import store as notify_store
from cortex_plane.notify.model.channels import ConnectionIdentity
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model import identities
from cortex_plane.tenancy.model.access import Actor, Permission, scheduler_actor
from cortex_plane.tenancy.store import SealedConnection, queries
from cortex_plane.tenancy.verbs import access, frame
from cortex_plane.tenancy.verbs.connections import ONLY_MEMBERS, find_agent, note_set_up, prove_mapping, require_room
from cortex_plane.tenancy.verbs.served_channels import EMULATED

OVER = "Its emulator runs only under `cortex up`."


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialConnection:
    """What an emulator and its connection share."""

    id: UUID
    channel_type: str
    name: str
    config: Mapping[str, str]
    secrets: Mapping[str, str]


async def find_trial_connection(db: Database, actor: Actor, channel_type: str) -> TrialConnection | None:
    async with db.transaction(actor.org_id) as tx:
        row = await tx.row(queries.find_trial_connection, channel_type)
        if row is None:
            return None
        connection = SealedConnection(**row)
        secrets = tenancy_store.open_secret(db.vault, tx.org, connection.id, connection.sealed)
    return TrialConnection(
        id=connection.id, channel_type=channel_type, name=connection.name, config=connection.config, secrets=secrets
    )


@frame.verb(Permission.CONNECTION_WRITE)
async def store_trial_connection(
    db: Database, actor: Actor, trial: TrialConnection, identity: ConnectionIdentity, agent: str
) -> None:
    """Create it, or bring it up to date: emulators have another address after every start. It is served from now on, unless somebody
    disabled it."""
    config = {**trial.config, **identity.config, EMULATED: "yes"}
    secrets = {**trial.secrets, **identity.secrets}
    # There is nothing to do at a vendor.
    shown = replace(identity, to_do=())
    async with db.transaction(actor.org_id) as tx:
        before = await tenancy_store.lock_connection(tx, trial.id)
        sealed = await tenancy_store.seal_secret(tx, db, trial.id, secrets)
        if before is None:
            agent_id = await find_agent(tx, agent)
            await tenancy_store.insert_connection(
                tx, trial.id, trial.channel_type, trial.name, config, sealed, agent_id, shown
            )
            await note_set_up(tx, actor, trial.id)
            action = "connection_created"
        else:
            await tx.rows(queries.renew_trial_connection, trial.id, config, sealed, OVER)
            action = "connection_changed"
        await tx.rows(notify_store.queries.repeat_open_cards, trial.id)
        await frame.record(
            tx, actor, action, connection=trial.id, channel_type=trial.channel_type, name=trial.name, emulated=True
        )


async def end_trial_connections(db: Database) -> int:
    """Disable all of them, in every org. Returns how many were served until now."""
    rows = await db.call("find_trial_connections", None)
    for row in rows:
        async with db.transaction(row["org_id"]) as tx:
            name = await tx.value(notify_store.queries.disable_connection, row["id"], OVER)
            plane = scheduler_actor(row["org_id"], UUID(int=0), "plane")
            await frame.record(tx, plane, "connection_disabled", connection=row["id"], name=name, reason=OVER)
    return len(rows)


async def list_trial_members(db: Database, actor: Actor, id: UUID) -> list[tuple[str, str]]:
    """The sender and the name of everybody who linked themselves."""
    async with db.transaction(actor.org_id) as tx:
        return [(row["sender"], row["name"]) for row in await tx.rows(queries.list_trial_members, id)]


@frame.transaction_verb(Permission.IDENTITY_LINK)
async def link_trial_sender(tx: Transaction, actor: Actor, id: UUID, sender: str) -> None:
    """The caller is this sender from now on. Nobody else can be: the emulator lets a person act only as themselves. Doing it twice
    changes nothing."""
    member_id = access.require_member(actor, ONLY_MEMBERS)
    connection = frame.require_found(await tenancy_store.lock_connection(tx, id), "connection")
    if EMULATED not in connection.config or connection.disabled_at is not None:
        raise Conflict(
            "This connection is none to an emulator, or its emulator does not run.",
            code="trial_over", hint="Link this channel with a code: `cortex user link`.",
        )  # fmt: skip
    await tx.rows(queries.claim_one, id, sender)
    claims = await tenancy_store.claims(tx, id, sender)
    guest, mine = identities.displaced(claims, member_id), identities.own(claims, member_id)
    if mine is not None and mine.verified_at is not None:
        return
    if mine is None:
        await require_room(tx, member_id)
    mapping_id = await prove_mapping(tx, id, member_id, sender, mine.id if mine else None, guest)
    await frame.record(
        tx, actor, "identity_linked", member=member_id, mapping=mapping_id, connection=id, address=sender,
        instead_of=guest.id if guest else None, emulated=True,
    )  # fmt: skip


def new_trial(channel_type: str, name: str) -> TrialConnection:
    return TrialConnection(id=new_id(), channel_type=channel_type, name=name, config={}, secrets={})

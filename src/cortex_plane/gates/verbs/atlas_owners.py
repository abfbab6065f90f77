"""Whose an atlas is: who retires its versions, who hands it over, and what waits for whom."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.db.database import Transaction
from cortex_plane.gates import store as gates_store
from cortex_plane.gates.model import atlases as atlas_model
from cortex_plane.gates.store import queries
from cortex_plane.kernel.errors import Forbidden, InvalidInput
from cortex_plane.policies.model.changes import ChangeAction
from cortex_plane.policies.verbs.changes import cancel_overtaken
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import frame
from cortex_plane.tenancy.verbs.frame import require_found


async def cancel_proposals(
    tx: Transaction, actor: Actor, atlas_id: str, reason: str, *, besides: UUID | None = None
) -> list[Fact]:
    return await cancel_overtaken(tx, actor, ChangeAction.PUBLISH_ATLAS, atlas_id, reason, besides=besides)


async def require_owner(tx: Transaction, actor: Actor, atlas_id: str, does: str) -> None:
    if Role.ADMIN in actor.roles or (await gates_store.get_ownership(tx, atlas_id, actor)).is_own:
        return
    raise Forbidden(
        f"The atlas {atlas_id} belongs to somebody else, and only its owner or an admin {does}.",
        code="not_your_atlas",
        hint=f"`cortex atlas show {atlas_id}` says whom it belongs to. A new version may be proposed by any steward.",
    )


@frame.transaction_verb(Permission.ATLAS_WRITE)
async def hand_over_atlas(
    tx: Transaction, actor: Actor, atlas_id: str, handover: atlas_model.AtlasHandover
) -> atlas_model.AtlasSummary:
    """From now on it belongs to another member or team. For its owner and admins. What waits for the owner before is cancelled."""
    await tx.rows(queries.lock_atlas, tx.org, atlas_id)
    require_found(await gates_store.get_atlas(tx, atlas_id), "atlas")
    await require_owner(tx, actor, atlas_id, "hands it over")
    owner, team = handover.member_id, None
    if handover.team is not None:
        team = require_found(await tenancy_store.get_team(tx, handover.team), "team").id
    elif not require_found(await tx.value(queries.could_own, owner), "member"):
        raise InvalidInput(
            "This member could not publish a version of it.",
            hint="Name an active member who is a steward or an admin: `cortex member list`.",
            field="member_id",
        )
    await tx.rows(queries.hand_over_atlas, tx.org, atlas_id, owner, team)
    fact = Fact.of(
        actor,
        "atlas_handed_over",
        atlas_id=atlas_id,
        member=str(owner) if owner else None,
        team=str(team) if team else None,
    )
    await proof_store.append_to_org(
        tx, fact, *await cancel_proposals(tx, actor, atlas_id, "the atlas was handed over meanwhile")
    )
    return require_found(await gates_store.get_atlas(tx, atlas_id), "atlas")

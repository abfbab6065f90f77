"""Publishing, retiring, listing, comparing and handing over atlases."""

from __future__ import annotations

from dataclasses import asdict
from uuid import UUID

import orjson

from cortex_plane.db.database import Database, Transaction, many
from cortex_plane.gates import store as gates_store
from cortex_plane.gates.files.atlases import Read, difference, read
from cortex_plane.gates.model import atlases as atlas_model
from cortex_plane.gates.store import queries
from cortex_plane.gates.verbs.atlas_cache import manifest_of, read_back
from cortex_plane.gates.verbs.atlas_queries import compare_draft
from cortex_plane.kernel.errors import Conflict, Forbidden, InvalidInput, Stale
from cortex_plane.kernel.fields import to_json
from cortex_plane.kernel.shares import reading
from cortex_plane.policies.model.policies import Approvers, Author, ChangeAction, ChangeDraft, StoredChange
from cortex_plane.policies.verbs.changes import cancel_overtaken, overtaken, propose
from cortex_plane.proof import store as proof_store
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, Fact, Permission
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import frame
from cortex_plane.tenancy.verbs.frame import require_found, verb

MAX_AGENTS = 100


@verb(Permission.ATLAS_WRITE)
async def publish_atlas(db: Database, actor: Actor, file: atlas_model.AtlasFile) -> atlas_model.Published:
    """A new version, which new sessions are bound to from now on; of somebody else's atlas, once they or an admin approve it. The same
    content again is answered as it was."""
    # A large file takes seconds to read: nobody waits for it with a lock, and nothing else stands still.
    draft = await reading.run(read, file.manifest, name=file.name)
    atlas = draft.atlas
    async with db.transaction(actor.org_id) as tx:
        await tx.rows(queries.lock_atlas, tx.org, atlas.atlas_id)
        if (earlier := await gates_store.get_atlas_version(tx, atlas.atlas_id, atlas.version)) is not None:
            return atlas_model.Published(version=_same(earlier, atlas), created=False, warnings=earlier.warnings)
        if (await gates_store.get_ownership(tx, atlas.atlas_id, actor)).is_own:
            author = Author(actor.name, actor.identity)
            version, facts = await _publish(tx, actor, author, file.manifest, draft)
            await proof_store.append_to_org(tx, *facts)
            return atlas_model.Published(version=version, created=True, warnings=version.warnings)
    return await _propose(db, actor, file, draft)


async def _publish(
    tx: Transaction, actor: Actor, author: Author, source: str, draft: Read, *, approval_id: UUID | None = None
) -> tuple[atlas_model.NumberedVersion, list[Fact]]:
    """Under the atlas's lock. What others proposed on top of the version before is over."""
    atlas = draft.atlas
    version = await _insert_version(tx, author, source, draft)
    approved = {} if approval_id is None else {"author": author.name, "approval": str(approval_id)}
    published = Fact.of(
        actor, "atlas_published", atlas_id=atlas.atlas_id, version=atlas.version, number=version.number, digest=atlas.digest,
        gates=len(atlas.gates), steward=atlas.steward.id, **approved,
    )  # fmt: skip
    reason = f"version {atlas.version} was published meanwhile"
    return version, [published, *await cancel_proposals(tx, actor, atlas.atlas_id, reason, besides=approval_id)]


async def _propose(db: Database, actor: Actor, file: atlas_model.AtlasFile, draft: Read) -> atlas_model.Published:
    """A version of somebody else's atlas: it waits for them or for an admin, who see how it differs and what it would have changed."""
    atlas = draft.atlas
    with db.heavy_read(actor.org_id):
        base, diff, effect = await compare_draft(db, actor, draft)
    arguments = {
        "atlas_id": atlas.atlas_id, "version": atlas.version, "digest": atlas.digest, "name": atlas.name, "gates": len(atlas.gates),
        "instead_of": base, "diff": orjson.loads(to_json(diff)), "effect": orjson.loads(to_json(effect)),
    }  # fmt: skip
    async with db.transaction(actor.org_id) as tx:
        await tx.rows(queries.lock_atlas, tx.org, atlas.atlas_id)
        summary = require_found(await gates_store.get_atlas(tx, atlas.atlas_id), "atlas")
        if summary.holds != base:
            raise Stale(
                f"Another version of {atlas.atlas_id} holds by now.",
                hint="Compare your file with it, and publish again.",
            )
        ownership = await gates_store.get_ownership(tx, atlas.atlas_id, actor)
        warnings = [*draft.warnings, *await _odd_here(tx, atlas)]
        owner = summary.owner or (f"the team {summary.team}" if summary.team else "nobody who is known")
        waits = await propose(tx, actor, ChangeDraft(
            action=ChangeAction.PUBLISH_ATLAS, target=atlas.atlas_id, summary=f"Publish version {atlas.version} of {atlas.atlas_id}",
            question=f"May this version of {atlas.atlas_id} hold? The atlas belongs to {owner}.",
            rule=f"owner:{atlas.atlas_id}", approvers=Approvers(roles=(Role.ADMIN,), members=tuple(ownership.stewards)),
            arguments=arguments, source=file.manifest, name=file.name, digest=atlas.digest, base=base,
        ))  # fmt: skip
        version = atlas_model.NumberedVersion(
            atlas_id=atlas.atlas_id, version=atlas.version, digest=atlas.digest, name=atlas.name, description=atlas.description,
            gates=len(atlas.gates), warnings=warnings, published_by=actor.name, published_at=effect.until, retired_at=None,
            retired_by=None, number=summary.versions + 1, holds=False, access=atlas.steward.access,
            api_keys=list(atlas.steward.api_keys),
        )  # fmt: skip
    return atlas_model.Published(version=version, created=False, warnings=warnings, waits=waits)


async def publish_proposed(
    tx: Transaction, actor: Actor, approval_id: UUID, change: StoredChange, draft: Read
) -> list[Fact]:
    """Somebody approved it: it holds from now on. Under the atlas's lock. Raises ``Conflict`` where another version holds by now."""
    atlas = draft.atlas
    # Who was asked may have lost the role, or the atlas, since.
    await require_owner(tx, actor, atlas.atlas_id, "approves its versions")
    summary = require_found(await gates_store.get_atlas(tx, atlas.atlas_id), "atlas")
    if (
        summary.holds != change.base
        or await gates_store.get_atlas_version(tx, atlas.atlas_id, atlas.version) is not None
    ):
        raise overtaken(f"The versions of {atlas.atlas_id} changed")
    author = Author(change.proposed_by, change.proposed_by_id)
    _, facts = await _publish(tx, actor, author, change.source, draft, approval_id=approval_id)
    return facts


async def _insert_version(tx: Transaction, author: Author, source: str, draft: Read) -> atlas_model.NumberedVersion:
    """Under the atlas's lock: its number is one more than the last."""
    atlas, steward = draft.atlas, draft.atlas.steward
    warnings = [*draft.warnings, *await _odd_here(tx, atlas)]
    await tx.rows(
        queries.insert_atlas_version, tx.org, atlas.atlas_id, atlas.version, atlas.digest, atlas.name, atlas.description,
        len(atlas.gates), source, draft.manifest.decode(), warnings, steward.access, list(steward.api_keys),
        author.name, author.identity,
    )  # fmt: skip
    version = require_found(await gates_store.get_atlas_version(tx, atlas.atlas_id, atlas.version), "atlas_version")
    await gates_store.sign_atlas_version(tx, version)
    return version


def _same(earlier: atlas_model.NumberedVersion, atlas: atlas_model.Atlas) -> atlas_model.NumberedVersion:
    if earlier.digest != atlas.digest:
        raise Conflict(
            f"Version {atlas.version} of {atlas.atlas_id} was published with other content, and versions do not change.",
            code="atlas_version_taken",
            hint=f"Raise `version`; `cortex atlas get {atlas.atlas_id} --version {atlas.version} --source` prints what is there.",
        )
    return earlier


async def _odd_here(tx: Transaction, atlas: atlas_model.Atlas) -> list[str]:
    """What is wrong with it in this org, though not in itself."""
    steward, odd = atlas.steward, []
    if steward.webhook is not None and not await tx.value(queries.has_webhook, steward.webhook):
        odd.append(
            f"steward.notifications: no enabled webhook connection of the org has the address {steward.webhook}, so nothing"
            " is sent; make one with `cortex connection create NAME --channel webhook --url …`"
        )
    questions = (question for gate in atlas.gates for question in gate.questions)
    validators = dict.fromkeys(name for question in questions if (name := question.validation.connection) is not None)
    for name in await gates_store.missing_webhooks(tx, list(validators)) if validators else ():
        odd.append(
            f"custom_validator: the org has no enabled webhook connection `{name}`, so no answer is accepted; make one with"
            f" `cortex connection create {name} --channel webhook --url …`"
        )
    patterns = await gates_store.unmatched_keys(tx, steward.api_keys) if steward.api_keys else []
    if patterns:
        more = f" (and {len(patterns) - 1} more)" if len(patterns) > 1 else ""
        odd.append(f"steward.access.api_keys: no key of the org has a name like {patterns[0]}{more}")
    return odd


@frame.transaction_verb(Permission.ATLAS_WRITE)
async def retire_atlas(tx: Transaction, actor: Actor, atlas_id: str, version: str) -> atlas_model.Retired:
    """No new session is bound to it any more; those that are go on with it. Retiring twice changes nothing. For its owner and admins."""
    await tx.rows(queries.lock_atlas, tx.org, atlas_id)
    require_found(await gates_store.get_atlas_version(tx, atlas_id, version), "atlas_version")
    await require_owner(tx, actor, atlas_id, "retires its versions")
    is_first = await tx.value(queries.retire_atlas, atlas_id, version, actor.name) is not None
    after = require_found(await gates_store.get_atlas_version(tx, atlas_id, version), "atlas_version")
    holds = require_found(await gates_store.get_atlas(tx, atlas_id), "atlas").holds
    agents = await tx.rows(queries.agents_naming, atlas_id, MAX_AGENTS) if holds is None else []
    if is_first:
        await gates_store.sign_atlas_version(tx, after)
        fact = Fact.of(actor, "atlas_retired", atlas_id=atlas_id, version=version, digest=after.digest, holds=holds)
        reason = f"version {version} was retired meanwhile"
        await proof_store.append_to_org(tx, fact, *await cancel_proposals(tx, actor, atlas_id, reason))
    return atlas_model.Retired(version=after, changed=is_first, holds=holds, agents=[row["slug"] for row in agents])


list_atlases = frame.read_verb(Permission.ATLAS_READ, gates_store.list_atlases)
get_atlas = frame.get_verb(Permission.ATLAS_READ, gates_store.get_atlas, "atlas")


@frame.transaction_verb(Permission.ATLAS_READ)
async def list_atlas_versions(
    tx: Transaction, _: Actor, atlas_id: str, below: int | None, limit: int
) -> list[atlas_model.NumberedVersion]:
    """Newest first."""
    require_found(await gates_store.get_atlas(tx, atlas_id), "atlas")
    return many(atlas_model.NumberedVersion, await tx.rows(queries.list_atlas_versions, atlas_id, below, limit))


@verb(Permission.ATLAS_READ)
async def get_atlas_version(
    db: Database, actor: Actor, atlas_id: str, version: str, *, source: bool = False
) -> atlas_model.AtlasVersionDetails:
    """One version; with ``source`` the file as it was published."""
    async with db.transaction(actor.org_id, snapshot=True) as tx:
        row = require_found(await gates_store.get_atlas_version(tx, atlas_id, version), "atlas_version")
        return atlas_model.AtlasVersionDetails(
            **asdict(row),
            sessions=await tx.value(queries.count_atlas_sessions, atlas_id, version, atlas_model.MAX_COUNTED),
            source=await tx.value(queries.get_atlas_source, atlas_id, version) if source else None,
        )


@verb(Permission.ATLAS_READ)
async def diff_atlases(db: Database, actor: Actor, atlas_id: str, before: str, after: str) -> atlas_model.AtlasDiff:
    """What the second version has otherwise than the first."""
    async with db.transaction(actor.org_id, snapshot=True) as tx:
        digests = [
            require_found(await gates_store.get_atlas_version(tx, atlas_id, version), "atlas_version").digest
            for version in (before, after)
        ]
        manifests = [await manifest_of(tx, atlas_id, version) for version in (before, after)]
    names = [f"{atlas_id} {version}" for version in (before, after)]
    return await reading.run(lambda: difference(*map(read_back, manifests, digests, names)))


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

"""Publishing, retiring, listing and comparing atlases."""

from __future__ import annotations

from dataclasses import asdict

from cortex_plane.db.database import Database, Transaction, many
from cortex_plane.gates import store as gates_store
from cortex_plane.gates.files.atlases import Read, difference, read
from cortex_plane.gates.model import atlases as atlas_model
from cortex_plane.gates.rules.manifest_queries import rules_of
from cortex_plane.gates.store import queries
from cortex_plane.gates.verbs.atlas_cache import manifest_of, read_back
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.shares import loading, reading
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs import frame
from cortex_plane.tenancy.verbs.frame import require_found, verb

MAX_AGENTS = 100


@verb(Permission.ATLAS_WRITE)
async def publish_atlas(db: Database, actor: Actor, file: atlas_model.AtlasFile) -> atlas_model.Published:
    """A new version, which new sessions are bound to from now on. The same content again is answered as it was."""
    # A large file takes seconds to read: nobody waits for it with a lock, and nothing else stands still.
    draft = await reading.run(read, file.manifest, name=file.name)
    atlas = draft.atlas
    async with db.transaction(actor.org_id) as tx:
        await tx.rows(queries.lock_atlas, tx.org, atlas.atlas_id)
        if (earlier := await gates_store.get_atlas_version(tx, atlas.atlas_id, atlas.version)) is not None:
            return atlas_model.Published(version=_same(earlier, atlas), created=False, warnings=earlier.warnings)
        version = await _insert_version(tx, actor, file, draft)
        await frame.record(
            tx, actor, "atlas_published", atlas_id=atlas.atlas_id, version=atlas.version, number=version.number,
            digest=atlas.digest, gates=len(atlas.gates), steward=atlas.steward.id,
        )  # fmt: skip
    return atlas_model.Published(version=version, created=True, warnings=version.warnings)


async def _insert_version(
    tx: Transaction, actor: Actor, file: atlas_model.AtlasFile, draft: Read
) -> atlas_model.NumberedVersion:
    """Under the atlas's lock: its number is one more than the last."""
    atlas, steward = draft.atlas, draft.atlas.steward
    warnings = [*draft.warnings, *await _odd_here(tx, atlas)]
    await tx.rows(
        queries.insert_atlas_version, tx.org, atlas.atlas_id, atlas.version, atlas.digest, atlas.name, atlas.description,
        len(atlas.gates), file.manifest, draft.manifest.decode(), warnings, steward.access, list(steward.api_keys),
        actor.name, actor.identity,
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
    """No new session is bound to it any more; those that are go on with it. Retiring twice changes nothing."""
    await tx.rows(queries.lock_atlas, tx.org, atlas_id)
    require_found(await gates_store.get_atlas_version(tx, atlas_id, version), "atlas_version")
    is_first = await tx.value(queries.retire_atlas, atlas_id, version, actor.name) is not None
    after = require_found(await gates_store.get_atlas_version(tx, atlas_id, version), "atlas_version")
    holds = require_found(await gates_store.get_atlas(tx, atlas_id), "atlas").holds
    agents = await tx.rows(queries.agents_naming, atlas_id, MAX_AGENTS) if holds is None else []
    if is_first:
        await gates_store.sign_atlas_version(tx, after)
        await frame.record(
            tx, actor, "atlas_retired", atlas_id=atlas_id, version=version, digest=after.digest, holds=holds
        )
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


@verb(Permission.ATLAS_READ)
async def query_atlas(
    db: Database, actor: Actor, atlas_id: str, version: str, *, action: str | None = None, capability: str | None = None
) -> atlas_model.AtlasRules:
    """Which gates, capabilities and policies of a version concern an action, or a capability."""
    atlas = await atlas_contents(db, actor, atlas_id, version)
    return await loading.run(rules_of, atlas, action, capability)


@verb(Permission.ATLAS_READ)
async def atlas_contents(db: Database, actor: Actor, atlas_id: str, version: str) -> atlas_model.Atlas:
    """Its gates, questions, contexts, capabilities, policies and actions, as sessions are held to them."""
    async with db.transaction(actor.org_id) as tx:
        row = require_found(await gates_store.get_atlas_version(tx, atlas_id, version), "atlas_version")
        manifest = await manifest_of(tx, row.atlas_id, row.version)
    # Whoever reads old versions does not push out of the book what sessions are held to now.
    return await loading.run(read_back, manifest, row.digest, f"{row.atlas_id} {row.version}")

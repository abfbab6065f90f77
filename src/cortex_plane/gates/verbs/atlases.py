"""Publishing, retiring, listing and comparing atlases."""

from __future__ import annotations

from dataclasses import asdict

from cortex_plane.db.database import Database, Transaction
from cortex_plane.gates import store as gates_store
from cortex_plane.gates.files.atlases import Read, difference, read
from cortex_plane.gates.model import atlases as atlas_model
from cortex_plane.gates.verbs.atlas_cache import manifest_of, read_back
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.shares import loading, reading
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb

SHOWN_AGENTS = 100


@verb(Permission.ATLAS_WRITE)
async def publish_atlas(db: Database, actor: Actor, file: atlas_model.AtlasFile) -> atlas_model.Published:
    """A new version, which new sessions are bound to from now on. The same content again is answered as it was."""
    # A large file takes seconds to read: nobody waits for it with a lock, and nothing else stands still.
    found_in = await reading.run(read, file.manifest, name=file.name)
    atlas = found_in.atlas
    async with db.transaction(actor.org_id) as tx:
        await gates_store.lock_atlas(tx, atlas.atlas_id)
        earlier = await gates_store.get_atlas_version(tx, atlas.atlas_id, atlas.version)
        if earlier is not None:
            return atlas_model.Published(version=_same(earlier, atlas), created=False, warnings=earlier.warnings)
        version = await _insert_version(tx, actor, file, found_in)
        await proof_store.append_to_org(
            tx,
            Fact.of(
                actor, "atlas_published", atlas_id=atlas.atlas_id, version=atlas.version, number=version.number,
                digest=atlas.digest, gates=len(atlas.gates), steward=atlas.steward.id,
            ),
        )  # fmt: skip
    return atlas_model.Published(version=version, created=True, warnings=version.warnings)


async def _insert_version(
    tx: Transaction, actor: Actor, file: atlas_model.AtlasFile, reading: Read
) -> atlas_model.NumberedVersion:
    atlas = reading.atlas
    warnings = [*reading.warnings, *await _odd_here(tx, atlas)]
    await gates_store.insert_atlas_version(
        tx, atlas, file.manifest, reading.manifest.decode(), warnings, actor.name, actor.identity
    )
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
    if steward.webhook is not None and not await gates_store.has_webhook(tx, steward.webhook):
        odd.append(
            f"steward.notifications: no enabled webhook connection of the org has the address {steward.webhook}, so nothing"
            " is sent; make one with `cortex connection create NAME --channel webhook --url …`"
        )
    patterns = await gates_store.unmatched_keys(tx, steward.api_keys) if steward.api_keys else []
    if patterns:
        more = f" (and {len(patterns) - 1} more)" if len(patterns) > 1 else ""
        odd.append(f"steward.access.api_keys: no key of the org has a name like {patterns[0]}{more}")
    return odd


@verb(Permission.ATLAS_WRITE)
async def retire_atlas(db: Database, actor: Actor, atlas_id: str, version: str) -> atlas_model.Retired:
    """No new session is bound to it any more; those that are go on with it. Retiring twice changes nothing."""
    async with db.transaction(actor.org_id) as tx:
        await gates_store.lock_atlas(tx, atlas_id)
        before = require_found(await gates_store.get_atlas_version(tx, atlas_id, version), "atlas_version")
        changed = await gates_store.retire_atlas(tx, atlas_id, version, actor.name)
        after = require_found(await gates_store.get_atlas_version(tx, atlas_id, version), "atlas_version")
        holds = require_found(await gates_store.get_atlas(tx, atlas_id), "atlas").holds
        agents = [] if holds is not None else await gates_store.agents_naming(tx, atlas_id, SHOWN_AGENTS)
        if changed:
            await gates_store.sign_atlas_version(tx, after)
            await proof_store.append_to_org(
                tx,
                Fact.of(
                    actor, "atlas_retired", atlas_id=atlas_id, version=version, digest=before.digest,
                    holds=holds,
                ),
            )  # fmt: skip
    return atlas_model.Retired(version=after, changed=changed, holds=holds, agents=agents)


@verb(Permission.ATLAS_READ)
async def list_atlases(db: Database, actor: Actor, above: str | None, limit: int) -> list[atlas_model.AtlasSummary]:
    """By id."""
    async with db.transaction(actor.org_id) as tx:
        return await gates_store.list_atlases(tx, above, limit)


@verb(Permission.ATLAS_READ)
async def get_atlas(db: Database, actor: Actor, atlas_id: str) -> atlas_model.AtlasSummary:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await gates_store.get_atlas(tx, atlas_id), "atlas")


@verb(Permission.ATLAS_READ)
async def list_atlas_versions(
    db: Database, actor: Actor, atlas_id: str, below: int | None, limit: int
) -> list[atlas_model.NumberedVersion]:
    """Newest first."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await gates_store.get_atlas(tx, atlas_id), "atlas")
        return await gates_store.list_atlas_versions(tx, atlas_id, below, limit)


@verb(Permission.ATLAS_READ)
async def get_atlas_version(
    db: Database, actor: Actor, atlas_id: str, version: str, *, source: bool = False
) -> atlas_model.AtlasVersionDetails:
    """One version; with ``source`` the file as it was published."""
    async with db.transaction(actor.org_id, snapshot=True) as tx:
        row = require_found(await gates_store.get_atlas_version(tx, atlas_id, version), "atlas_version")
        return atlas_model.AtlasVersionDetails(
            **asdict(row),
            sessions=await gates_store.count_atlas_sessions(tx, atlas_id, version, atlas_model.MAX_COUNTED),
            source=await gates_store.get_atlas_source(tx, atlas_id, version) if source else None,
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
    return await reading.run(_difference, manifests, digests, names)


def _difference(manifests: list[bytes], digests: list[str], names: list[str]) -> atlas_model.AtlasDiff:
    first, second = (read_back(*each) for each in zip(manifests, digests, names, strict=True))
    return difference(first, second)


@verb(Permission.ATLAS_READ)
async def atlas_contents(db: Database, actor: Actor, atlas_id: str, version: str) -> atlas_model.Atlas:
    """Its gates, questions, contexts, capabilities, policies and actions, as sessions are held to them."""
    async with db.transaction(actor.org_id) as tx:
        row = require_found(await gates_store.get_atlas_version(tx, atlas_id, version), "atlas_version")
        manifest = await manifest_of(tx, row.atlas_id, row.version)
    # Whoever reads old versions does not push out of the book what sessions are held to now.
    name = f"{row.atlas_id} {row.version}"
    return await loading.run(read_back, manifest, row.digest, name)

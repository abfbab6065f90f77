"""The platform's policies, which limit every org: applied as a file, with a platform key."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace

from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import Stale
from cortex_plane.policies import store as policies_store
from cortex_plane.policies.files import merge_rows, place_for_platform, write
from cortex_plane.policies.model import versions
from cortex_plane.policies.store import queries
from cortex_plane.policies.verbs.policies import read_file
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor, ActorKind, Permission
from cortex_plane.tenancy.verbs.frame import transaction_verb, verb


@verb(Permission.PLATFORM_POLICY_WRITE)
async def apply_platform_policies(db: Database, actor: Actor, file: versions.PolicyFile) -> versions.Applied:
    """The platform's rows become those of the file, all or none. The trail of every org says so: they hold in each of them."""
    draft = await read_file(file.text)
    rows, warnings = await asyncio.to_thread(place_for_platform, draft)
    async with db.transaction(actor.org_id) as tx:
        version: int = await tx.value(queries.lock_platform_policies)
        if file.expected_version is not None and file.expected_version != version:
            raise Stale(
                f"Version {version} of the platform's policies holds by now; you expected {file.expected_version}.",
                hint="Look at what changed with `cortex platform policy show`, then apply your file again.",
                current_version=version,
            )
        before, text = versions.of_platform(await policies_store.platform_rows(tx)), file.text
        if file.merge:
            rows = versions.of_platform([placed.row for placed in merge_rows(before, rows)])
            text = write(rows)
        diff = await asyncio.to_thread(versions.difference, before, rows)
        differs = bool(diff.added or diff.removed or diff.changed)
        if differs and not file.dry_run:
            version = await tx.value(queries.replace_platform_policies, [versions.placed_as_json(row) for row in rows])
            # Whoever holds a platform key is nobody in the other orgs.
            platform = replace(actor, kind=ActorKind.PLATFORM, user_account_id=None)
            fact = Fact.of(
                platform, "platform_policy_applied", version=version, digest=hashlib.sha256(text.encode()).hexdigest(), rows=len(rows), added=diff.added,
                removed=diff.removed, changed=diff.changed, note=file.note,
            )  # fmt: skip
            await proof_store.append_to_every_org(tx, fact)
    return versions.Applied(
        version=version, changed=differs, dry_run=file.dry_run, rows=len(rows), diff=diff, warnings=warnings
    )


@transaction_verb(Permission.PLATFORM_POLICY_WRITE)
async def get_platform_policies(tx: Transaction, _: Actor) -> versions.PlatformPolicies:
    version = int((await policies_store.current_version(tx) or "").split(".")[1])
    return versions.PlatformPolicies(version=version, rows=await policies_store.platform_rows(tx))

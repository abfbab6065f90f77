"""The credential key of a plane: rows from before it are converted once, and a new master key seals it anew."""

from __future__ import annotations

from uuid import UUID

import structlog

from cortex_plane.db.database import CREDENTIAL_KEY, NOBODY, Database, Transaction
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.errors import Conflict
from cortex_plane.policies.store import policies
from cortex_plane.proof.model.audit import Fact
from cortex_plane.proof.store import audit
from cortex_plane.tenancy.model.access import scheduler_actor
from cortex_plane.tenancy.store import credential_keys, orgs

log = structlog.get_logger()


async def convert(db: Database) -> int:
    """Give every row from before the credential key its lookup and MAC, org by org; how many. Only once in the life of a plane:
    what has none afterwards is worth nothing. Several processes may start at the same moment."""
    _ = db.credential_key  # without it nothing can be converted, and nobody can log in
    if await credential_keys.is_converted(db):
        return 0
    converted, position = 0, None
    while True:
        page = await orgs.list_all(db, position, 100)
        for org in page.items:
            converted += await _convert_org(db, org.id)
        if page.next is None:
            break
        position = page.next
    await credential_keys.set_converted(db)
    log.info("credentials converted", rows=converted)
    return converted


async def _convert_org(db: Database, org_id: UUID) -> int:
    total = 0
    while True:
        try:
            async with db.transaction(org_id) as tx:
                converted = await credential_keys.convert_some(tx) + await _convert_policies(tx)
                if not converted:
                    return total
                plane = scheduler_actor(org_id, UUID(int=0), "plane")
                await audit.append_to_org(tx, Fact.of(plane, "credentials_converted", rows=converted))
        except Conflict as error:
            # Another process was faster, with all of them.
            if error.code == "credentials_converted":
                return total
            raise
        total += converted


async def _convert_policies(tx: Transaction) -> int:
    versions = await credential_keys.unsigned_policies(tx)
    for version in versions:
        await policies.sign_version(tx, version)
    unsigned = await credential_keys.unsigned_policy_version(tx)
    if unsigned is not None:
        await policies.set_version(tx, unsigned)
    return len(versions) + (unsigned is not None)


async def reseal(db: Database, vault: Vault) -> None:
    """Seal the key for the vault of a new master key. The key itself stays, so that everybody stays logged in."""
    opened = db.vault.open(NOBODY, CREDENTIAL_KEY, await credential_keys.sealed(db))
    await credential_keys.reseal(db, vault.seal(NOBODY, CREDENTIAL_KEY, opened))

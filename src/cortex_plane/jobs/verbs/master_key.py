"""The master key that a database is used with, and how a new one takes its place.

A rotation begins with one commit: the new fingerprint, the old key sealed with the new one, and the credential key sealed anew. From then on
only processes with the new key start. Then it goes from org to org: in one transaction the secrets of an org and its first checkpoints, in
more of them the other checkpoints. The row `plane_key` says how far it is and is locked by each of these transactions, so any number of
processes may work on it, and a process that dies leaves the rest to the next one that starts.

Processes with the old key must not write beside it. `Database.seal` and the registration of a worker hold a share lock on that row, and a
rotation begins only when no worker is left that could still write checkpoints.
"""

from __future__ import annotations

import hmac
from collections import Counter
from dataclasses import dataclass, replace
from uuid import UUID

import structlog

from cortex_plane.db.database import CREDENTIAL_KEY, NOBODY, Database, Transaction, after, wrong_master_key
from cortex_plane.db.vault import Vault
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.checkpoints import renew_mac
from cortex_plane.jobs.store import PlaneKey
from cortex_plane.jobs.verbs.workers import ORPHANS_AT_ONCE, adopt_jobs
from cortex_plane.kernel.errors import SetupError
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.pages import After, Position
from cortex_plane.proof import store as proof_store
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import scheduler_actor
from cortex_plane.tenancy.model.orgs import Org
from cortex_plane.tenancy.store import SealedValue, queries
from cortex_plane.tenancy.verbs.frame import every_org, record

log = structlog.get_logger()

CHECKPOINTS_AT_ONCE = 50
"""A checkpoint may have a mebibyte."""
FAULTS_NAMED = 10
ORGS_AT_ONCE = 100


async def require_key(db: Database, vault: Vault) -> None:
    """Refuse a master key that this database does not know. The first key that a database meets becomes its own."""
    async with db.transaction(NOBODY) as tx:
        await tx.rows(jobs_store.queries.remember_plane_key, vault.fingerprint)
        plane_key = await jobs_store.get_plane_key(tx)
    _require(plane_key, vault)


async def require_known_key(db: Database, vault: Vault) -> None:
    """The same for programs that only read: a database without a key refuses none, and one under rotation is not read."""
    plane_key = await read_plane_key(db)
    _require(plane_key, vault)
    if plane_key is not None and plane_key.previous is not None:
        raise _under_rotation()


def _same_key(message: str) -> SetupError:
    return SetupError(message, code="same_master_key", hint="Make one: `openssl rand -hex 32`.")


def _under_rotation() -> SetupError:
    return SetupError(
        "A rotation of the master key is under way, so not every secret and checkpoint can be read.",
        code="rotation_under_way",
        hint="Finish it with `cortex db rotate-key`, or start a process of the plane: that finishes it too.",
    )


def _require(plane_key: PlaneKey | None, vault: Vault) -> None:
    if plane_key is not None and not hmac.compare_digest(plane_key.fingerprint, vault.fingerprint):
        raise wrong_master_key()


async def read_plane_key(db: Database) -> PlaneKey | None:
    async with db.transaction(NOBODY) as tx:
        return await jobs_store.get_plane_key(tx)


@dataclass(frozen=True, slots=True)
class Resealed:
    """How much of a rotation one process did."""

    orgs: int = 0
    secrets: int = 0
    checkpoints: int = 0


async def begin_rotation(db: Database, old: Vault, new: Vault, poison_deaths: int) -> None:
    """The first commit of a rotation. Nothing changes where a secret does not open with the old key, or a worker is left."""
    await require_key(db, old)
    if hmac.compare_digest(old.fingerprint, new.fingerprint):
        raise _same_key("The new master key is the old one.")
    await _require_readable(db, old, new)
    while len(await adopt_jobs(db, new_id(), "rotate-key", poison_deaths)) == ORPHANS_AT_ONCE:
        pass
    async with db.transaction(NOBODY) as tx:
        plane_key = await jobs_store.lock_plane_key(tx)
        _require(plane_key, old)
        if plane_key is not None and plane_key.previous is not None:
            raise _under_rotation()
        await _require_no_worker(tx)
        sealed = await tx.value(queries.sealed_credential_key)
        if sealed is not None:
            anew = new.seal(NOBODY, CREDENTIAL_KEY, old.open(NOBODY, CREDENTIAL_KEY, sealed))
            await tx.rows(queries.reseal_credential_key, anew)
        await tx.rows(jobs_store.queries.begin_rotation, new.fingerprint, new.seal_master_key(NOBODY, old))


async def _require_readable(db: Database, vault: Vault, new: Vault) -> None:
    """A secret that nobody can open could not be sealed anew. A new key that an org had before would look like a replay."""
    faults: list[str] = []
    async for org in every_org(db):
        async with db.transaction(org.id, snapshot=True) as tx:
            values = await tenancy_store.list_sealed_values(tx)
            if await proof_store.was_rotated_to(tx, new.fingerprint):
                raise _same_key("The new master key was used before.")
        unreadable = [value for value in values if _reseal(value, org.id, vault, vault) is None]
        faults += [f"{value.kind} {value.id} of {org.slug}" for value in unreadable]
    if faults:
        more = f" and {len(faults) - FAULTS_NAMED} more" if len(faults) > FAULTS_NAMED else ""
        raise SetupError(
            f"These secrets do not open with the master key: {', '.join(faults[:FAULTS_NAMED])}{more}.",
            code="sealed_unreadable",
            hint="Somebody changed these rows or wrote them by hand. Find out who did, and replace or delete them first.",
        )


async def _require_no_worker(tx: Transaction) -> None:
    """A worker that has only been away registers again before it claims, and is refused there."""
    await tx.rows(jobs_store.queries.forget_ended_workers)
    workers = await jobs_store.list_workers(tx)
    if workers:
        raise SetupError(
            f"These workers run, or died a moment ago: {', '.join(sorted({worker.name for worker in workers})[:10])}.",
            code="workers_running",
            hint="Stop every process of the plane, then run this again. A worker that was killed counts until its lease"
            " ends (CORTEX_ADOPTION_SECONDS).",
        )


async def finish_rotation(db: Database, vault: Vault) -> Resealed | None:
    """Do what is left of a rotation to the key of ``vault``; None where none is under way. Others may do the same at once."""
    total: Resealed | None = None
    while True:
        plane_key = await read_plane_key(db)
        if plane_key is None or plane_key.previous is None:
            return total
        _require(plane_key, vault)
        position = (
            Position(created_at=plane_key.resealed_org_created_at, id=plane_key.resealed_org)
            if plane_key.resealed_org_created_at is not None and plane_key.resealed_org is not None
            else None
        )
        if total is None:
            await _refuse_replay(db, plane_key, position)
        total = total or Resealed()
        page = await tenancy_store.list_orgs(db, position, 1)
        batch = (
            await _reseal_batch(db, plane_key, position, page.items[0], vault)
            if page.items
            else await _end_rotation(db, plane_key)
        )
        total = Resealed(total.orgs + batch.orgs, total.secrets + batch.secrets, total.checkpoints + batch.checkpoints)


async def _refuse_replay(db: Database, plane_key: PlaneKey, position: After) -> None:
    """Whoever has the old key and can write to the database could put the row of a finished rotation back, so that the next process
    seals their secrets with the new key. The trail says which orgs are done."""
    while True:
        page = await tenancy_store.list_orgs(db, position, ORGS_AT_ONCE)
        for org in page.items:
            async with db.transaction(org.id) as tx:
                is_done = await proof_store.was_rotated_to(tx, plane_key.fingerprint)
            # Another process may have finished this org since the row was read; then the row has changed, too.
            if is_done and await read_plane_key(db) == plane_key:
                raise SetupError(
                    f"The rotation to this master key is finished by the trail of {org.slug}, and plane_key says that it is under way.",
                    code="rotation_replayed",
                    hint="Somebody wrote to the table plane_key. Find out who did, and look for changed secrets and checkpoints.",
                )
        if page.next is None:
            return
        position = page.next


async def _end_rotation(db: Database, plane_key: PlaneKey) -> Resealed:
    async with db.transaction(NOBODY) as tx:
        if await jobs_store.lock_plane_key(tx) == plane_key:
            await tx.rows(jobs_store.queries.end_rotation)
            log.info("master key rotated")
    return Resealed()


async def _reseal_batch(db: Database, plane_key: PlaneKey, position: After, org: Org, new: Vault) -> Resealed:
    """One transaction: the secrets of an org where they are its turn, and some of its checkpoints."""
    async with db.transaction(org.id) as tx:
        if await jobs_store.lock_plane_key(tx) != plane_key or plane_key.previous is None:
            return Resealed()  # another process was faster
        old = new.open_master_key(NOBODY, plane_key.previous)
        secrets = await _reseal_secrets(tx, old, new) if plane_key.resealed_job is None else 0
        rows = await tx.rows(jobs_store.queries.list_checkpoints, plane_key.resealed_job or NOBODY, CHECKPOINTS_AT_ONCE)
        keys = old.checkpoint_key(org.id), new.checkpoint_key(org.id)
        macs = {row["id"]: renew_mac(row["checkpoint"], row["mac"], row["id"], *keys) for row in rows}
        # A false MAC stays as it is: `cortex audit verify` reports it under any key.
        true_macs = {id: mac for id, mac in macs.items() if mac is not None}
        await tx.rows(jobs_store.queries.set_checkpoint_macs, list(true_macs), list(true_macs.values()))
        is_done = len(rows) < CHECKPOINTS_AT_ONCE
        if is_done:
            await _record_rotation(tx, new)
            position = Position(created_at=org.created_at, id=org.id)
        await tx.rows(jobs_store.queries.move_rotation, *after(position), None if is_done else rows[-1]["id"])
    return Resealed(int(is_done), secrets, len(true_macs))


async def _reseal_secrets(tx: Transaction, old: Vault, new: Vault) -> int:
    values = [_reseal(value, tx.org, old, new) for value in await tenancy_store.list_sealed_values(tx)]
    anew = [value for value in values if value is not None]
    await tx.rows(
        queries.reseal_values,
        [value.kind for value in anew],
        [value.id for value in anew],
        [value.sealed for value in anew],
    )
    return len(anew)


async def _record_rotation(tx: Transaction, new: Vault) -> None:
    """With the last batch of an org, so that its trail says that it is done."""
    values = await tenancy_store.list_sealed_values(tx)
    # Written by hand since the rotation began, so no key opened them before it either.
    unreadable = [value for value in values if _reseal(value, tx.org, new, new) is None]
    resealed = Counter(value.kind for value in values if value not in unreadable)
    await record(
        tx, scheduler_actor(tx.org, UUID(int=0), "plane"), "master_key_rotated", fingerprint=new.fingerprint.hex(),
        resealed=dict(resealed), unreadable=[f"{value.kind} {value.id}" for value in unreadable[:FAULTS_NAMED]],
    )  # fmt: skip


def _reseal(value: SealedValue, org_id: UUID, old: Vault, new: Vault) -> SealedValue | None:
    """None where it does not open."""
    try:
        return replace(value, sealed=new.seal(org_id, value.purpose, old.open(org_id, value.purpose, value.sealed)))
    except SetupError:
        return None

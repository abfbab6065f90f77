"""The keys that an org signs with: made when the first is needed, replaced when an admin says so, never forgotten.

Private keys are sealed with the master key. Each process keeps those that it opened; which of them is active is asked with
every signature, so that a key that was replaced elsewhere signs nothing more here.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.errors import Conflict, SetupError
from cortex_plane.kernel.idempotency import new_id
from cortex_plane.proof.model.audit import Fact
from cortex_plane.proof.model.signing import SigningKey, fingerprint, to_base64
from cortex_plane.proof.rules.receipts import Stamp
from cortex_plane.proof.store import audit, signing
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.verbs import verb

PURPOSE = "signing-key"
KEPT = 10_000

_signers: dict[UUID, Signer] = {}


@dataclass(frozen=True, slots=True)
class Signer:
    """A key that is open."""

    id: UUID
    public_key: bytes
    _private: Ed25519PrivateKey

    def sign(self, body: bytes) -> bytes:
        return self._private.sign(body)


async def signer(db: Database, tx: Transaction, active: UUID | None = None) -> Signer:
    """The org's active key, made where there is none. ``active``: its id, where the caller has read it just now."""
    known = _signers.get(active) if active is not None else None
    if known is not None:
        return known
    row = await signing.active(tx)
    if row is not None:
        return _kept(_opened(db.vault, tx.org, row))
    # Whoever makes the first at the same moment waits here for the other, and then takes theirs. It is kept only once it
    # was read from the database: this transaction may still be rolled back.
    await _insert(db, tx)
    row = await signing.active(tx)
    if row is None:
        raise AssertionError("somebody retired a key without a new one")
    return _opened(db.vault, tx.org, row)


async def _insert(db: Database, tx: Transaction) -> bool:
    private = Ed25519PrivateKey.generate()
    sealed = db.vault.seal(tx.org, PURPOSE, private.private_bytes_raw())
    return await signing.insert(tx, new_id(), private.public_key().public_bytes_raw(), sealed)


def _opened(vault: Vault, org_id: UUID, row: Row) -> Signer:
    private = Ed25519PrivateKey.from_private_bytes(vault.open(org_id, PURPOSE, row["sealed"]))
    if private.public_key().public_bytes_raw() != row["public_key"]:
        raise SetupError(
            "A signing key was changed in the database: its two halves do not belong together.",
            code="signing_key_changed",
            hint="Find out who wrote to the table signing_key, then `cortex audit rotate-key`.",
        )
    return Signer(row["id"], row["public_key"], private)


def _kept(signer: Signer) -> Signer:
    if len(_signers) >= KEPT:
        _signers.pop(next(iter(_signers)))
    _signers[signer.id] = signer
    return signer


def is_ours(vault: Vault, org_id: UUID, stamp: Stamp) -> bool:
    """Whether the key of a receipt is one that the plane made for this org: nobody else could have sealed its other half."""
    return _opens(vault, org_id, {"id": stamp.key_id, "public_key": stamp.public_key, "sealed": stamp.sealed})


def _opens(vault: Vault, org_id: UUID, row: Row) -> bool:
    try:
        _opened(vault, org_id, row)
    except (SetupError, ValueError):
        return False
    return True


async def verifying(tx: Transaction, vault: Vault | None) -> tuple[dict[UUID, bytes], set[UUID]]:
    """The public keys of the org, and which of them the plane did not make; without its master key nobody can tell."""
    rows = await signing.kept(tx)
    strangers = [] if vault is None else [row["id"] for row in rows if not _opens(vault, tx.org, row)]
    return {row["id"]: row["public_key"] for row in rows}, set(strangers)


def shown(row: Row) -> SigningKey:
    return SigningKey(
        id=row["id"],
        fingerprint=fingerprint(row["public_key"]),
        public_key=to_base64(row["public_key"]),
        created_at=row["created_at"],
        retired_at=row["retired_at"],
    )


async def public_keys(tx: Transaction) -> list[SigningKey]:
    return [shown(row) for row in await signing.list_all(tx)]


@verb(Permission.AUDIT_READ)
async def list_all(db: Database, actor: Actor) -> list[SigningKey]:
    """Every key of the org, oldest first; the one that is not retired signs."""
    async with db.transaction(actor.org_id) as tx:
        return await public_keys(tx)


@verb(Permission.KEY_WRITE)
async def rotate(db: Database, actor: Actor) -> SigningKey:
    """A new key signs from now on. The old one stays listed, and what it signed stays valid."""
    async with db.transaction(actor.org_id) as tx:
        old = await signing.retire(tx)
        if not await _insert(db, tx):
            raise Conflict(
                "Somebody else made a new key at this moment.", hint="Look at `cortex audit keys`."
            )
        new = next(key for key in await public_keys(tx) if key.retired_at is None)
        told = {
            "old": fingerprint(old["public_key"]) if old else None,
            "new": new.fingerprint,
            "key": str(new.id),
        }
        await audit.append_to_org(tx, Fact.of(actor, "signing_key_rotated", **told))
    return new

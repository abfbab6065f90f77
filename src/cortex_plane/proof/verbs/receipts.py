"""Receipts of decisions, and the keys that sign them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import Approval, StandingApproval
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.errors import Conflict, NotFound, SetupError
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.ids import new_id
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Receipt, SignedReceipt, SigningKey, fingerprint, to_base64
from cortex_plane.proof.rules.receipts import ReceiptFacts, Stamp, receipt_body
from cortex_plane.proof.store import queries
from cortex_plane.tenancy.model.access import Actor, Fact, Permission
from cortex_plane.tenancy.verbs.frame import read_verb, require_found, transaction_verb, verb

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


async def get_signer(db: Database, tx: Transaction, active: UUID | None = None) -> Signer:
    """The org's active key, made where there is none. ``active``: its id, where the caller has read it just now."""
    signer = _signers.get(active) if active is not None else None
    if signer is not None:
        return signer
    row = await tx.row(queries.active_signing_key)
    if row is not None:
        return _kept(_opened(db.vault, tx.org, row))
    # Whoever makes the first at the same moment waits here for the other, and then takes theirs. It is kept only once it
    # was read from the database: this transaction may still be rolled back.
    await _insert_signing_key(db, tx)
    row = await tx.row(queries.active_signing_key)
    if row is None:
        raise AssertionError("somebody retired a key without a new one")
    return _opened(db.vault, tx.org, row)


async def _insert_signing_key(db: Database, tx: Transaction) -> bool:
    """False: there is an active one, and nothing happened."""
    private = Ed25519PrivateKey.generate()
    sealed = await db.seal(tx, PURPOSE, private.private_bytes_raw())
    public_key = private.public_key().public_bytes_raw()
    return await tx.value(queries.insert_signing_key, tx.org, new_id(), public_key, sealed) is not None


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


def is_ours(vault: Vault, org_id: UUID, key_id: UUID, public_key: bytes, sealed: bytes) -> bool:
    """Whether a key is one that the plane made for this org: nobody else could have sealed its other half."""
    try:
        _opened(vault, org_id, {"id": key_id, "public_key": public_key, "sealed": sealed})
    except (SetupError, ValueError):
        return False
    return True


async def verifying(tx: Transaction, vault: Vault | None) -> tuple[dict[UUID, bytes], set[UUID]]:
    """The public keys of the org, and which of them the plane did not make; without its master key nobody can tell."""
    rows = await tx.rows(queries.signing_key)
    keys = {row["id"]: row["public_key"] for row in rows}
    if vault is None:
        return keys, set()
    return keys, {row["id"] for row in rows if not is_ours(vault, tx.org, row["id"], row["public_key"], row["sealed"])}


async def public_keys(tx: Transaction) -> list[SigningKey]:
    """Every key of the org, oldest first; the one that is not retired signs."""
    return [parse(SigningKey, {**row, **_key_texts(row)}) for row in await tx.rows(queries.list_signing_keys)]


def _key_texts(row: Row) -> dict[str, str]:
    return {"fingerprint": fingerprint(row["public_key"]), "public_key": to_base64(row["public_key"])}


list_signing_keys = read_verb(Permission.AUDIT_READ, public_keys)


@verb(Permission.KEY_WRITE)
async def rotate_signing_key(db: Database, actor: Actor) -> SigningKey:
    """A new key signs from now on. The old one stays listed, and what it signed stays valid."""
    async with db.transaction(actor.org_id) as tx:
        old = await tx.row(queries.retire_signing_key)
        if not await _insert_signing_key(db, tx):
            raise Conflict("Somebody else made a new key at this moment.", hint="Look at `cortex audit keys`.")
        new = next(key for key in await public_keys(tx) if key.retired_at is None)
        details = {"old": fingerprint(old["public_key"]) if old else None, "new": new.fingerprint, "key": str(new.id)}
        await proof_store.append_to_org(tx, Fact.of(actor, "signing_key_rotated", **details))
    return new


async def sign_receipt(
    db: Database, tx: Transaction, approval: Approval, facts: ReceiptFacts, calls: Sequence[UUID],
    standing: StandingApproval | None = None,
) -> SignedReceipt:  # fmt: skip
    """Sign what the statement that closes ``approval`` writes, and the yes to more calls that comes with it. It takes the receipt with it."""
    key = await get_signer(db, tx, facts.active_key)
    body = receipt_body(tx.org, approval, facts, calls, key.id, standing)
    return SignedReceipt(key_id=key.id, body=body, signature=key.sign(body))


def stamp_fault(vault: Vault, org_id: UUID, stamp: Stamp | None) -> str | None:
    """Why nothing that a receipt says can be believed: there is none, or it is not signed with a key of the org's; None where it can."""
    if stamp is None:
        return "there is no receipt of its approval"
    if not is_ours(vault, org_id, stamp.key_id, stamp.public_key, stamp.sealed):
        return "the key of its receipt is not one of the org's"
    return None


@transaction_verb(Permission.APPROVAL_READ)
async def get_receipt(tx: Transaction, actor: Actor, approval_id: UUID) -> Receipt:
    """The receipt of a decision, for whoever sees the approval."""
    require_found(await approvals_store.get_approval(tx, approval_id, actor), "approval")
    row = await tx.row(queries.get_receipt, approval_id)
    if row is None:
        raise NotFound(
            "There is no receipt: nobody approved or denied this.",
            code="receipt_not_found",
            hint="Look at its status with `cortex approval show`.",
        )
    texts = {"body": row["body"].decode(errors="replace"), "signature": to_base64(row["signature"]), **_key_texts(row)}
    return parse(Receipt, {**row, **texts})

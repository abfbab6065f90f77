"""Secrets at rest. The plane seals with the master key what it must read again: signing secrets, private keys, keys to models.

Of keys, tokens and cookies, which it only compares, it stores an HMAC.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import secrets
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from cortex_plane.kernel.errors import SetupError

NONCE_BYTES = 12
FORMAT = b"\x01"


class Vault:
    """Seals for one org and one purpose: a value that was sealed for another one does not open."""

    def __init__(self, master_key: bytes) -> None:
        self._key = master_key

    @functools.cached_property
    def fingerprint(self) -> bytes:
        """What the database stores of the master key, so that a process with another one is refused."""
        return hmac.digest(self._key, b"cortex-plane fingerprint", "sha256")

    def seal(self, org_id: UUID, purpose: str, secret: bytes) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return FORMAT + nonce + self._cipher(org_id).encrypt(nonce, secret, purpose.encode())

    def open(self, org_id: UUID, purpose: str, sealed: bytes) -> bytes:
        nonce, body = sealed[1 : 1 + NONCE_BYTES], sealed[1 + NONCE_BYTES :]
        try:
            if sealed[:1] != FORMAT:
                raise InvalidTag
            return self._cipher(org_id).decrypt(nonce, body, purpose.encode())
        except InvalidTag:
            raise SetupError(
                "A sealed secret does not open: it was sealed with another master key, or was changed.",
                code="wrong_master_key",
                hint="Start every process of the plane with the same CORTEX_MASTER_KEY.",
            ) from None

    def seal_master_key(self, org_id: UUID, vault: Vault) -> bytes:
        """The key of another vault, sealed with this one's."""
        return self.seal(org_id, "master-key", vault._key)

    def open_master_key(self, org_id: UUID, sealed: bytes) -> Vault:
        return Vault(self.open(org_id, "master-key", sealed))

    def checkpoint_key(self, org_id: UUID) -> bytes:
        """Each org's checkpoints have MACs of a key of its own."""
        return hashlib.blake2b(org_id.bytes, key=self._key, digest_size=32, person=b"checkpoint").digest()

    def _cipher(self, org_id: UUID) -> AESGCM:
        return AESGCM(hashlib.blake2b(org_id.bytes, key=self._key, digest_size=32, person=b"vault").digest())
